// Cases of element-wise ops, products, reductions, normalisation and losses.
#include "tests/parity/support_rules_parts.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using graph::DType;
using graph::TensorType;
using graph::ValueId;
using Ints = std::vector<int64_t>;

TensorType real_type(Shape shape) { return {DType::float64, std::move(shape)}; }

// The shape with some dims replaced by 1 and leading ones dropped.
Shape broadcastable(Case& c, const Shape& shape) {
  Shape own = shape;
  for (auto& s : own) {
    if (c.coin(0.25)) s = 1;
  }
  while (!own.empty() && c.coin(0.2)) own.erase(own.begin());
  return own;
}

Build unary(const char* op) {
  return [op](Case& c) { c.call(op, {{"self", c.real(c.sizes(4))}}); };
}

Build binary(const char* op) {
  return [op](Case& c) {
    const auto shape = c.sizes(4);
    const auto self = c.real(c.coin() ? shape : broadcastable(c, shape));
    const auto other = c.coin(0.1) ? self : c.real(broadcastable(c, shape));
    c.call(op, {{"self", self}, {"other", other}});
  };
}

// grad_output (may be Partial) and what the backward reads.
Build gradient(const char* op, Args more = {}, const char* second = "self") {
  return [=](Case& c) {
    const auto shape = c.sizes(4);
    Args args = {{"grad_output", c.real(shape)}, {second, c.real(shape)}};
    args.insert(args.end(), more.begin(), more.end());
    c.call(op, args);
  };
}

