// Kernels at odd sizes, on views that begin between aligned addresses, and on empty tensors.
#include <cmath>
#include <limits>

#include "exec/tensor.h"
#include "tests/cuda/support.h"

namespace perigee::exec {
namespace {

using graph::DType;

// Returns a random tensor whose memory begins one element after that of its buffer.
at::Tensor shifted(const std::vector<int64_t>& shape, at::ScalarType type) {
  int64_t n = 1;
  for (auto size : shape) n *= size;
  return at::randn({n + 1}, at::kDouble).to(type).narrow(0, 1, n).view(shape);
}

TEST_CASE("kernels with a row per block take any number of rows and columns") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto dtype = dtype_of(type);
  const int64_t rows = GENERATE(0, 1, 5), columns = GENERATE(1, 2, 31, 255, 257, 1025, 4099);
  seed(6);
  const Types norm = {{dtype, {rows, columns}}, {DType::float32, {rows, 1}}};
  const auto x = shifted({rows, columns}, type), weight = shifted({columns}, type);
  same_everywhere("perigee::rms_norm", {{"self", x}, {"weight", weight}}, {{"eps", 1e-5}}, norm,
                  tolerance(type));
  same_everywhere("perigee::rms_norm_backward",
                  {{"grad", shifted({rows, columns}, type)},
                   {"self", x},
                   {"rstd", at::rand({rows, 1})},
                   {"weight", weight}},
                  {}, {{dtype, {rows, columns}}, {dtype, {columns}}}, tolerance(type));
  // Operands that begin at other bytes of 16 than the results, or all at the same.
  const bool alike = GENERATE(false, true);
  const auto other = alike ? shifted({rows, columns}, type) : at::randn({rows, columns}).to(type);
  same_everywhere("perigee::add_rms_norm", {{"self", x}, {"other", other}, {"weight", weight}},
                  {{"eps", 1e-5}}, {norm[0], norm[0], norm[1]}, 2 * tolerance(type));
  same_everywhere(
      "perigee::add_rms_norm",  // only the summand begins at other bytes
      {{"self", x.clone()}, {"other", shifted({rows, columns}, type)}, {"weight", weight}},
      {{"eps", 1e-5}}, {norm[0], norm[0], norm[1]}, 2 * tolerance(type));
  same_everywhere("perigee::rms_norm_backward_add",
                  {{"grad", shifted({rows, columns}, type)},
                   {"self", x},
                   {"rstd", at::rand({rows, 1})},
                   {"weight", weight},
                   {"other", other}},
                  {}, {{dtype, {rows, columns}}, {dtype, {columns}}}, 2 * tolerance(type));
  const Args layer = {{"normalized_shape", std::vector<int64_t>{columns}}, {"eps", 1e-5}};
  const auto bias = shifted({columns}, type);
  same_everywhere("aten::native_layer_norm", {{"input", x}, {"weight", weight}, {"bias", bias}},
                  layer, {norm[0], norm[1], norm[1]}, 2 * tolerance(type));
  // A summand of the low precision, too.
  for (const auto& summand : {other, other.to(at::kBFloat16)}) {
    same_everywhere("perigee::add_layer_norm",
                    {{"self", x}, {"other", summand}, {"weight", weight}, {"bias", bias}}, layer,
                    {norm[0], norm[0], norm[1], norm[1]}, 4 * tolerance(type));
  }
  const Args masked = {{"normalized_shape", std::vector<int64_t>{columns}},
                       {"output_mask", std::vector<bool>{true, true, true}}};
  const auto layer_norm_gradient = [&](const at::Tensor& upstream) {
    same_everywhere("perigee::layer_norm_backward_add",
                    {{"grad_out", upstream},
                     {"input", x},
                     {"mean", at::randn({rows, 1})},
                     {"rstd", at::rand({rows, 1})},
                     {"weight", weight},
                     {"bias", bias},
                     {"other", other}},
                    masked, {{dtype, {rows, columns}}, {dtype, {columns}}, {dtype, {columns}}},
                    4 * tolerance(type));
  };
  layer_norm_gradient(shifted({rows, columns}, type));
  // Rows of 16 bits beside float32.
  for (const auto half : {at::kBFloat16, at::kHalf}) {
    if (type != at::kFloat) break;
    const auto low = dtype_of(half);
    const auto upstream = alike ? shifted({rows, columns}, half)
                                : at::randn({rows, columns}).to(half);
    same_everywhere("perigee::rms_norm", {{"self", x}, {"weight", weight}}, {{"eps", 1e-5}},
                    {{low, {rows, columns}}, norm[1]}, tolerance(half));
    same_everywhere(
        "perigee::rms_norm_backward",
        {{"grad", upstream}, {"self", x}, {"rstd", at::rand({rows, 1})}, {"weight", weight}}, {},
        {{dtype, {rows, columns}}, {dtype, {columns}}}, tolerance(type));
    same_everywhere("perigee::add_layer_norm",
                    {{"self", x}, {"other", upstream}, {"weight", weight}, {"bias", bias}}, layer,
                    {norm[0], {low, {rows, columns}}, norm[1], norm[1]}, 4 * tolerance(half));
    layer_norm_gradient(upstream);
  }
  auto target = at::randint(columns, {rows}, at::kLong);
  if (rows > 1) target[1] = -100;
  const Args loss = {{"ignore_index", int64_t{-100}}, {"label_smoothing", 0.1}};
  same_everywhere("perigee::cross_entropy", {{"logits", x}, {"target", target}}, loss,
                  {{dtype, {rows}}, {DType::float32, {rows}}}, tolerance(type));
  same_everywhere("perigee::cross_entropy_backward",
                  {{"grad", shifted({rows}, type)},
                   {"logits", x},
                   {"target", target},
                   {"logsumexp", at::logsumexp(x.to(at::kFloat), {1})}},
                  loss, {{dtype, {rows, columns}}}, tolerance(type));
}

TEST_CASE("gradients of norms take rows of packs at any address, and round and sum them") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool layer = GENERATE(true, false), aligned = GENERATE(true, false);
  // Several parts; rows of one, two and three packs a thread, and of more than four.
  const auto [rows, columns] = GENERATE(
      table<int64_t, int64_t>({{66, 8}, {2, 1024}, {2, 1032}, {2, 2056}, {2, 4104}, {1, 8200}}));
  const auto low = GENERATE(DType::bfloat16, DType::float16);
  const bool rounds = type == at::kFloat;
  if (!rounds && low == DType::float16) return;
  seed(8);
  const auto dtype = dtype_of(type);
  const auto make = [&](const std::vector<int64_t>& shape, at::ScalarType of) {
    return aligned ? at::randn(shape, at::kDouble).to(of) : shifted(shape, of);
  };
  Named in = {{layer ? "input" : "self", make({rows, columns}, type)},
              {"rstd", at::rand({rows, 1})},
              {"other", make({rows, columns}, type)},
              {"weight", make({columns}, type)}};
  Args args;
  Types types = {{dtype, {rows, columns}}, {dtype, {columns}}};
  if (layer) {
    in.insert(in.end(), {{"mean", at::randn({rows, 1})}, {"bias", make({columns}, type)}});
    args = {{"normalized_shape", std::vector<int64_t>{columns}},
            {"output_mask", std::vector<bool>{true, true, true}}};
    types.push_back({dtype, {columns}});
  }
  if (rounds) types.insert(types.end(), {{low, {rows, columns}}, {low, {columns}}});
  // The upstream gradient in the type of the rows, also at another address, or of their rounded gradients.
  const auto compare_with = [&](const at::Tensor& upstream) {
    auto all = in;
    all.insert(all.begin(), {layer ? "grad_out" : "grad", upstream});
    same_everywhere(std::string("perigee::") + (layer ? "layer" : "rms") + "_norm_backward_add",
                    all, args, types, rounds ? 2e-2 : 0.3);
  };
  compare_with(make({rows, columns}, type));
  if (aligned) compare_with(shifted({rows, columns}, type));
  if (rounds) compare_with(make({rows, columns}, scalar_type(low)));
}

