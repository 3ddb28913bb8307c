// Kernels of norms, and of GELU's gradient with the sum of its rows.
#include <string>

#include "exec/kernels/kernels.h"
#include "exec/tensor.h"
#include "tests/exec/close.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using graph::DType;

TEST_CASE("rms norm's kernels equal the reference") {
  const auto type = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const bool weighted = GENERATE(true, false);
  const int64_t n = GENERATE(7, 64);
  const auto x = at::randn({3, 5, n}, type), g = at::randn({3, 5, n}, type),
             w = at::randn({n}, type);
  const auto dtype = dtype_of(type);
  const auto wide = type == at::kDouble ? DType::float64 : DType::float32;
  Named in = {{"self", x}};
  if (weighted) in.emplace_back("weight", w);
  const auto [fast, slow] = both("perigee::rms_norm", in, {{"eps", 1e-5}},
                                 {{dtype, {3, 5, n}}, {wide, {3, 5, 1}}});
  require_close(fast, slow, tolerance_of(type));
  in.insert(in.begin(), {"grad", g});
  in.emplace_back("rstd", slow[1]);
  std::vector<graph::TensorType> types = {{dtype, {3, 5, n}}};
  if (weighted) types.push_back({dtype, {n}});
  const auto [d_fast, d_slow] = both("perigee::rms_norm_backward", in, {}, types);
  require_close(d_fast, d_slow, tolerance_of(type));
}

TEST_CASE("GELU's gradient and the sum of its rows equal LibTorch's in float64") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const std::string form = GENERATE("none", "tanh");
  const int64_t rows = GENERATE(0, 1, 15, 70), n = GENERATE(1, 16, 37, 100, 2000);
  const auto x = at::randn({rows, n}).to(type), grad = at::randn({rows, n}).to(type);
  const auto d = call(cpu_kernel, "perigee::gelu_backward_sum",
                      {{"grad_output", grad}, {"self", x}}, {{"approximate", form}},
                      {{dtype_of(type), {rows, n}}, {dtype_of(type), {n}}});
  const auto gradient = at::gelu_backward(grad.to(at::kDouble), x.to(at::kDouble), form);
  require_close({d[0]}, {gradient.to(type)}, type == at::kFloat ? 1e-5 : 1e-2);
  // A sum of 70 rounded numbers.
  require_close({d[1]}, {gradient.sum(0).to(type)}, type == at::kFloat ? 1e-4 : 5e-2);
}

TEST_CASE("gradients are the same where another one is not needed") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const graph::TensorType rows{dtype_of(type), {5, 16}}, row{dtype_of(type), {16}};
  const auto x = at::randn({5, 16}).to(type), y = at::randn({5, 16}).to(type),
             grad = at::randn({5, 16}).to(type), weight = at::randn({16}).to(type);
  struct Case {
    std::string op;
    Named tensors;
    std::vector<graph::TensorType> types;
  };
  const auto& [op, tensors, types] = GENERATE_COPY(
      Case{"perigee::swiglu_backward", {{"grad", grad}, {"gate", x}, {"up", y}}, {rows, rows}},
      Case{"perigee::gelu_backward_sum", {{"grad_output", grad}, {"self", x}}, {rows, row}},
      Case{"perigee::rms_norm_backward",
           {{"grad", grad}, {"self", x}, {"weight", weight}, {"rstd", at::rand({5, 1})}},
           {rows, row}});
  const auto all = call(cpu_kernel, op, tensors, {}, types);
  for (size_t without = 0; without < types.size(); ++without) {
    INFO(op << " without its result " << without);
    Op part{.name = op, .args = {}, .outputs = {types.begin(), types.end()}};
    part.outputs[without].reset();
    std::vector<at::Tensor> operands, results(types.size());
    for (const auto& [name, tensor] : tensors) {
      part.args.emplace_back(name, graph::ValueId{static_cast<int32_t>(operands.size())});
      operands.push_back(tensor);
    }
    cpu_kernel(part)(operands, results, {});
    CHECK(at::equal(results[1 - without], all[1 - without]));
  }
}