void elementwise(Cases& cases) {
  for (const char* op :
       {"aten::relu", "aten::neg", "aten::exp", "aten::clone", "aten::alias", "aten::detach",
        "aten::gelu", "aten::tanh", "aten::abs", "aten::lift_fresh_copy"}) {
    cases[op] = unary(op);
  }
  for (const char* op : {"aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor",
                         "aten::div.Tensor", "aten::maximum", "aten::eq.Tensor", "aten::atan2"}) {
    cases[op] = binary(op);
  }
  cases["aten::rsub.Tensor"] = binary("aten::rsub.Tensor");
  for (const char* op : {"aten::add.Scalar", "aten::mul.Scalar", "aten::div.Scalar",
                         "aten::sub.Scalar", "aten::rsub.Scalar"}) {
    cases[op] = [op](Case& c) { c.call(op, {{"self", c.real(c.sizes(3))}, {"other", 1.5}}); };
  }
  cases["aten::add.Tensor: alpha"] = [](Case& c) {
    const auto shape = c.sizes(3);
    c.call("aten::add.Tensor",
           {{"self", c.real(shape)}, {"other", c.real(shape)}, {"alpha", -0.5}});
  };
  cases["aten::where.self"] = [](Case& c) {
    const auto shape = c.sizes(3);
    c.call("aten::where.self", {{"condition", c.booleans(broadcastable(c, shape))},
                                {"self", c.real(shape)},
                                {"other", c.real(broadcastable(c, shape))}});
  };
  cases["aten::masked_fill.Scalar"] = [](Case& c) {
    const auto shape = c.sizes(3);
    c.call(
        "aten::masked_fill.Scalar",
        {{"self", c.real(shape)}, {"mask", c.booleans(broadcastable(c, shape))}, {"value", 2.0}});
  };
  cases["aten::lerp.Scalar"] = [](Case& c) {
    const auto shape = c.sizes(3);
    c.call("aten::lerp.Scalar",
           {{"self", c.real(shape)}, {"end", c.real(shape)}, {"weight", 0.25}});
  };
  cases["aten::threshold_backward"] =
      gradient("aten::threshold_backward", {{"threshold", int64_t{0}}});
  cases["aten::gelu_backward"] = gradient("aten::gelu_backward");
  cases["aten::silu_backward"] = gradient("aten::silu_backward");
  cases["aten::mish_backward"] = gradient("aten::mish_backward");
  cases["aten::hardswish_backward"] = gradient("aten::hardswish_backward");
  cases["aten::hardsigmoid_backward"] = gradient("aten::hardsigmoid_backward");
  cases["aten::sigmoid_backward"] = gradient("aten::sigmoid_backward", {}, "output");
  cases["aten::tanh_backward"] = gradient("aten::tanh_backward", {}, "output");
  cases["aten::leaky_relu_backward"] =
      gradient("aten::leaky_relu_backward", {{"negative_slope", 0.1}, {"self_is_result", false}});
  cases["aten::elu_backward"] =
      gradient("aten::elu_backward",
               {{"alpha", 1.0}, {"scale", 1.0}, {"input_scale", 1.0}, {"is_result", false}},
               "self_or_result");
  cases["aten::hardtanh_backward"] =
      gradient("aten::hardtanh_backward", {{"min_val", -0.5}, {"max_val", 0.5}});
  cases["aten::softplus_backward"] =
      gradient("aten::softplus_backward", {{"beta", 1.0}, {"threshold", 20.0}});
  cases["aten::_prelu_kernel_backward"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    const auto grad = c.real(shape);
    const auto self = c.real(shape);
    c.call("aten::_prelu_kernel_backward",
           {{"grad_output", grad}, {"self", self}, {"weight", c.real(shape, false)}}, 2);
  };
  cases["aten::log_sigmoid_forward"] = [](Case& c) {
    c.call("aten::log_sigmoid_forward", {{"self", c.real(c.sizes(3, 1))}}, 2);
  };
  cases["aten::glu"] = [](Case& c) {
    auto shape = c.sizes(4, 1);
    const auto at = c.any(0, static_cast<int64_t>(shape.size()) - 1);
    shape[at] *= 2;
    c.call("aten::glu", {{"self", c.real(shape)},
                         {"dim", c.either_way(at, static_cast<int64_t>(shape.size()))}});
  };
  cases["aten::glu_backward"] = [](Case& c) {
    auto shape = c.sizes(4, 1), half = shape;
    const auto at = c.any(0, static_cast<int64_t>(shape.size()) - 1);
    shape[at] *= 2;
    c.call("aten::glu_backward",
           {{"grad_output", c.real(half)}, {"self", c.real(shape)}, {"dim", at}});
  };
  cases["perigee::cast"] = [](Case& c) {
    const auto shape = c.sizes(3);
    const auto low =
        c.typed("perigee::cast", {{"self", c.real(shape, false)}}, {{DType::float32, shape}})[0];
    c.typed("perigee::cast", {{"self", low}}, {{DType::float64, shape}});
  };
  cases["perigee::cast: of a Partial"] = [](Case& c) {
    // Casting down each part would round otherwise than casting the sum.
    const auto shape = c.sizes(3);
    c.typed("perigee::cast", {{"self", c.real(shape)}}, {{DType::int64, shape}});
  };
  cases["perigee::dropout"] = [](Case& c) {
    const auto shape = c.sizes(4);
    c.typed("perigee::dropout", {{"self", c.real(shape)}, {"p", 0.4}, {"key", int64_t{3}}},
            {real_type(shape)});
  };
  cases["perigee::random"] = [](Case& c) {
    const auto shape = c.sizes(4);
    const auto noise = c.typed(
        "perigee::random",
        {{"kind", std::string("uniform")}, {"key", int64_t{5}}, {"low", 0.0}, {"high", 1.0}},
        {real_type(shape)})[0];
    c.call("aten::mul.Tensor", {{"self", c.real(shape)}, {"other", noise}});
  };
  cases["perigee::full"] = [](Case& c) {
    const auto shape = c.sizes(4);
    const auto twos = c.typed("perigee::full", {{"value", 2.0}}, {real_type(shape)})[0];
    c.call("aten::add.Tensor", {{"self", c.real(shape)}, {"other", twos}});
  };
}

