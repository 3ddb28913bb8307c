// Cases of element-wise ops, products and reductions.
#include "tests/parity/rules/support_parts.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using graph::DType;
using graph::TensorType;
using graph::ValueId;
using Ints = std::vector<int64_t>;

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

// grad_output (may be Partial) and the values that the backward pass reads.
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
  cases["aten::masked_fill.Scalar: self broadcasts"] = [](Case& c) {
    const auto shape = c.sizes(3);
    c.call(
        "aten::masked_fill.Scalar",
        {{"self", c.real(broadcastable(c, shape))}, {"mask", c.booleans(shape)}, {"value", 2.0}});
  };
  cases["aten::lerp.Scalar"] = [](Case& c) {
    const auto shape = c.sizes(3);
    c.call("aten::lerp.Scalar",
           {{"self", c.real(shape)}, {"end", c.real(shape)}, {"weight", 0.25}});
  };
  cases["aten::threshold_backward"] = gradient("aten::threshold_backward",
                                               {{"threshold", int64_t{0}}});
  cases["aten::gelu_backward"] = gradient("aten::gelu_backward");
  cases["aten::silu_backward"] = gradient("aten::silu_backward");
  cases["aten::mish_backward"] = gradient("aten::mish_backward");
  cases["aten::hardswish_backward"] = gradient("aten::hardswish_backward");
  cases["aten::hardsigmoid_backward"] = gradient("aten::hardsigmoid_backward");
  cases["aten::sigmoid_backward"] = gradient("aten::sigmoid_backward", {}, "output");
  cases["aten::tanh_backward"] = gradient("aten::tanh_backward", {}, "output");
  cases["aten::leaky_relu_backward"] = gradient(
      "aten::leaky_relu_backward", {{"negative_slope", 0.1}, {"self_is_result", false}});
  cases["aten::elu_backward"] = gradient(
      "aten::elu_backward",
      {{"alpha", 1.0}, {"scale", 1.0}, {"input_scale", 1.0}, {"is_result", false}},
      "self_or_result");
  cases["aten::hardtanh_backward"] = gradient("aten::hardtanh_backward",
                                              {{"min_val", -0.5}, {"max_val", 0.5}});
  cases["aten::softplus_backward"] = gradient("aten::softplus_backward",
                                              {{"beta", 1.0}, {"threshold", 20.0}});
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
    const auto low = c.typed("perigee::cast", {{"self", c.real(shape, false)}},
                             {{DType::float32, shape}})[0];
    c.typed("perigee::cast", {{"self", low}}, {{DType::float64, shape}});
  };
  cases["perigee::cast: of a Partial"] = [](Case& c) {
    // Casting each part rounds differently from casting the sum.
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
    const auto distance = c.call(
        "aten::_cdist_forward",
        {{"x1", x1}, {"x2", x2}, {"p", 2.0}, {"compute_mode", int64_t{2}}})[0];
    // "grad" in LibTorch 2.11, "grad_output" in 2.15.
    const auto schema = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_cdist_backward", "");
    const auto& grad = schema.schema().arguments()[0].name();
    c.call("aten::_cdist_backward",
           {{grad, c.real({b, m, n})}, {"x1", x1}, {"x2", x2}, {"p", 2.0}, {"cdist", distance}});
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
  cases["aten::linalg_vector_norm"] = reduce_some("aten::linalg_vector_norm", "dim",
                                                  {{"ord", 3.0}});
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

}  // namespace

void add_math_cases(Cases& cases) {
  elementwise(cases);
  products(cases);
  reductions(cases);
}

}  // namespace perigee::parity