// Compares a cast to eight bits that makes the largest magnitude, too; `shape`: of the magnitude.
void cast_with_magnitude(const at::Tensor& self, const std::vector<int64_t>& shape) {
  same_everywhere("perigee::fp8_cast_amax", {{"self", self}, {"scale", at::full({}, 37.0f)}},
                  {{"format", std::string("e5m2")}},
                  {{DType::float8_e5m2, self.sizes().vec()}, {DType::float32, shape}}, 0);
}

TEST_CASE("casts to eight bits take any shape, by rows and by columns, and magnitudes any size") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t rows = GENERATE(0, 1, 63, 130), columns = GENERATE(1, 16, 65, 200);
  const bool aligned = GENERATE(true, false);
  seed(13);
  const auto made = shifted({rows, columns}, type);
  const auto x = aligned ? made.clone() : made;
  for (const auto& self : {x, x.t()}) {
    same_everywhere("perigee::fp8_cast", {{"self", self}, {"scale", at::full({}, 37.0f)}},
                    {{"format", std::string("e4m3")}}, {{DType::float8_e4m3, self.sizes().vec()}},
                    0);
    same_everywhere("perigee::fp8_amax", {{"self", self}}, {}, {{DType::float32, {}}}, 0);
    cast_with_magnitude(self, {1});
  }
  if (rows < 2) return;
  auto bad = x.clone();
  bad[1][0] = std::nan("");
  same_everywhere("perigee::fp8_amax", {{"self", bad}}, {}, {{DType::float32, {1}}}, 0);
  cast_with_magnitude(bad, {});
}

