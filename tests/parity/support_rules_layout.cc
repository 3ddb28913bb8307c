// Cases of views, indexing, attention, convolution and image ops.
#include <numeric>

#include "tests/parity/support_rules.h"
#include "tests/parity/support_rules_parts.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using graph::DType;
using graph::TensorType;
using graph::ValueId;
using Ints = std::vector<int64_t>;

TensorType real_type(Shape shape) { return {DType::float64, std::move(shape)}; }

int64_t rank_of(const Shape& shape) { return static_cast<int64_t>(shape.size()); }

void views(Cases& cases) {
  cases["perigee::reshape"] = [](Case& c) {
    // Two shapes with the same product: prime-ish pieces grouped in two ways, with ones thrown in.
    Ints pieces(c.any(1, 4));
    for (auto& p : pieces) p = c.any(1, 6);
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
    if (c.coin()) args.emplace_back("value", c.coin() ? 0.0 : 1.0);
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
      // Different places, so that no order of writing counts.
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
  // Some dims indexed by broadcast tensors, negative indices too. Returns the list and the result's
  // shape.
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

void attention(Cases& cases) {
  cases["perigee::attention"] = [](Case& c) {
    const int64_t b = c.size(4), g = c.any(1, 3), h = g * c.any(1, 3), d = c.any(1, 3),
                  e = c.any(1, 3);
    const bool causal = c.coin();
    const int64_t s = c.size(5), t = causal ? s : c.size(5);
    const auto query = c.real({b, h, s, d}, false), key = c.real({b, g, t, d}, false),
               value = c.real({b, g, t, e}, false);
    ValueId bias;
    if (c.coin()) {
      Shape shape = {c.coin() ? b : 1, c.coin() ? h : 1, s, t};
      if (c.coin(0.2)) shape.erase(shape.begin());
      bias = c.real(shape, false);
    }
    const Args options = {{"causal", causal},
                          {"scale", 0.7},
                          {"p", c.coin() ? 0.0 : 0.3},
                          {"random_key", int64_t{9}}};
    Args args = {{"query", query}, {"key", key}, {"value", value}, {"bias", bias}};
    args.insert(args.end(), options.begin(), options.end());
    const auto out =
        c.typed("perigee::attention", args, {real_type({b, h, s, e}), real_type({b, h, s})});
    Args back = {{"grad", c.real({b, h, s, e})},
                 {"query", query},
                 {"key", key},
                 {"value", value},
                 {"bias", bias},
                 {"output", out[0]},
                 {"logsumexp", out[1]}};
    back.insert(back.end(), options.begin(), options.end());
    std::vector<TensorType> types = {real_type({b, h, s, d}), real_type({b, g, t, d}),
                                     real_type({b, g, t, e})};
    if (bias.defined()) {
      types.push_back(real_type(c.shape(bias)));
      back.emplace_back("bias_grad", true);
    }
    c.typed("perigee::attention_backward", back, types);
  };
}

void images(Cases& cases) {
  cases["aten::convolution"] = [](Case& c) {
    const int64_t space = c.any(1, 2), groups = c.coin(0.7) ? 1 : 2;
    const int64_t in = groups * c.any(1, 4), out = groups * c.any(1, 4);
    const bool transposed = c.coin(0.4), bias = c.coin();
    Shape input = {c.size(), in};
    Shape weight = transposed ? Shape{in, out / groups} : Shape{out, in / groups};
    for (int64_t k = 0; k < space; ++k) {
      input.push_back(c.any(3, 6));
      weight.push_back(c.any(1, 3));
    }
    const Ints one(space, 1), zero(space, 0);
    const auto x = c.real(input), w = c.real(weight);
    const Args options = {{"stride", one},          {"padding", zero},
                          {"dilation", one},        {"transposed", transposed},
                          {"output_padding", zero}, {"groups", groups}};
    Args args = {{"input", x}, {"weight", w}};
    args.emplace_back("bias", bias ? c.real({out}) : ValueId{});
    args.insert(args.end(), options.begin(), options.end());
    const auto y = c.call("aten::convolution", args)[0];
    Args back = {{"grad_output", c.real(c.shape(y))}, {"input", x}, {"weight", w}};
    back.emplace_back("bias_sizes", bias ? graph::Arg(Ints{out}) : graph::Arg(std::monostate()));
    back.insert(back.end(), options.begin(), options.end());
    back.emplace_back("output_mask", std::vector<bool>{c.coin(0.8), true, bias});
    c.call("aten::convolution_backward", back, 3);
  };
  const auto image = [](Case& c, int64_t space) {
    Shape shape = {c.size(), c.size()};
    for (int64_t k = 0; k < space; ++k) shape.push_back(c.any(4, 7));
    return shape;
  };
  for (int64_t space = 1; space <= 3; ++space) {
    const auto d = std::to_string(space) + "d";
    const Ints two(space, 2);
    if (space >= 2) {
      const auto pool = "aten::max_pool" + d + "_with_indices";
      cases[pool] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const auto out = c.call(pool, {{"self", x}, {"kernel_size", two}, {"stride", two}}, 2);
        const Ints zero(space, 0), one(space, 1);
        c.call(pool + "_backward", {{"grad_output", c.real(c.shape(out[0]))},
                                    {"self", x},
                                    {"kernel_size", two},
                                    {"stride", two},
                                    {"padding", zero},
                                    {"dilation", one},
                                    {"ceil_mode", false},
                                    {"indices", out[1]}});
        const auto whole = c.shape(x);
        Args unpool = {{"self", out[0]},
                       {"indices", out[1]},
                       {"output_size", Ints(whole.begin() + 2, whole.end())}};
        if (space == 3) unpool.insert(unpool.end(), {{"stride", two}, {"padding", zero}});
        c.call("aten::max_unpool" + d, unpool);
      };
      const auto average = "aten::avg_pool" + d;
      cases[average] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const auto y = c.call(average, {{"self", x}, {"kernel_size", two}, {"stride", two}})[0];
        c.call(average + "_backward", {{"grad_output", c.real(c.shape(y))},
                                       {"self", x},
                                       {"kernel_size", two},
                                       {"stride", two},
                                       {"padding", Ints(space, 0)},
                                       {"ceil_mode", false},
                                       {"count_include_pad", true}});
      };
      const auto adaptive = "aten::_adaptive_avg_pool" + d;
      cases[adaptive] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const auto y = c.call(adaptive, {{"self", x}, {"output_size", two}})[0];
        c.call(adaptive + "_backward", {{"grad_output", c.real(c.shape(y))}, {"self", x}});
      };
      const auto highest = "aten::adaptive_max_pool" + d;
      cases[highest] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const auto y = c.call(highest, {{"self", x}, {"output_size", two}}, 2);
        c.call(highest + "_backward",
               {{"grad_output", c.real(c.shape(y[0]))}, {"self", x}, {"indices", y[1]}});
      };
    }
    for (const char* kind : {"aten::reflection_pad", "aten::replication_pad"}) {
      const auto op = kind + d;
      cases[op] = [=](Case& c) {
        const auto x = c.real(image(c, space));
        const Ints padding(2 * space, 1);
        const auto y = c.call(op, {{"self", x}, {"padding", padding}})[0];
        c.call(op + "_backward",
               {{"grad_output", c.real(c.shape(y))}, {"self", x}, {"padding", padding}});
      };
    }
    const auto resize = [=](const std::string& op, Args more) {
      return [=](Case& c) {
        const auto shape = image(c, space);
        Ints size(space, 9);
        Args args = {{"self", c.real(shape)}, {"output_size", size}};
        args.insert(args.end(), more.begin(), more.end());
        const auto y = c.call(op, args)[0];
        Args back = {{"grad_output", c.real(c.shape(y))}, {"output_size", size}};
        if (c.coin()) {
          back.emplace_back("input_size", shape);
          back.insert(back.end(), more.begin(), more.end());
          c.call(op + "_backward", back);
        } else {
          back.insert(back.end(), more.begin(), more.end());
          c.typed(op + "_backward", back, {real_type(shape)});
        }
      };
    };
    for (const char* kind : {"aten::upsample_nearest", "aten::_upsample_nearest_exact"}) {
      cases[kind + d] = resize(kind + d, {});
    }
    const Args aligned = {{"align_corners", true}};
    if (space == 1) cases["aten::upsample_linear1d"] = resize("aten::upsample_linear1d", aligned);
    if (space == 3)
      cases["aten::upsample_trilinear3d"] = resize("aten::upsample_trilinear3d", aligned);
    if (space == 2) {
      for (const char* op : {"aten::upsample_bilinear2d", "aten::upsample_bicubic2d",
                             "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa"}) {
        cases[op] = resize(op, aligned);
      }
    }
  }
  const Args unfolding = {{"kernel_size", Ints{2, 2}},
                          {"dilation", Ints{1, 1}},
                          {"padding", Ints{0, 0}},
                          {"stride", Ints{1, 1}}};
  cases["aten::im2col"] = [=](Case& c) {
    const auto shape = image(c, 2);
    Args args = {{"self", c.real(shape)}};
    args.insert(args.end(), unfolding.begin(), unfolding.end());
    const auto y = c.call("aten::im2col", args)[0];
    Args back = {{"self", c.real(c.shape(y))}, {"output_size", Ints{shape[2], shape[3]}}};
    back.insert(back.end(), unfolding.begin(), unfolding.end());
    c.call("aten::col2im", back);
  };
  cases["aten::pixel_shuffle"] = [](Case& c) {
    const auto n = c.size();
    const auto y = c.call("aten::pixel_shuffle",
                          {{"self", c.real({n, 8, 3, 2})}, {"upscale_factor", int64_t{2}}})[0];
    c.call("aten::pixel_unshuffle", {{"self", y}, {"downscale_factor", int64_t{2}}});
  };
  cases["aten::channel_shuffle"] = [](Case& c) {
    c.call("aten::channel_shuffle",
           {{"self", c.real({c.size(), 6, 3, 4})}, {"groups", int64_t{3}}});
  };
  for (int64_t space = 2; space <= 3; ++space) {
    const auto op = "aten::grid_sampler_" + std::to_string(space) + "d";
    cases[op] = [=](Case& c) {
      const auto shape = image(c, space);
      Shape grid = {shape[0]};
      for (int64_t k = 0; k < space; ++k) grid.push_back(c.any(2, 4));
      grid.push_back(space);
      const auto x = c.real(shape), g = c.given(at::rand(grid, at::kDouble) * 1.6 - 0.8);
      const Args options = {{"interpolation_mode", int64_t{0}},
                            {"padding_mode", int64_t{0}},
                            {"align_corners", false}};
      Args args = {{"input", x}, {"grid", g}};
      args.insert(args.end(), options.begin(), options.end());
      const auto y = c.call(op, args)[0];
      Args back = {{"grad_output", c.real(c.shape(y))}, {"input", x}, {"grid", g}};
      back.insert(back.end(), options.begin(), options.end());
      back.emplace_back("output_mask", std::vector<bool>{true, true});
      c.call(op + "_backward", back, 2);
    };
  }
}

}  // namespace

void add_layout_cases(Cases& cases) {
  views(cases);
  indexing(cases);
  attention(cases);
  images(cases);
}

const std::map<std::string, Build>& rule_cases() {
  static const Cases cases = [] {
    Cases all;
    add_math_cases(all);
    add_layout_cases(all);
    return all;
  }();
  return cases;
}

}  // namespace perigee::parity