void products(Cases& cases) {
  cases["aten::mm"] = [](Case& c) {
    const auto m = c.size(), k = c.size(), n = c.size();
    c.call("aten::mm", {{"self", c.real({m, k})}, {"mat2", c.real({k, n})}});
  };
  cases["aten::bmm"] = [](Case& c) {
    const auto b = c.size(), m = c.size(), k = c.size(), n = c.size();
    c.call("aten::bmm", {{"self", c.real({b, m, k})}, {"mat2", c.real({b, k, n})}});
  };
  cases["aten::mv"] = [](Case& c) {
    const auto m = c.size(), k = c.size();
    c.call("aten::mv", {{"self", c.real({m, k})}, {"vec", c.real({k})}});
  };
  cases["aten::dot"] = [](Case& c) {
    const auto k = c.size();
    c.call("aten::dot", {{"self", c.real({k})}, {"tensor", c.real({k})}});
  };
  cases["aten::addmm"] = [](Case& c) {
    const auto m = c.size(), k = c.size(), n = c.size();
    Args args = {{"self", c.real(broadcastable(c, {m, n}))},
                 {"mat1", c.real({m, k})},
                 {"mat2", c.real({k, n})}};
    if (c.coin()) args.emplace_back("beta", 0.5);
    if (c.coin()) args.emplace_back("alpha", 2.0);
    c.call("aten::addmm", args);
  };
  cases["aten::addmv"] = [](Case& c) {
    const auto m = c.size(), k = c.size();
    c.call("aten::addmv",
           {{"self", c.real({c.coin() ? m : 1})}, {"mat", c.real({m, k})}, {"vec", c.real({k})}});
  };
  cases["aten::baddbmm"] = [](Case& c) {
    const auto b = c.size(), m = c.size(), k = c.size(), n = c.size();
    c.call("aten::baddbmm", {{"self", c.real(broadcastable(c, {b, m, n}))},
                             {"batch1", c.real({b, m, k})},
                             {"batch2", c.real({b, k, n})},
                             {"beta", 0.5}});
  };
  cases["aten::_cdist_forward"] = [](Case& c) {
    const auto b = c.size(), m = c.size(), n = c.size(), d = c.size();
    c.call("aten::_cdist_forward", {{"x1", c.real({b, m, d})},
                                    {"x2", c.real({b, n, d})},
                                    {"p", 2.0},
                                    {"compute_mode", int64_t{2}}});
  };
  cases["aten::_cdist_backward"] = [](Case& c) {
    const auto b = c.size(), m = c.size(), n = c.size(), d = c.size();
    const auto x1 = c.real({b, m, d}, false), x2 = c.real({b, n, d}, false);
    const auto distance =
        c.call("aten::_cdist_forward",
               {{"x1", x1}, {"x2", x2}, {"p", 2.0}, {"compute_mode", int64_t{2}}})[0];
    c.call("aten::_cdist_backward",
           {{"grad", c.real({b, m, n})}, {"x1", x1}, {"x2", x2}, {"p", 2.0}, {"cdist", distance}});
  };
}

// Some dims, from the front or the back, at least one.
Ints some_dims(Case& c, int64_t rank) {
  Ints dims;
  for (int64_t d = 0; d < rank; ++d) {
    if (c.coin()) dims.push_back(c.either_way(d, rank));
  }
  if (dims.empty()) dims.push_back(c.either_way(c.any(0, rank - 1), rank));
  return dims;
}

Build reduce_some(const char* op, const char* argument = "dim", Args more = {}) {
  return [=](Case& c) {
    const auto shape = c.sizes(4, 1);
    Args args = {{"self", c.real(shape)}};
    args.insert(args.end(), more.begin(), more.end());
    args.emplace_back(argument, some_dims(c, static_cast<int64_t>(shape.size())));
    args.emplace_back("keepdim", c.coin());
    c.call(op, args);
  };
}

Build reduce_one(const char* op, int results = 1, Args more = {}, bool keepdim = true) {
  return [=](Case& c) {
    const auto shape = c.sizes(4, 1);
    const auto rank = static_cast<int64_t>(shape.size());
    Args args = {{"self", c.real(shape)}};
    args.insert(args.end(), more.begin(), more.end());
    args.emplace_back("dim", c.either_way(c.any(0, rank - 1), rank));
    if (keepdim) args.emplace_back("keepdim", c.coin());
    c.call(op, args, results);
  };
}