TEST_CASE("norms of a sum, and gradients with an addition, equal two ops in float64") {
  const auto type = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const auto added = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  if (added != type && (type != at::kFloat || added != at::kBFloat16)) return;
  const bool weighted = GENERATE(true, false);
  const std::string norm = GENERATE("rms", "layer");
  const int64_t rows = GENERATE(0, 15), n = GENERATE(7, 64);
  INFO(norm << " norm, " << type << " + " << added << ", " << rows << " x " << n);
  const bool layer = norm == "layer";
  const auto dtype = dtype_of(type);
  const auto wide = type == at::kDouble ? DType::float64 : DType::float32;
  const std::vector<int64_t> shape = {3, rows, n}, last = {n};
  const graph::TensorType row{wide, {3, rows, 1}};
  // A mean that is large beside the deviations from it.
  const auto x = at::randn(shape, type) + 10, other = at::randn(shape, added);
  const auto g = at::randn(shape, type);
  Named weights;
  if (weighted) weights.emplace_back("weight", at::randn(last, type));
  if (weighted && layer) weights.emplace_back("bias", at::randn(last, type));
  Args forward = {{"eps", 1e-5}}, backward;
  if (layer) {
    forward.insert(forward.begin(), {"normalized_shape", last});
    backward = {{"normalized_shape", last},
                {"output_mask", std::vector<bool>{true, weighted, weighted}}};
  }
  const auto call_op = [](auto kernel, const std::string& op, const Named& in, const Named& more,
                          const Args& args, std::vector<graph::TensorType> types) {
    auto all = in;
    all.insert(all.end(), more.begin(), more.end());
    if (kernel == &reference_kernel) {
      for (auto& [name, tensor] : all) tensor = tensor.to(at::kDouble);
      for (auto& result : types) result.dtype = DType::float64;
    }
    return call(kernel, op, all, args, types);
  };
  const auto rounded = [](std::vector<at::Tensor> list,
                          const std::vector<graph::TensorType>& types) {
    for (size_t i = 0; i < list.size(); ++i) list[i] = list[i].to(scalar_type(types[i].dtype));
    return list;
  };

  std::vector<graph::TensorType> types = {{dtype, shape}, row};
  if (layer) types.push_back(row);
  auto both_types = types;
  both_types.insert(both_types.begin(), {dtype, shape});
  auto made = call_op(&cpu_kernel, "perigee::add_" + norm + "_norm",
                      {{"self", x}, {"other", other}}, weights, forward, both_types);
  const auto sum = made[0];
  REQUIRE(sum.equal((x + other).to(type)));
  made.erase(made.begin());
  const std::string op = layer ? "aten::native_layer_norm" : "perigee::rms_norm";
  const auto expected = call_op(&reference_kernel, op, {{layer ? "input" : "self", sum}}, weights,
                                forward, types);
  require_close(made, rounded(expected, types), tolerance_of(type));

  types = {{dtype, shape}};
  for (size_t i = 0; i < weights.size(); ++i) types.push_back({dtype, last});
  Named saved = {{layer ? "grad_out" : "grad", g}, {layer ? "input" : "self", sum}};
  if (layer) saved.emplace_back("mean", made[1]);
  saved.emplace_back("rstd", made[layer ? 2 : 1]);
  auto gradients = call_op(&reference_kernel, op + "_backward", saved, weights, backward, types);
  gradients[0] = gradients[0] + other.to(at::kDouble);
  saved.emplace_back("other", other);
  const auto fast = call_op(&cpu_kernel, "perigee::" + norm + "_norm_backward_add", saved, weights,
                            backward, types);
  // Sums over up to 45 rows.
  require_close(fast, rounded(gradients, types), 4 * tolerance_of(type));
}

