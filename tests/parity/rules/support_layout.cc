// Cases of views and indexing.
#include <numeric>

#include "tests/parity/rules/support.h"
#include "tests/parity/rules/support_parts.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using graph::DType;
using graph::TensorType;
using graph::ValueId;
using Ints = std::vector<int64_t>;

int64_t rank_of(const Shape& shape) { return static_cast<int64_t>(shape.size()); }

void views(Cases& cases) {
  cases["perigee::reshape"] = [](Case& c) {
    // Two shapes with the same product: small factors grouped in two ways, with additional ones.
    Ints pieces(c.any(1, 4));
    for (auto& p : pieces) p = c.coin() ? c.any(1, 6) : 2 * c.any(1, 3);
    const auto grouped = [&] {
      Shape shape;
      for (auto p : pieces) {
        if (!shape.empty() && c.coin(0.4)) {
          shape.back() *= p;
        } else {
          shape.push_back(p);
        }
        if (c.coin(0.15)) shape.push_back(1);
      }
      return shape;
    };
    const auto from = grouped(), to = grouped();
    c.typed("perigee::reshape", {{"self", c.real(from)}}, {real_type(to)});
  };
  cases["perigee::expand"] = [](Case& c) {
    auto to = c.sizes(4, 1), from = to;
    for (auto& s : from) {
      if (c.coin(0.4)) s = 1;
    }
    while (!from.empty() && c.coin(0.3)) from.erase(from.begin());
    c.typed("perigee::expand", {{"self", c.real(from)}}, {real_type(to)});
  };
  cases["aten::t"] = [](Case& c) { c.call("aten::t", {{"self", c.real(c.sizes(2))}}); };
  cases["aten::transpose.int"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    const auto r = rank_of(shape);
    c.call("aten::transpose.int", {{"self", c.real(shape)},
                                   {"dim0", c.either_way(c.any(0, r - 1), r)},
                                   {"dim1", c.either_way(c.any(0, r - 1), r)}});
  };
  cases["aten::permute"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    Ints order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = 0; i < order.size(); ++i) {
      std::swap(order[i], order[c.any(0, rank_of(shape) - 1)]);
    }
    for (auto& d : order) d = c.either_way(d, rank_of(shape));
    c.call("aten::permute", {{"self", c.real(shape)}, {"dims", order}});
  };
  cases["aten::unsqueeze"] = [](Case& c) {
    const auto shape = c.sizes(3);
    const auto r = rank_of(shape) + 1;
    c.call("aten::unsqueeze", {{"self", c.real(shape)}, {"dim", c.either_way(c.any(0, r - 1), r)}});
  };
  const auto with_ones = [](Case& c) {
    auto shape = c.sizes(4, 1);
    for (auto& s : shape) {
      if (c.coin(0.4)) s = 1;
    }
    return shape;
  };
  cases["aten::squeeze"] = [=](Case& c) {
    c.call("aten::squeeze", {{"self", c.real(with_ones(c))}});
  };
  cases["aten::squeeze.dim"] = [=](Case& c) {
    const auto shape = with_ones(c);
    c.call("aten::squeeze.dim",
           {{"self", c.real(shape)},
            {"dim", c.either_way(c.any(0, rank_of(shape) - 1), rank_of(shape))}});
  };
  cases["aten::squeeze.dims"] = [=](Case& c) {
    const auto shape = with_ones(c);
    c.call("aten::squeeze.dims",
           {{"self", c.real(shape)},
            {"dim", Ints{-1, 0}.size() > shape.size() ? Ints{0} : Ints{-1, 0}}});
  };
  cases["aten::select.int"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    const auto at = c.any(0, rank_of(shape) - 1), i = c.any(0, shape[at] - 1);
    c.call("aten::select.int", {{"self", c.real(shape)},
                                {"dim", c.either_way(at, rank_of(shape))},
                                {"index", c.either_way(i, shape[at])}});
  };
  cases["aten::select_backward"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    const auto at = c.any(0, rank_of(shape) - 1);
    auto fewer = shape;
    fewer.erase(fewer.begin() + at);
    c.typed("aten::select_backward",
            {{"grad_output", c.real(fewer)},
             {"dim", at},
             {"index", c.either_way(c.any(0, shape[at] - 1), shape[at])}},
            {real_type(shape)});
  };
  cases["aten::unbind.int"] = [](Case& c) {
    auto shape = c.sizes(3, 1);
    const auto at = c.any(0, rank_of(shape) - 1);
    shape[at] = 3;
    c.call("aten::unbind.int", {{"self", c.real(shape)}, {"dim", c.either_way(at, rank_of(shape))}},
           3);
  };
  cases["aten::slice.Tensor"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    const auto at = c.any(0, rank_of(shape) - 1), size = shape[at];
    Args args = {{"self", c.real(shape)}, {"dim", c.either_way(at, rank_of(shape))}};
    if (c.coin(0.8)) args.emplace_back("start", c.coin() ? c.any(0, size - 1) : -c.any(1, size));
    if (c.coin(0.8)) args.emplace_back("end", c.coin() ? size + c.any(0, 9) : c.any(0, size));
    if (c.coin(0.3)) args.emplace_back("step", int64_t{2});
    c.call("aten::slice.Tensor", args);
  };
  cases["aten::slice_backward"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    const auto at = c.any(0, rank_of(shape) - 1), start = c.any(0, shape[at] - 1);
    auto fewer = shape;
    fewer[at] = shape[at] - start;
    c.typed("aten::slice_backward",
            {{"grad_output", c.real(fewer)},
             {"dim", at},
             {"start", start},
             {"end", shape[at]},
             {"step", int64_t{1}}},
            {real_type(shape)});
  };
  cases["aten::split.Tensor"] = [](Case& c) {
    auto shape = c.sizes(4, 1);
    const auto at = c.any(0, rank_of(shape) - 1);
    shape[at] = 5;
    c.call("aten::split.Tensor", {{"self", c.real(shape)}, {"split_size", int64_t{2}}, {"dim", at}},
           3);
  };
  cases["aten::split_with_sizes"] = [](Case& c) {
    auto shape = c.sizes(4, 1);
    const auto at = c.any(0, rank_of(shape) - 1);
    shape[at] = 6;
    c.call("aten::split_with_sizes",
           {{"self", c.real(shape)},
            {"split_sizes", Ints{1, 2, 3}},
            {"dim", c.either_way(at, rank_of(shape))}},
           3);
  };
  cases["aten::flip"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    c.call("aten::flip",
           {{"self", c.real(shape)},
            {"dims", Ints{c.either_way(c.any(0, rank_of(shape) - 1), rank_of(shape))}}});
  };
  cases["aten::roll"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    Args args = {{"self", c.real(shape)}, {"shifts", Ints{2}}};
    if (c.coin(0.7)) args.emplace_back("dims", Ints{c.any(0, rank_of(shape) - 1)});
    c.call("aten::roll", args);
  };
  cases["aten::repeat"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    Ints repeats(shape.size() + c.any(0, 1));
    for (auto& r : repeats) r = c.coin() ? 1 : 2;
    c.call("aten::repeat", {{"self", c.real(shape)}, {"repeats", repeats}});
  };
  cases["aten::constant_pad_nd"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    Ints pad(2 * c.any(1, rank_of(shape)));
    for (auto& p : pad) p = c.coin() ? 0 : c.any(0, 2);
    Args args = {{"self", c.real(shape)}, {"pad", pad}};
    if (c.coin())
      args.emplace_back("value", c.coin() ? 0.0 : 1.0);
    else if (c.coin())
      args.emplace_back("value", c.coin());
    c.call("aten::constant_pad_nd", args);
  };
  for (const char* op : {"aten::cat", "aten::stack"}) {
    cases[op] = [op = std::string(op)](Case& c) {
      auto shape = c.sizes(4, 1);
      const auto at = c.any(0, rank_of(shape) - 1);
      std::vector<ValueId> tensors;
      for (int k = static_cast<int>(c.any(1, 3)); k > 0; --k) {
        if (op == "aten::cat") shape[at] = c.size();
        tensors.push_back(c.real(shape));
      }
      c.call(op, {{"tensors", tensors}, {"dim", c.either_way(at, rank_of(shape))}});
    };
  }
  for (const char* op : {"aten::tril", "aten::triu"}) {
    cases[op] = [op](Case& c) {
      c.call(op, {{"self", c.real(c.sizes(4, 2))}, {"diagonal", c.any(-2, 2)}});
    };
  }
  cases["aten::view_as_complex"] = [](Case& c) {
    auto shape = c.sizes(3);
    shape.push_back(2);
    const auto z = c.call("aten::view_as_complex", {{"self", c.real(shape)}})[0];
    c.call("aten::view_as_real", {{"self", z}});
  };
}