void reductions(Cases& cases) {
  for (const char* op : {"aten::sum", "aten::mean", "aten::max", "aten::min", "aten::prod",
                         "aten::argmax", "aten::argmin"}) {
    cases[op] = [op](Case& c) { c.call(op, {{"self", c.real(c.sizes(4, 1))}}); };
  }
  for (const char* op : {"aten::sum.dim_IntList", "aten::mean.dim", "aten::amax", "aten::amin",
                         "aten::logsumexp", "aten::nansum"}) {
    cases[op] = reduce_some(op);
  }
  cases["aten::linalg_vector_norm"] =
      reduce_some("aten::linalg_vector_norm", "dim", {{"ord", 3.0}});
  cases["aten::norm.ScalarOpt_dim"] = reduce_some("aten::norm.ScalarOpt_dim", "dim", {{"p", 2.0}});
  cases["aten::norm.Scalar"] = [](Case& c) {
    c.call("aten::norm.Scalar", {{"self", c.real(c.sizes(3))}, {"p", 2.0}});
  };
  cases["aten::norm.ScalarOpt_dim_dtype"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    c.call("aten::norm.ScalarOpt_dim_dtype", {{"self", c.real(shape)},
                                              {"p", 2.0},
                                              {"dim", Ints{-1}},
                                              {"keepdim", true},
                                              {"dtype", DType::float64}});
  };
  for (const char* op : {"aten::var.correction", "aten::std.correction"}) {
    cases[op] = reduce_some(op, "dim", {{"correction", 0.0}});
  }
  for (const char* op : {"aten::var_mean.correction", "aten::std_mean.correction"}) {
    cases[op] = [op](Case& c) {
      const auto shape = c.sizes(4, 1);
      c.call(op,
             {{"self", c.real(shape)},
              {"dim", some_dims(c, static_cast<int64_t>(shape.size()))},
              {"correction", 0.0}},
             2);
    };
  }
  for (const char* op : {"aten::all", "aten::any"}) {
    cases[op] = [op](Case& c) { c.call(op, {{"self", c.booleans(c.sizes(3))}}); };
    const auto dims = std::string(op) + ".dims", dim = std::string(op) + ".dim";
    cases[dims] = [dims](Case& c) {
      const auto shape = c.sizes(3, 1);
      c.call(dims, {{"self", c.booleans(shape)}, {"dim", Ints{-1}}, {"keepdim", true}});
    };
    cases[dim] = [dim](Case& c) {
      const auto shape = c.sizes(3, 1);
      c.call(dim, {{"self", c.booleans(shape)}, {"dim", int64_t{0}}});
    };
  }
  cases["aten::count_nonzero.dim_IntList"] = [](Case& c) {
    const auto shape = c.sizes(3, 1);
    c.call(
        "aten::count_nonzero.dim_IntList",
        {{"self", c.booleans(shape)}, {"dim", some_dims(c, static_cast<int64_t>(shape.size()))}});
  };
  cases["aten::count_nonzero"] = [](Case& c) {
    c.call("aten::count_nonzero", {{"self", c.integers(c.sizes(3), 0, 2)}});
  };
  for (const char* op : {"aten::max.dim", "aten::min.dim", "aten::median.dim",
                         "aten::nanmedian.dim", "aten::mode"}) {
    cases[op] = reduce_one(op, 2);
  }
  cases["aten::prod.dim_int"] = reduce_one("aten::prod.dim_int");
  cases["aten::argmax: dim"] = reduce_one("aten::argmax");
  cases["aten::kthvalue"] = reduce_one("aten::kthvalue", 2, {{"k", int64_t{1}}});
  cases["aten::mode: no dim"] = [](Case& c) {
    c.call("aten::mode", {{"self", c.real(c.sizes(3, 1))}}, 2);
  };
  for (const char* op : {"aten::cumsum", "aten::cumprod", "aten::logcumsumexp"}) {
    cases[op] = reduce_one(op, 1, {}, false);
  }
  for (const char* op : {"aten::cummax", "aten::cummin"}) cases[op] = reduce_one(op, 2, {}, false);
  cases["aten::sort"] = reduce_one("aten::sort", 2, {}, false);
  cases["aten::sort.stable"] = reduce_one("aten::sort.stable", 2, {{"stable", true}}, false);
  cases["aten::argsort"] = reduce_one("aten::argsort", 1, {}, false);
  cases["aten::topk"] = reduce_one("aten::topk", 2, {{"k", int64_t{1}}}, false);
  cases["aten::topk: no dim"] = [](Case& c) {
    c.call("aten::topk", {{"self", c.real(c.sizes(3, 1))}, {"k", int64_t{1}}}, 2);
  };
  for (const char* op : {"aten::_softmax", "aten::_log_softmax"}) {
    cases[op] = [op](Case& c) {
      const auto shape = c.sizes(4, 1);
      const auto rank = static_cast<int64_t>(shape.size());
      c.call(op, {{"self", c.real(shape)},
                  {"dim", c.either_way(c.any(0, rank - 1), rank)},
                  {"half_to_float", false}});
    };
  }
  for (const char* op : {"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"}) {
    cases[op] = [op](Case& c) {
      const auto shape = c.sizes(4, 1);
      const auto rank = static_cast<int64_t>(shape.size());
      c.call(op, {{"grad_output", c.real(shape)},
                  {"output", c.real(shape)},
                  {"dim", c.either_way(c.any(0, rank - 1), rank)},
                  {"input_dtype", DType::float64}});
    };
  }
}