TEST_CASE("gradients of norms are rounded as a cast rounds them, and their rows are summed") {
  const bool layer = GENERATE(true, false);
  const auto low = GENERATE(DType::bfloat16, DType::float16);
  const bool summed = GENERATE(true, false);
  const int64_t rows = GENERATE(0, 1, 40), n = GENERATE(5, 64, 771);
  const graph::TensorType wide{DType::float32, {rows, n}}, vector{DType::float32, {n}};
  const auto make = [&] { return at::randn({rows, n}); };
  Named in = {{layer ? "grad_out" : "grad", make()},
              {layer ? "input" : "self", make()},
              {"rstd", at::rand({rows, 1})},
              {"other", make()},
              {"weight", at::randn({n})}};
  Args args;
  std::vector<graph::TensorType> types = {wide, vector};
  if (layer) {
    in.insert(in.end(), {{"mean", at::randn({rows, 1})}, {"bias", at::randn({n})}});
    args = {{"normalized_shape", std::vector<int64_t>{n}},
            {"output_mask", std::vector<bool>{true, true, true}}};
    types.push_back(vector);
  }
  const auto op = std::string("perigee::") + (layer ? "layer" : "rms") + "_norm_backward_add";
  // float16 is the reference's.
  const auto plain = low == DType::float16 ? call(reference_kernel, op, in, args, types)
                                           : call(cpu_kernel, op, in, args, types);
  types.push_back({low, {rows, n}});
  if (summed) types.push_back({low, {n}});
  const auto made = call(cpu_kernel, op, in, args, types);
  REQUIRE(made.size() == types.size());
  for (size_t i = 0; i < plain.size(); ++i) CHECK(made[i].equal(plain[i]));
  const auto rounded = plain[0].to(scalar_type(low));
  CHECK(made[plain.size()].equal(rounded));
  if (!summed) return;
  CHECK(made.back().scalar_type() == scalar_type(low));
  require_close({made.back()}, {rounded.to(at::kDouble).sum(0).to(scalar_type(low))}, 1e-2);
}

TEST_CASE("layer norm of several dims equals LibTorch's in float64") {
  const auto x = at::randn({5, 3, 8}), other = at::randn({5, 3, 8});
  const auto w = at::randn({3, 8}), b = at::randn({3, 8}), g = at::randn({5, 3, 8});
  const std::vector<int64_t> last = {3, 8};
  const graph::TensorType whole{DType::float32, {5, 3, 8}}, row{DType::float32, {5, 1, 1}};
  const auto made = call(cpu_kernel, "perigee::add_layer_norm",
                         {{"self", x}, {"other", other}, {"weight", w}, {"bias", b}},
                         {{"normalized_shape", last}, {"eps", 1e-5}}, {whole, whole, row, row});
  const auto sum = (x + other).to(at::kDouble);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const auto [y, mean, rstd] = at::native_layer_norm(sum, last, wide(w), wide(b), 1e-5);
  const auto narrow = [](const at::Tensor& t) { return t.to(at::kFloat); };
  require_close(made, {narrow(sum), narrow(y), narrow(mean), narrow(rstd)}, 1e-5);
  const auto [d, d_weight, d_bias] = at::native_layer_norm_backward(
      wide(g), sum, last, mean, rstd, wide(w), wide(b), {true, true, true});
  const auto back = call(
      cpu_kernel, "perigee::layer_norm_backward_add",
      {{"grad_out", g},
       {"input", made[0]},
       {"mean", made[2]},
       {"rstd", made[3]},
       {"weight", w},
       {"bias", b},
       {"other", other}},
      {{"normalized_shape", last}, {"output_mask", std::vector<bool>{true, true, true}}},
      {whole, {DType::float32, last}, {DType::float32, last}});
  require_close(back, {narrow(d + wide(other)), narrow(d_weight), narrow(d_bias)}, 1e-5);
}

TEST_CASE("layer norm beside weights of another type is that of float32, rounded") {
  const auto [type, vectors] = GENERATE(std::pair(at::kBFloat16, at::kFloat),
                                        std::pair(at::kHalf, at::kFloat),
                                        std::pair(at::kFloat, at::kBFloat16));
  const std::vector<int64_t> last = {8};
  const auto some = [](std::vector<int64_t> shape, at::ScalarType of) {
    return at::randn(shape).to(of);
  };
  const auto x = some({5, 8}, type), g = some({5, 8}, type);
  const auto w = some({8}, vectors), b = some({8}, vectors);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const auto [y, mean, rstd] = at::native_layer_norm(wide(x), last, wide(w), wide(b), 1e-5);
  const auto [d, d_weight, d_bias] = at::native_layer_norm_backward(
      wide(g), wide(x), last, mean, rstd, wide(w), wide(b), {true, true, true});
  const graph::TensorType whole{dtype_of(type), {5, 8}}, row{DType::float32, {5, 1}},
      vector{dtype_of(vectors), last};
  for (const auto kernel : {cpu_kernel, reference_kernel}) {
    const auto made = call(kernel, "aten::native_layer_norm",
                           {{"input", x}, {"weight", w}, {"bias", b}},
                           {{"normalized_shape", last}, {"eps", 1e-5}}, {whole, row, row});
    const auto narrow = mean.to(at::kFloat), factors = rstd.to(at::kFloat);
    require_close(made, {y.to(type), narrow, factors}, tolerance_of(at::kBFloat16));
    const auto back = call(
        kernel, "aten::native_layer_norm_backward",
        {{"grad_out", g},
         {"input", x},
         {"mean", narrow},
         {"rstd", factors},
         {"weight", w},
         {"bias", b}},
        {{"normalized_shape", last}, {"output_mask", std::vector<bool>{true, true, true}}},
        {whole, vector, vector});
    require_close(back, {d.to(type), d_weight.to(vectors), d_bias.to(vectors)},
                  tolerance_of(at::kBFloat16));
  }
}

