// Cases of normalisation and losses.
#include "tests/parity/rules/support_parts.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using graph::DType;
using graph::TensorType;
using graph::ValueId;

// Runs forward and, with the saved values, backward.
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
    // The same with an addition before the norm, and after its gradient.
    auto with_sum = args;
    with_sum[0] = {"self", input};
    with_sum.insert(with_sum.begin() + 1, {"other", c.real(shape, false)});
    auto rows = shape;
    std::fill(rows.end() - count, rows.end(), 1);
    c.typed("perigee::add_layer_norm", with_sum,
            {real_type(shape), real_type(shape), real_type(rows), real_type(rows)});
    back.emplace_back("other", c.real(shape));
    std::vector<TensorType> types = {real_type(shape)};
    if (weight) types.insert(types.end(), 2, real_type(normalized));
    // The gradient in another type, and the sum of its rows.
    if (weight && count == 1) types.insert(types.end(), {real_type(shape), real_type(normalized)});
    c.typed("perigee::layer_norm_backward_add", back, types);
  };
  cases["perigee::gelu_backward_sum"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    Args args = {{"grad_output", c.real(shape)}, {"self", c.real(shape, false)}};
    if (c.coin()) args.emplace_back("approximate", std::string("tanh"));
    c.typed("perigee::gelu_backward_sum", args, {real_type(shape), real_type({shape.back()})});
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
    const auto saved = c.typed("perigee::rms_norm",
                               {{"self", self}, {"weight", weight}, {"eps", 1e-6}},
                               {real_type(shape), real_type(rows)});
    std::vector<TensorType> types = {real_type(shape)};
    if (weighted) types.push_back(real_type(last));
    c.typed("perigee::rms_norm_backward",
            {{"grad", c.real(shape)}, {"self", self}, {"weight", weight}, {"rstd", saved[1]}},
            types);
    c.typed("perigee::add_rms_norm",
            {{"self", self}, {"other", c.real(shape, false)}, {"weight", weight}, {"eps", 1e-6}},
            {real_type(shape), real_type(shape), real_type(rows)});
    if (weighted) types.insert(types.end(), {real_type(shape), real_type(last)});
    c.typed("perigee::rms_norm_backward_add",
            {{"grad", c.real(shape)},
             {"self", self},
             {"weight", weight},
             {"rstd", saved[1]},
             {"other", c.real(shape)}},
            types);
  };
  cases["perigee::rotary"] = [](Case& c) {
    auto shape = c.sizes(4, 2);
    shape.back() *= 2;
    const Shape angles(shape.end() - 2, shape.end());
    const auto cos = c.real(angles), sin = c.real(angles);
    c.typed("perigee::rotary", {{"self", c.real(shape)}, {"cos", cos}, {"sin", sin}},
            {real_type(shape)});
    c.typed("perigee::rotary_backward", {{"grad", c.real(shape)}, {"cos", cos}, {"sin", sin}},
            {real_type(shape)});
  };
  cases["perigee::swiglu"] = [](Case& c) {
    const auto shape = c.sizes(4);
    const auto gate = c.real(shape), up = c.real(shape);
    c.typed("perigee::swiglu", {{"gate", gate}, {"up", up}}, {real_type(shape)});
    c.typed("perigee::swiglu_backward", {{"grad", c.real(shape)}, {"gate", gate}, {"up", up}},
            {real_type(shape), real_type(shape)});
  };
  cases["perigee::fp8"] = [](Case& c) {
    const auto shape = c.sizes(4);
    const TensorType scalar{DType::float32, {}};
    const Shape length = {c.size()};
    const auto self = c.real(shape);
    const auto amax = c.typed("perigee::fp8_amax", {{"self", self}}, {scalar})[0];
    const auto history = c.typed("perigee::fp8_history",
                                 {{"self", c.positive(length)}, {"amax", amax}},
                                 {real_type(length)})[0];
    const auto scale = c.typed("perigee::fp8_scale",
                               {{"amax", c.coin() ? history : amax},
                                {"format", std::string("e4m3")},
                                {"margin", c.any(0, 2)},
                                {"most_recent", c.coin()}},
                               {scalar})[0];
    c.typed("perigee::fp8", {{"self", self}, {"scale", scale}, {"format", std::string("e5m2")}},
            {real_type(shape)});
    c.typed("perigee::fp8_cast_amax",
            {{"self", self}, {"scale", scale}, {"format", std::string("e4m3")}},
            {{DType::float8_e4m3, shape}, scalar});
    c.typed("perigee::fp8_held",
            {{"self", c.positive({2})}, {"scale", scale}, {"interval", c.any(1, 3)}},
            {scalar, real_type({2})});
  };
  cases["aten::_scaled_mm"] = [](Case& c) {
    // Sums of a few numbers of four bits are exact in any order.
    const auto one = c.given(at::ones({}, at::kFloat));
    const bool of_rows = c.coin();  // factors have a scale for each row, powers of two
    const auto scales = [&](const Shape& shape) {
      return of_rows ? c.given(at::pow(2.0, at::randint(-2, 3, shape)).to(at::kFloat)) : one;
    };
    const auto factor = [&](const Shape& shape) {
      return c.typed("perigee::fp8_cast",
                     {{"self", c.real(shape)}, {"scale", one}, {"format", std::string("e4m3")}},
                     {{DType::float8_e4m3, shape}})[0];
    };
    const bool fits = c.coin();  // ranks' parts are multiplied in their own precision, else widened
    const auto m = c.size(), n = fits ? int64_t{96} : c.size(), k = fits ? int64_t{96} : c.size();
    const auto a = factor({m, k}), b = factor({k, n});
    c.typed("aten::_scaled_mm",
            {{"self", a},
             {"mat2", b},
             {"scale_a", scales({m, 1})},
             {"scale_b", scales({1, n})},
             {"out_dtype", DType::float32}},
            {{DType::float32, {m, n}}});
  };
  cases["perigee::fp8_rows"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    const auto self = c.real(shape);
    TensorType magnitudes{DType::float32, shape};
    const auto dim = c.any(0, static_cast<int64_t>(shape.size()) - 1);
    magnitudes.shape[static_cast<size_t>(dim)] = 1;
    const auto amax = c.typed("perigee::fp8_amax_rows", {{"self", self}, {"dim", dim}},
                              {magnitudes})[0];
    c.typed(
        "perigee::fp8_rows",
        {{"self", self}, {"amax", amax}, {"format", std::string("e4m3")}, {"margin", c.any(0, 2)}},
        {real_type(shape)});
  };
  cases["perigee::fp8_cast_rows"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    const auto self = c.real(shape);
    TensorType magnitudes{DType::float32, shape};
    magnitudes.shape.back() = 1;
    Args args = {{"self", self}};
    if (c.coin()) {
      args.emplace_back("amax",
                        c.typed("perigee::fp8_amax_rows",
                                {{"self", self}, {"dim", std::ssize(shape) - 1}}, {magnitudes})[0]);
    }
    args.emplace_back("format", std::string("e4m3"));
    args.emplace_back("margin", c.any(0, 2));
    c.typed("perigee::fp8_cast_rows", args, {{DType::float8_e4m3, shape}, magnitudes});
  };
  cases["perigee::fp8_blocks"] = [](Case& c) {
    const auto shape = c.sizes(4, 1);
    c.typed("perigee::fp8_blocks",
            {{"self", c.real(shape)},
             {"format", std::string("e4m3")},
             {"dim", c.any(0, static_cast<int64_t>(shape.size()) - 1)},
             {"block", c.any(1, 4)},
             {"margin", int64_t{0}}},
            {real_type(shape)});
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
  cases["aten::native_batch_norm"] = batch_norm("aten::native_batch_norm", true, false);
  cases["aten::_native_batch_norm_legit.no_stats"] = batch_norm(
      "aten::_native_batch_norm_legit.no_stats", false, true);
  cases["aten::_native_batch_norm_legit_no_training"] = batch_norm(
      "aten::_native_batch_norm_legit_no_training", true, false);
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
      const double smoothing = c.coin() ? 0.1 : 0.0;
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
                                    {"label_smoothing", smoothing}},
                                   types);
        c.typed("perigee::cross_entropy_backward",
                {{"grad", c.real(labels)},
                 {"logits", x},
                 {"target", y},
                 {"logsumexp", saved[1]},
                 {"weight", weight},
                 {"ignore_index", ignored},
                 {"label_smoothing", smoothing}},
                {real_type(logits)});
      }
      const auto sum = c.typed(
          "perigee::label_weight",
          {{"target", y}, {"weight", weight}, {"ignore_index", ignored}, {"dtype", DType::float64}},
          {real_type({})})[0];
      c.typed("perigee::step_average", {{"self", sum}}, {real_type({})});
      c.typed("perigee::step_share", {{"self", sum}}, {real_type({})});
      c.typed("perigee::reduction", {{"self", sum}, {"kind", std::string("sum")}}, {real_type({})});
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
      const auto self = probability ? c.given(at::rand(shape, at::kDouble) * 0.8 + 0.1)
                                    : c.real(shape);
      const auto target = probability ? c.given(at::rand(shape, at::kDouble))
                                      : c.real(shape, false);
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

void logits(Cases& cases) {
  cases["aten::binary_cross_entropy_with_logits"] = [](Case& c) {
    const auto shape = c.sizes(2, 2);
    const auto reduction = c.any(0, 2);
    Args args = {{"self", c.real(shape)}, {"target", c.real(shape, false)}};
    if (reduction == 0 && c.coin()) args.emplace_back("weight", c.positive({shape[0], 1}));
    if (reduction == 0 && c.coin()) args.emplace_back("pos_weight", c.positive({shape[1]}));
    if (reduction != 1) args.emplace_back("reduction", reduction);
    c.call("aten::binary_cross_entropy_with_logits", args);
  };
}

}  // namespace

void add_norm_cases(Cases& cases) {
  norms(cases);
  losses(cases);
  logits(cases);
}

}  // namespace perigee::parity