// Runs forward and, with what it saved, backward.
void norms(Cases& cases) {
  cases["aten::native_layer_norm"] = [](Case& c) {
    auto shape = c.sizes(4, 1);
    const auto count = c.any(1, static_cast<int64_t>(shape.size()));
    const Shape normalized(shape.end() - count, shape.end());
    const auto input = c.real(shape, false);
    const bool weight = c.coin(0.7);
    Args args = {{"input", input}, {"normalized_shape", normalized}};
    if (weight) args.emplace_back("weight", c.real(normalized, false));
    if (weight && c.coin()) args.emplace_back("bias", c.real(normalized));
    args.emplace_back("eps", 1e-5);
    const auto saved = c.call("aten::native_layer_norm", args, 3);
    Args back = {{"grad_out", c.real(shape)},
                 {"input", input},
                 {"normalized_shape", normalized},
                 {"mean", saved[1]},
                 {"rstd", saved[2]}};
    if (weight) back.emplace_back("weight", c.real(normalized, false));
    if (weight) back.emplace_back("bias", c.real(normalized, false));
    back.emplace_back("output_mask", std::vector<bool>{true, weight, weight});
    c.call("aten::native_layer_norm_backward", back, 3);
  };
  cases["aten::native_group_norm"] = [](Case& c) {
    const int64_t n = c.size(), groups = c.any(1, 3), channels = groups * c.any(1, 3);
    const Shape shape = {n, channels, c.size(), c.size()};
    const int64_t space = shape[2] * shape[3];
    const auto input = c.real(shape, false);
    const auto weight = c.real({channels}, false);
    const auto saved = c.call("aten::native_group_norm",
                              {{"input", input},
                               {"weight", weight},
                               {"bias", c.real({channels})},
                               {"N", n},
                               {"C", channels},
                               {"HxW", space},
                               {"group", groups},
                               {"eps", 1e-5}},
                              3);
    c.call("aten::native_group_norm_backward",
           {{"grad_out", c.real(shape)},
            {"input", input},
            {"mean", saved[1]},
            {"rstd", saved[2]},
            {"weight", weight},
            {"N", n},
            {"C", channels},
            {"HxW", space},
            {"group", groups},
            {"output_mask", std::vector<bool>{true, true, true}}},
           3);
  };
  cases["perigee::rms_norm"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    const Shape last = {shape.back()};
    auto rows = shape;
    rows.back() = 1;
    const bool weighted = c.coin();
    const auto self = c.real(shape, false);
    const auto weight = weighted ? c.real(last, false) : ValueId{};
    const auto saved =
        c.typed("perigee::rms_norm", {{"self", self}, {"weight", weight}, {"eps", 1e-6}},
                {real_type(shape), real_type(rows)});
    std::vector<TensorType> types = {real_type(shape)};
    if (weighted) types.push_back(real_type(last));
    c.typed("perigee::rms_norm_backward",
            {{"grad", c.real(shape)}, {"self", self}, {"weight", weight}, {"rstd", saved[1]}},
            types);
  };
  const auto batch_norm = [](const char* op, bool running, bool training) {
    return [=](Case& c) {
      Shape shape = {c.size() + 1, c.size()};
      for (int d = static_cast<int>(c.any(0, 2)); d > 0; --d) shape.push_back(c.size());
      const Shape channels = {shape[1]};
      const auto input = c.real(shape);
      const bool weighted = c.coin(0.8);
      Args args = {{"input", input}};
      if (weighted) args.emplace_back("weight", c.real(channels, false));
      if (weighted) args.emplace_back("bias", c.real(channels));
      ValueId mean, var;
      if (running) {
        mean = c.real(channels, false);
        var = c.positive(channels);
        args.emplace_back("running_mean", mean);
        args.emplace_back("running_var", var);
      }
      const std::string name = op;
      const bool always = name.ends_with("_no_training");
      if (!always) args.emplace_back("training", training);
      args.emplace_back("momentum", 0.2);
      args.emplace_back("eps", 1e-3);
      const bool functional = name.ends_with("_functional");
      const auto saved = c.call(op, args, functional ? 5 : 3);
      Args back = {{"grad_out", c.real(shape)}, {"input", input}};
      if (weighted) back.emplace_back("weight", c.real(channels, false));
      if (running) {
        back.emplace_back("running_mean", mean);
        back.emplace_back("running_var", var);
      }
      if (training) {
        back.emplace_back("save_mean", saved[1]);
        back.emplace_back("save_invstd", saved[2]);
      }
      back.emplace_back("train", training);
      back.emplace_back("eps", 1e-3);
      back.emplace_back("output_mask", std::vector<bool>{c.coin(0.8), weighted, weighted});
      c.call("aten::native_batch_norm_backward", back, 3);
    };
  };
  const char* functional = "aten::_native_batch_norm_legit_functional";
  cases[functional] = batch_norm(functional, true, true);
  cases[std::string(functional) + ": evaluation"] = batch_norm(functional, true, false);
  cases["aten::_native_batch_norm_legit.no_stats"] =
      batch_norm("aten::_native_batch_norm_legit.no_stats", false, true);
  cases["aten::_native_batch_norm_legit_no_training"] =
      batch_norm("aten::_native_batch_norm_legit_no_training", true, false);
}