TEST_CASE("casts of rows to eight bits take any shape, by rows and by columns") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t rows = GENERATE(0, 1, 63, 130), columns = GENERATE(0, 1, 16, 65, 600);
  const bool aligned = GENERATE(true, false);
  const bool wide = aligned == (type == at::kFloat);  // each format with each type
  seed(14);
  const std::string format = wide ? "e5m2" : "e4m3";
  const auto narrow = wide ? DType::float8_e5m2 : DType::float8_e4m3;
  const auto compare = [&](const at::Tensor& self) {
    const std::vector<int64_t> shape = {self.size(0), 1};
    const Types types = {{narrow, self.sizes().vec()}, {DType::float32, shape}};
    same_everywhere("perigee::fp8_amax_rows", {{"self", self}}, {{"dim", int64_t{1}}},
                    {{DType::float32, shape}}, 0);
    same_everywhere("perigee::fp8_cast_rows", {{"self", self}},
                    {{"format", format}, {"margin", int64_t{1}}}, types, 0);
    same_everywhere("perigee::fp8_cast_rows",
                    {{"self", self}, {"amax", at::rand(shape) + 1}},  // some numbers saturate
                    {{"format", format}, {"margin", int64_t{0}}}, types, 0);
  };
  const auto made = shifted({rows, columns}, type);
  auto x = aligned ? made.clone() : made;
  for (const auto& self : {x, x.t()}) compare(self);
  if (rows < 63 || columns < 16) return;
  x[1].zero_();  // scale 1
  x[2][15] = std::nan("");
  x[62][3] = 1e-30;   // in float32 and bfloat16
  x[3].fill_(1e-38);  // whose scale is not finite
  x.t()[7].zero_();
  for (const auto& self : {x, x.t()}) compare(self);
}

TEST_CASE("casts to eight bits take the largest magnitude of several pieces from any of them") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  seed(13);
  auto many = at::rand({70001}).to(type);
  many[70000] = -2;  // the last one
  same_everywhere("perigee::fp8_amax", {{"self", many}}, {}, {{DType::float32, {}}}, 0);
  cast_with_magnitude(many, {});
  many[0] = 3;
  cast_with_magnitude(many, {});
  cast_with_magnitude(many.narrow(0, 1, 70000), {});
}

TEST_CASE("SwiGLU takes any number of elements, at any address") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t n = GENERATE(0, 1, 7, 8, 2051, 70000);
  const bool aligned = GENERATE(true, false);
  seed(12);
  const graph::TensorType whole{dtype_of(type), {n}};
  const auto make = [&] {
    const auto made = shifted({n}, type);
    return aligned ? made.clone() : made;
  };
  const auto gate = make(), up = make();
  same_everywhere("perigee::swiglu", {{"gate", gate}, {"up", up}}, {}, {whole}, tolerance(type));
  same_everywhere("perigee::swiglu_backward", {{"grad", make()}, {"gate", gate}, {"up", up}}, {},
                  {whole, whole}, tolerance(type));
}

TEST_CASE("GELU's gradient takes any number of rows, and rows that are not whole pieces") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto dtype = dtype_of(type);
  const int64_t rows = GENERATE(0, 1, 9, 700), columns = GENERATE(8, 31, 256, 1032);
  const bool aligned = GENERATE(true, false);
  seed(10);
  const auto make = [&] {
    const auto made = shifted({rows, columns}, type);
    return aligned ? made.clone() : made;
  };
  const double sums = (type == at::kBFloat16 ? 20 : 3) * tolerance(type);
  same_everywhere("perigee::gelu_backward_sum", {{"grad_output", make()}, {"self", make()}}, {},
                  {{dtype, {rows, columns}}, {dtype, {columns}}}, sums);
}