// Writes to a part, diagonals and windows.
void parts(Cases& cases) {
  cases["aten::slice_scatter"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    const auto at = c.any(0, rank_of(shape) - 1), start = c.any(0, shape[at] - 1);
    auto part = shape;
    part[at] = shape[at] - start;
    c.call("aten::slice_scatter", {{"self", c.real(shape)},
                                   {"src", c.real(part)},
                                   {"dim", c.either_way(at, rank_of(shape))},
                                   {"start", start}});
  };
  cases["aten::select_scatter"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    const auto at = c.any(0, rank_of(shape) - 1);
    auto part = shape;
    part.erase(part.begin() + at);
    c.call("aten::select_scatter", {{"self", c.real(shape)},
                                    {"src", c.real(part)},
                                    {"dim", c.either_way(at, rank_of(shape))},
                                    {"index", c.any(-shape[at], shape[at] - 1)}});
  };
  cases["aten::diagonal"] = [](Case& c) {
    const auto shape = c.sizes(4, 2);
    const auto dim1 = c.any(0, rank_of(shape) - 1);
    const auto dim2 = (dim1 + c.any(1, rank_of(shape) - 1)) % rank_of(shape);
    const auto offset = c.any(0, shape[dim2] - 1);
    const auto line = c.call("aten::diagonal", {{"self", c.real(shape)},
                                                {"offset", offset},
                                                {"dim1", dim1},
                                                {"dim2", c.either_way(dim2, rank_of(shape))}})[0];
    c.typed("aten::diagonal_backward",
            {{"grad_output", c.real(c.shape(line))},
             {"offset", offset},
             {"dim1", dim1},
             {"dim2", dim2}},
            {real_type(shape)});
  };
  cases["aten::unfold"] = [](Case& c) {
    auto shape = c.sizes(3, 1);
    const auto at = c.any(0, rank_of(shape) - 1);
    shape[at] += 2;
    const auto windows = c.call("aten::unfold", {{"self", c.real(shape)},
                                                 {"dimension", c.either_way(at, rank_of(shape))},
                                                 {"size", int64_t{2}},
                                                 {"step", int64_t{1}}})[0];
    c.typed("aten::unfold_backward",
            {{"grad_in", c.real(c.shape(windows))},
             {"dim", at},
             {"size", int64_t{2}},
             {"step", int64_t{1}}},
            {real_type(shape)});
  };
}