void losses(Cases& cases) {
  const auto over_classes = [](bool nll) {
    return [nll](Case& c) {
      const int64_t n = c.size(), classes = c.size() + 1, ignored = c.coin() ? -100 : 0;
      Shape logits = {n, classes}, labels = {n};
      if (nll && c.coin()) {
        logits.push_back(c.size());
        labels.push_back(logits.back());
      }
      const auto x = c.real(logits, false);
      auto target = at::randint(0, classes, labels, at::kLong);
      if (c.coin()) target.masked_fill_(at::rand(labels) > 0.6, ignored);
      const auto y = c.given(target);
      const auto weight = c.coin() ? c.positive({classes}) : ValueId{};
      const auto types = std::vector<TensorType>{real_type(labels), real_type(labels)};
      if (nll) {
        c.typed("perigee::nll",
                {{"self", x}, {"target", y}, {"weight", weight}, {"ignore_index", ignored}},
                {types[0]});
        c.typed("perigee::nll_backward",
                {{"grad", c.real(labels)},
                 {"self", x},
                 {"target", y},
                 {"weight", weight},
                 {"ignore_index", ignored}},
                {real_type(logits)});
      } else {
        const auto saved = c.typed("perigee::cross_entropy",
                                   {{"logits", x},
                                    {"target", y},
                                    {"weight", weight},
                                    {"ignore_index", ignored},
                                    {"label_smoothing", 0.1}},
                                   types);
        c.typed("perigee::cross_entropy_backward",
                {{"grad", c.real(labels)},
                 {"logits", x},
                 {"target", y},
                 {"logsumexp", saved[1]},
                 {"weight", weight},
                 {"ignore_index", ignored},
                 {"label_smoothing", 0.1}},
                {real_type(logits)});
      }
      const auto sum = c.typed(
          "perigee::label_weight",
          {{"target", y}, {"weight", weight}, {"ignore_index", ignored}, {"dtype", DType::float64}},
          {real_type({})})[0];
      c.typed("perigee::step_average", {{"self", sum}}, {real_type({})});
    };
  };
  cases["perigee::cross_entropy"] = over_classes(false);
  cases["perigee::nll"] = over_classes(true);
  struct Loss {
    const char* op;
    Args more;
  };
  for (const auto& [op, more] :
       {Loss{"aten::mse_loss", {}}, Loss{"aten::smooth_l1_loss", {{"beta", 0.7}}},
        Loss{"aten::huber_loss", {{"delta", 0.7}}}, Loss{"aten::soft_margin_loss", {}},
        Loss{"aten::binary_cross_entropy", {}}}) {
    cases[op] = [op = std::string(op), more = more](Case& c) {
      const auto shape = c.sizes(3);
      const bool probability = op == "aten::binary_cross_entropy";
      const auto self =
          probability ? c.given(at::rand(shape, at::kDouble) * 0.8 + 0.1) : c.real(shape);
      const auto target =
          probability ? c.given(at::rand(shape, at::kDouble)) : c.real(shape, false);
      const auto reduction = c.any(0, 2);
      Args args = {{"self", self}, {"target", target}};
      if (probability && c.coin()) args.emplace_back("weight", c.positive(shape));
      if (reduction != 1) args.emplace_back("reduction", reduction);
      args.insert(args.end(), more.begin(), more.end());
      c.call(op, args);
      args.insert(args.begin(), {"grad_output", c.real(reduction == 0 ? shape : Shape{})});
      if (reduction == 1 && !probability) args.emplace_back("reduction", reduction);
      c.call(op + "_backward", args);
    };
  }
}

}  // namespace

void add_math_cases(Cases& cases) {
  elementwise(cases);
  products(cases);
  reductions(cases);
  norms(cases);
  losses(cases);
}

}  // namespace perigee::parity