TEST_CASE(
    "products with GELU take any sizes and layouts, with and without bias and second result") {
  const auto type = GENERATE(at::kBFloat16, at::kHalf);
  const auto dtype = dtype_of(type);
  const int64_t rows = GENERATE(0, 1, 136), inner = GENERATE(40, 31), columns = GENERATE(136, 31);
  seed(14);
  const auto small = [&](std::vector<int64_t> shape) { return at::randn(shape).to(type); };
  const auto by_columns = [](const at::Tensor& t) { return t.t().contiguous().t(); };
  const auto a = small({rows, inner}), b = small({inner, columns}), bias = small({columns});
  const graph::TensorType whole{dtype, {rows, columns}}, vector{dtype, {columns}};
  const double sums = 20 * tolerance(type);
  for (const auto& x : {a, by_columns(a), shifted({rows, inner}, type)}) {
    for (const auto& y : {b, by_columns(b)}) {
      same_everywhere("perigee::mm_gelu", {{"self", x}, {"mat2", y}, {"bias", bias}}, {},
                      {whole, whole}, tolerance(type));
      same_everywhere("perigee::mm_gelu", {{"self", x}, {"mat2", y}}, {}, {whole, whole},
                      tolerance(type));
      same_everywhere("perigee::mm_gelu", {{"self", x}, {"mat2", y}, {"bias", bias}}, {}, {whole},
                      tolerance(type));
      same_everywhere("perigee::mm_gelu", {{"self", x}, {"mat2", y}}, {}, {whole}, tolerance(type));
      const auto pre = small({rows, columns});
      for (const auto& saved : {pre, shifted({rows, columns}, type)}) {
        same_everywhere("perigee::mm_gelu_backward", {{"self", x}, {"mat2", y}, {"pre", saved}}, {},
                        {whole, vector}, sums);
      }
      same_everywhere("perigee::mm_gelu_backward", {{"self", x}, {"mat2", y}, {"pre", pre}}, {},
                      {whole}, sums);
    }
  }
  // Results of more dims than two.
  const graph::TensorType cut{dtype, {1, rows, 1, columns}};
  same_everywhere("perigee::mm_gelu", {{"self", a}, {"mat2", b}, {"bias", bias}}, {}, {cut, whole},
                  tolerance(type));
  same_everywhere("perigee::mm_gelu_backward",
                  {{"self", a}, {"mat2", b}, {"pre", small({1, rows, columns})}}, {}, {cut, vector},
                  sums);
}

TEST_CASE("cross entropy takes logits of any size, minus infinity and NaN") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const int64_t columns = GENERATE(3, 4103);
  const double infinity = std::numeric_limits<double>::infinity();
  auto x = at::zeros({8, columns}, at::kDouble);
  const auto ramp = at::linspace(-300, 300, columns, at::kDouble);
  x[1].copy_(ramp);
  x[2].copy_(ramp.flip(0));
  x[3].fill_(-300);
  x[4].copy_(at::where(ramp < 200, -infinity, ramp));
  x[5].copy_(at::where(ramp > -200, -infinity, ramp));
  x[6].fill_(-infinity);
  x[7][columns - 2] = std::nan("");
  const auto logits = shifted({8, columns}, type).copy_(x);
  const auto wide = type == at::kDouble ? DType::float64 : DType::float32;
  const auto target = at::full({8}, columns - 1, at::kLong);
  same_everywhere("perigee::cross_entropy", {{"logits", logits}, {"target", target}},
                  {{"ignore_index", int64_t{-100}}, {"label_smoothing", 0.0}},
                  {{wide, {8}}, {wide, {8}}}, 3e-5);
}

TEST_CASE("sums over all dims but the last one take any number of rows and columns") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto dtype = dtype_of(type);
  const int64_t rows = GENERATE(0, 255, 256, 1031), columns = GENERATE(1, 8, 264, 520);
  const bool keeps = GENERATE(false, true);
  seed(10);
  // Integers, whose sums are exact.
  const auto integers = [&](std::vector<int64_t> shape) {
    return at::randint(-2, 3, shape, at::kFloat).to(type);
  };
  const Args args = {{"dim", std::vector<int64_t>{0}}, {"keepdim", keeps}};
  const std::vector<int64_t> shape = keeps ? std::vector{int64_t{1}, columns}
                                           : std::vector{columns};
  const auto x = integers({rows, columns});
  same_everywhere("aten::sum.dim_IntList", {{"self", x}}, args, {{dtype, shape}}, 0);
  same_everywhere("aten::sum.dim_IntList", {{"self", shifted({rows, columns}, type).copy_(x)}},
                  args, {{dtype, shape}}, 0);
  same_everywhere("aten::sum.dim_IntList", {{"self", integers({3, rows, columns})}},
                  {{"dim", std::vector<int64_t>{1, 0}}}, {{dtype, {columns}}}, 0);
  same_everywhere("aten::sum.dim_IntList", {{"self", integers({3, rows, columns})}},
                  {{"dim", std::vector<int64_t>{0, 2}}}, {{dtype, {rows}}}, 0);
}