void indexing(Cases& cases) {
  cases["aten::embedding"] = [](Case& c) {
    const auto rows = c.size() + 1, width = c.size();
    const auto shape = c.sizes(3, 1);
    const auto indices = c.integers(shape, 0, rows - 1);
    const int64_t padding = c.coin() ? -1 : 0;
    c.call("aten::embedding",
           {{"weight", c.real({rows, width})}, {"indices", indices}, {"padding_idx", padding}});
    auto grad = shape;
    grad.push_back(width);
    c.call("aten::embedding_dense_backward", {{"grad_output", c.real(grad)},
                                              {"indices", indices},
                                              {"num_weights", rows},
                                              {"padding_idx", padding},
                                              {"scale_grad_by_freq", c.coin(0.3)}});
  };
  cases["aten::one_hot"] = [](Case& c) {
    c.call("aten::one_hot",
           {{"self", c.integers(c.sizes(3, 1), 0, 4)}, {"num_classes", int64_t{5}}});
  };
  cases["aten::gather"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    const auto at = c.any(0, rank_of(shape) - 1);
    auto picked = shape;
    for (auto& s : picked) s = c.coin(0.7) ? s : c.any(1, s);
    picked[at] = c.size();
    c.call("aten::gather", {{"self", c.real(shape)},
                            {"dim", c.either_way(at, rank_of(shape))},
                            {"index", c.integers(picked, 0, shape[at] - 1)}});
  };
  for (const char* op : {"aten::scatter.src", "aten::scatter_add", "aten::scatter.value"}) {
    cases[op] = [op = std::string(op)](Case& c) {
      const auto shape = c.sizes(3, 1);
      const auto at = c.any(0, rank_of(shape) - 1);
      auto placed = shape;
      for (auto& s : placed) s = c.coin(0.7) ? s : c.any(1, s);
      placed[at] = c.any(1, shape[at]);
      // Distinct places, so that the order of writing does not matter.
      auto order = at::rand(shape).argsort(at);
      for (size_t d = 0; d < placed.size(); ++d) order = order.narrow(d, 0, placed[d]);
      Args args = {{"self", c.real(shape)},
                   {"dim", c.either_way(at, rank_of(shape))},
                   {"index", c.given(order.contiguous())}};
      if (op == "aten::scatter.value") {
        args.emplace_back("value", 2.0);
      } else {
        args.emplace_back("src", c.real(placed));
      }
      c.call(op, args);
    };
  }
  cases["aten::index_select"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    const auto at = c.any(0, rank_of(shape) - 1);
    c.call("aten::index_select", {{"self", c.real(shape)},
                                  {"dim", c.either_way(at, rank_of(shape))},
                                  {"index", c.integers({c.size()}, 0, shape[at] - 1)}});
  };
  cases["aten::index_add"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    const auto at = c.any(0, rank_of(shape) - 1);
    auto source = shape;
    source[at] = c.size();
    c.call("aten::index_add", {{"self", c.real(shape)},
                               {"dim", c.either_way(at, rank_of(shape))},
                               {"index", c.integers({source[at]}, 0, shape[at] - 1)},
                               {"source", c.real(source)},
                               {"alpha", 0.5}});
  };
  // Some dims indexed by broadcast tensors, also negative. Returns the list and the result's shape.
  const auto indices_for = [](Case& c, const Shape& shape, bool distinct) {
    std::vector<ValueId> list(shape.size());
    const Shape together = distinct ? Shape{1} : Shape{c.size(), c.size()};
    bool any = false;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (c.coin(0.5) && (any || d + 1 < shape.size())) continue;
      any = true;
      Shape own = together;
      if (c.coin(0.3)) own[0] = 1;
      if (own.size() > 1 && c.coin(0.3)) own.erase(own.begin());
      list[d] = c.integers(own, -shape[d], shape[d] - 1);
    }
    return list;
  };
  for (const char* op : {"aten::index.Tensor", "aten::_unsafe_index.Tensor"}) {
    cases[op] = [=](Case& c) {
      const auto shape = c.sizes(4, 1);
      const auto list = indices_for(c, shape, false);
      c.call(op, {{"self", c.real(shape)}, {"indices", list}});
    };
  }
  for (const char* op : {"aten::index_put", "aten::_unsafe_index_put"}) {
    cases[op] = [=](Case& c) {
      const auto shape = c.sizes(4, 1);
      const bool accumulate = c.coin(0.6);
      const auto list = indices_for(c, shape, !accumulate);
      const auto self = c.real(shape);
      c10::List<std::optional<at::Tensor>> tensors;
      for (auto v : list) {
        tensors.push_back(v.defined() ? std::optional<at::Tensor>(c.value(v)) : std::nullopt);
      }
      auto values = c.value(self).index(tensors).sizes().vec();
      for (auto& s : values) {
        if (c.coin(0.2)) s = 1;
      }
      while (!values.empty() && c.coin(0.15)) values.erase(values.begin());
      c.call(op, {{"self", self},
                  {"indices", list},
                  {"values", c.real(values)},
                  {"accumulate", accumulate}});
    };
  }
}

}  // namespace

void add_layout_cases(Cases& cases) {
  views(cases);
  parts(cases);
  indexing(cases);
}

const std::map<std::string, Build>& rule_cases() {
  static const Cases cases = [] {
    Cases all;
    add_math_cases(all);
    add_norm_cases(all);
    add_layout_cases(all);
    add_expert_cases(all);
    add_image_cases(all);
    add_transform_cases(all);
    return all;
  }();
  return cases;
}

}  // namespace perigee::parity