TEST_CASE("norms in float32 round their result, and read upstream gradients, as casts would") {
  const bool layer = GENERATE(true, false), adds = GENERATE(true, false);
  const auto low = GENERATE(DType::bfloat16, DType::float16);
  const int64_t rows = GENERATE(1, 9), columns = GENERATE(5, 64, 771);
  const graph::TensorType wide{DType::float32, {rows, columns}}, narrow{low, {rows, columns}},
      row{DType::float32, {rows, 1}}, vector{DType::float32, {columns}};
  const auto x = at::randn({rows, columns}), other = at::randn({rows, columns});
  const auto type = scalar_type(low);
  Named weights = {{"weight", at::randn({columns})}};
  Args forward = {{"eps", 1e-5}}, backward;
  if (layer) {
    weights.emplace_back("bias", at::randn({columns}));
    forward.emplace_back("normalized_shape", std::vector<int64_t>{columns});
    backward = {{"normalized_shape", std::vector<int64_t>{columns}},
                {"output_mask", std::vector<bool>{true, true, true}}};
  }
  const std::string name = layer ? "layer_norm" : "rms_norm",
                    plain = layer ? "aten::native_layer_norm" : "perigee::rms_norm";
  Named operands = {{layer && !adds ? "input" : "self", x}};
  if (adds) operands.emplace_back("other", other);
  operands.insert(operands.end(), weights.begin(), weights.end());
  const auto results = [&](const graph::TensorType& y) {
    std::vector<graph::TensorType> types = {y, row};
    if (layer) types.push_back(row);
    if (adds) types.insert(types.begin(), wide);
    return call(cpu_kernel, adds ? "perigee::add_" + name : plain, operands, forward, types);
  };
  const auto made = results(wide), rounded_once = results(narrow);
  const size_t at = adds ? 1 : 0;
  // The reference, which computes float16, adds in another order.
  const auto same = [&](const at::Tensor& a, const at::Tensor& b) {
    const double most = low == DType::bfloat16 ? 0 : 2e-3;
    return a.scalar_type() == b.scalar_type() && at::allclose(a, b, most, most);
  };
  CHECK(same(rounded_once[at], made[at].to(type)));
  for (size_t i = 0; i < made.size(); ++i) CHECK((i == at || same(rounded_once[i], made[i])));

  const auto upstream = at::randn({rows, columns}).to(type);
  const auto gradients = [&](const at::Tensor& g) {
    Named saved = {{layer ? "grad_out" : "grad", g}, {layer ? "input" : "self", x}};
    if (layer) saved.emplace_back("mean", made[at + 1]);
    saved.emplace_back("rstd", made.back());
    if (adds) saved.emplace_back("other", other);
    saved.insert(saved.end(), weights.begin(), weights.end());
    std::vector<graph::TensorType> types = {wide, vector};
    if (layer) types.push_back(vector);
    return call(cpu_kernel, adds ? "perigee::" + name + "_backward_add" : plain + "_backward",
                saved, backward, types);
  };
  const auto from_low = gradients(upstream), from_wide = gradients(upstream.to(at::kFloat));
  for (size_t i = 0; i < from_wide.size(); ++i) CHECK(same(from_low[i], from_wide[i]));
}

}  // namespace
}  // namespace perigee::exec