TEST_CASE("large products take any number of rows and columns") {
  const auto type = GENERATE(at::kBFloat16, at::kHalf);
  seed(8);
  const auto a = shifted({509, 515}, type), b = shifted({517, 515}, type).t();
  // Sums of some 500 products; parts of a sum may be rounded before they are added.
  same_everywhere("aten::mm", {{"self", a}, {"mat2", b}}, {}, {{dtype_of(type), {509, 517}}}, 0.05);
  same_everywhere("aten::mm", {{"self", a.t()}, {"mat2", shifted({509, 520}, type)}}, {},
                  {{dtype_of(type), {515, 520}}}, 0.05);
  // Added to a sum of the same precision.
  const auto sum = at::randn({509, 517}).to(type);
  same_everywhere("perigee::addmm_", {{"sum", sum}, {"self", a}, {"mat2", b}}, {}, {}, 0.05);
}

TEST_CASE("a norm takes any number of tensors of any sizes and types") {
  seed(9);
  Named tensors;
  for (int64_t i = 0; i < 70; ++i) {
    const auto type = i < 40 ? at::kFloat : i < 45 ? at::kDouble : at::kBFloat16;
    // Around one and two pieces of a block, at aligned addresses and between them.
    const int64_t n = i % 7 == 0 ? (1 << (13 + i % 4)) + i % 3 - 1 : i % 7 - 1;
    tensors.emplace_back("tensors*", i % 2 ? at::randn({n}).to(type) : shifted({n}, type));
  }
  same_everywhere("perigee::squared_norm", tensors, {}, {{DType::float64, {}}}, 1e-10);
}

TEST_CASE("kernels over all elements take any number of them") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t n = GENERATE(0, 1, 3, 255, 257, 1023, 1025);
  seed(7);
  const auto scalar = [](double value) { return at::full({}, value, at::kDouble); };
  same_everywhere("perigee::adamw_",
                  {{"self", shifted({n}, type)},
                   {"exp_avg", shifted({n}, type)},
                   {"exp_avg_sq", shifted({n}, type).abs()},
                   {"gradient", shifted({n}, type)},
                   {"lr", scalar(1e-2)},
                   {"step", scalar(3)}},
                  {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}, {},
                  tolerance(type));
  same_everywhere("perigee::squared_norm",
                  {{"tensors*", shifted({n}, type)}, {"tensors*", shifted({2, 3}, type)}}, {},
                  {{DType::float64, {}}}, 1e-10);
  const Draw draw = {.seed = 5, .step = 2, .microbatch = 0, .microbatches = 1};
  same_everywhere("perigee::dropout", {{"self", shifted({n}, type)}},
                  {{"p", 0.4},
                   {"key", int64_t{3}},
                   {"global", std::vector<int64_t>{n}},
                   {"begin", std::vector<int64_t>{0}}},
                  {{dtype_of(type), {n}}}, 0, draw);
  const auto scale = at::full({}, 37.0, at::kFloat);
  same_everywhere("perigee::fp8_cast", {{"self", shifted({n}, type)}, {"scale", scale}},
                  {{"format", std::string("e4m3")}}, {{DType::float8_e4m3, {n}}}, 0);
}

TEST_CASE("rotary positions take any number of heads, positions and columns") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto dtype = dtype_of(type);
  const int64_t positions = GENERATE(0, 1, 7, 129), columns = GENERATE(2, 6, 34, 130);
  seed(11);
  const auto angles = GENERATE_COPY(type, at::kFloat);
  const auto cos = shifted({positions, columns}, angles),
             sin = shifted({positions, columns}, angles);
  const auto packed = shifted({2, positions, 3, columns + 3}, type);  // [b, s, h, d]
  for (const auto& x :
       {shifted({2, 3, positions, columns}, type), packed.narrow(3, 1, columns).transpose(1, 2),
        shifted({positions, columns}, type)}) {
    const Types types = {{dtype, x.sizes().vec()}};
    same_everywhere("perigee::rotary", {{"self", x}, {"cos", cos}, {"sin", sin}}, {}, types,
                    tolerance(type));
    same_everywhere("perigee::rotary_backward", {{"grad", x}, {"cos", cos}, {"sin", sin}}, {},
                    types, tolerance(type));
  }
}

TEST_CASE("merged attention takes any number of rows and columns") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t rows = GENERATE(0, 1, 5, 259), columns = GENERATE(1, 9, 65);
  seed(12);
  const auto sums = shifted({2, rows}, at::kFloat);
  if (rows > 1) sums[0][1] = -std::numeric_limits<double>::infinity();
  same_everywhere("perigee::merge_attention",
                  {{"self", shifted({2, rows, columns}, at::kFloat)},
                   {"logsumexp", sums},
                   {"other", shifted({2, rows, columns}, type)},
                   {"other_logsumexp", shifted({2, rows}, at::kFloat)}},
                  {}, {{DType::float32, {2, rows, columns}}, {DType::float32, {2, rows}}},
                  tolerance(type));
}

TEST_CASE("random numbers of a part of any size follow from its place in the tensor") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const int64_t rows = GENERATE(1, 3), columns = GENERATE(0, 1, 5, 257, 1027);
  const Draw draw = {.seed = 8, .step = 5, .microbatch = 2, .microbatches = 3};
  for (const char* kind : {"uniform", "bernoulli"}) {
    same_everywhere("perigee::random", {},
                    {{"kind", std::string(kind)},
                     {"key", int64_t{6}},
                     {"p", 0.3},
                     {"low", 0.0},
                     {"high", 1.0},
                     {"global", std::vector<int64_t>{3 * rows + 2, columns + 3}},
                     {"begin", std::vector<int64_t>{1, 2}}},
                    {{dtype_of(type), {rows, columns}}}, 0, draw);
  }
}

TEST_CASE("gradients of embeddings of any width are added to named rows") {
  const auto type = GENERATE(at::kFloat, at::kDouble);
  const int64_t columns = GENERATE(1, 7, 64), padding = GENERATE(-1, 2);
  seed(14);
  same_everywhere("perigee::embedding_backward_",
                  {{"sum", at::randn({5, columns}, type)},
                   {"grad_output", at::randn({2, 40, columns}, type)},
                   {"indices", at::randint(0, 4, {2, 40}, at::kLong)}},
                  {{"num_weights", int64_t{5}}, {"padding_idx", padding}}, {}, tolerance(type));
}

TEST_CASE("the steps of all elementwise optimizers take any number of elements") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t n = GENERATE(0, 1, 5, 255, 1027);
  seed(13);
  const auto scalar = [](double value) { return at::full({}, value, at::kDouble); };
  const Named moments = {{"self", shifted({n}, type)},
                         {"exp_avg", shifted({n}, type)},
                         {"exp_avg_sq", shifted({n}, type).abs()},
                         {"gradient", shifted({n}, type)},
                         {"lr", scalar(1e-2)},
                         {"step", scalar(3)},
                         {"scale", scalar(0.5)}};
  const Args numbers = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  same_everywhere("perigee::adam_", moments, numbers, {}, tolerance(type));
  if (type == at::kFloat) {
    for (const auto low : {at::kBFloat16, at::kHalf}) {
      auto both = moments;
      both.emplace_back("low", shifted({n}, low));
      same_everywhere("perigee::adamw_", both, numbers, {}, tolerance(type));
    }
  }
  auto one = moments;
  std::erase_if(one, [](const auto& operand) { return operand.first == "exp_avg_sq"; });
  same_everywhere("perigee::lion_", one, {{"weight_decay", 0.1}}, {}, tolerance(type));
  same_everywhere(
      "perigee::sgd_",
      {{"self", shifted({n}, type)},
       {"momentum_buffer", shifted({n}, type)},
       {"gradient", shifted({n}, type)},
       {"lr", scalar(1e-2)},
       {"step", scalar(2)}},
      {{"momentum", 0.9}, {"dampening", 0.1}, {"nesterov", false}, {"weight_decay", 0.1}}, {},
      tolerance(type));
  same_everywhere("perigee::fp8_cast",
                  {{"self", shifted({n}, type)}, {"scale", at::full({}, 3.0, at::kFloat)}},
                  {{"format", std::string("e5m2")}}, {{DType::float8_e5m2, {n}}}, 0);
}

}  // namespace
}  // namespace perigee::exec
