// Random ops become perigee::random with a key of their own: uniform, normal, bernoulli, integer
// and exponential numbers, and ops on these.
#include <ATen/ATen.h>

#include <limits>
#include <unordered_map>

#include "base/fail.h"
#include "capture/device/dtype.h"
#include "capture/record/canonical.h"

namespace perigee::tracing {
namespace {

using Ids = std::vector<graph::ValueId>;

graph::ValueId draw(Session& session, const char* kind, Arguments parameters,
                    const graph::TensorType& type) {
  Arguments arguments{{"kind", std::string(kind)}, {"key", session.next_random_key()}};
  for (auto& parameter : parameters) arguments.push_back(std::move(parameter));
  return session.emit_one("perigee::random", std::move(arguments), type);
}

graph::ValueId uniform(Session& session, const graph::TensorType& type, double low, double high) {
  return draw(session, "uniform", {{"low", low}, {"high", high}}, type);
}

graph::ValueId normal(Session& session, const graph::TensorType& type, double mean, double std) {
  return draw(session, "normal", {{"mean", mean}, {"std", std}}, type);
}

constexpr uint64_t kMostIntegers = uint64_t{1} << 32;  // of a range, as in exec/ops/philox.h

graph::ValueId integer(Session& session, const graph::TensorType& type, int64_t low, int64_t high) {
  if (high > low && static_cast<uint64_t>(high) - static_cast<uint64_t>(low) > kMostIntegers) {
    fail(
        "capture",
        "random integers have a range of at most 2^32, but got [{}, {}){}: give random_ or randint "
        "closer limits",
        low, high, session.where());
  }
  return draw(session, "integer", {{"low", low}, {"high", high}}, type);
}

Ids rand(Session& s, const Recorded& call) { return {uniform(s, result_type(call), 0, 1)}; }
Ids randn(Session& s, const Recorded& call) { return {normal(s, result_type(call), 0, 1)}; }

// (self, from, to)
Ids uniform_between(Session& s, const Recorded& call) {
  return {uniform(s, result_type(call), call.values.number(1), call.values.number(2))};
}

// (self, mean, std)
Ids normal_like(Session& s, const Recorded& call) {
  return {normal(s, result_type(call), call.values.number(1), call.values.number(2))};
}

// normal(mean, std) with numbers.
Ids normal_numbers(Session& s, const Recorded& call) {
  return {normal(s, result_type(call), call.values.number(0), call.values.number(1))};
}

// normal(mean, std) with a tensor in either place: mean + std * n.
Ids normal_tensors(Session& s, const Recorded& call) {
  const auto type = result_type(call);
  auto value = normal(s, type, 0, 1);
  if (call.values[1].isTensor()) {
    const auto std = operand(s, call, call.values.tensor(1));
    value = s.emit_one("aten::mul.Tensor", {{"self", value}, {"other", std}}, type);
  } else if (const double std = call.values.number(1); std != 1) {
    value = s.emit_one("aten::mul.Scalar", {{"self", value}, {"other", std}}, type);
  }
  if (call.values[0].isTensor()) {
    const auto mean = operand(s, call, call.values.tensor(0));
    value = s.emit_one("aten::add.Tensor", {{"self", value}, {"other", mean}}, type);
  } else if (const double mean = call.values.number(0); mean != 0) {
    value = s.emit_one("aten::add.Scalar", {{"self", value}, {"other", mean}}, type);
  }
  return {value};
}

Ids bernoulli(Session& s, const Recorded& call) {
  return {draw(s, "bernoulli", {{"p", call.values.number(1)}}, result_type(call))};
}

// The probabilities are a tensor, argument P: u < p.
template <size_t P>
Ids bernoulli_tensor(Session& s, const Recorded& call) {
  const auto type = result_type(call);
  const auto p = operand(s, call, call.values.tensor(P));
  // A 16-bit number would be a multiple of 1/256 or 1/2048.
  const auto wide = s.graph.type(p).dtype == graph::DType::float64 ? graph::DType::float64
                                                                   : graph::DType::float32;
  const auto u = uniform(s, {wide, type.shape}, 0, 1);
  const auto below = s.emit_one("aten::lt.Tensor", {{"self", u}, {"other", p}},
                                {graph::DType::boolean, type.shape});
  return {converted(s, below, type)};
}

template <size_t High>
Ids randint(Session& s, const Recorded& call) {
  return {integer(s, result_type(call), 0, call.values.integer(High))};
}

template <size_t Low>
Ids randint_between(Session& s, const Recorded& call) {
  return {integer(s, result_type(call), call.values.integer(Low), call.values.integer(Low + 1))};
}

// One more than the largest integer that every value below can be in the dtype.
int64_t integers_of(const at::Tensor& like) {
  switch (like.scalar_type()) {
    case at::kDouble:
      return (int64_t{1} << 53) + 1;
    case at::kFloat:
      return (int64_t{1} << 24) + 1;
    case at::kHalf:
      return (int64_t{1} << 11) + 1;
    case at::kBFloat16:
      return (int64_t{1} << 8) + 1;
    case at::kLong:
      return std::numeric_limits<int64_t>::max();
    case at::kInt:
      return int64_t{1} << 31;
    case at::kShort:
      return int64_t{1} << 15;
    case at::kByte:
      return int64_t{1} << 8;
    case at::kBool:
      return 2;
    default:
      return int64_t{1} << 7;
  }
}

Ids random_all(Session& s, const Recorded& call) {
  return {integer(s, result_type(call), 0, integers_of(call.results[0]))};
}

// (self, from, to?)
Ids random_from(Session& s, const Recorded& call) {
  const auto high = call.values[2].isNone() ? integers_of(call.results[0]) : call.values.integer(2);
  return {integer(s, result_type(call), call.values.integer(1), high)};
}

// (self, rate)
Ids exponential(Session& s, const Recorded& call) {
  const auto type = result_type(call);
  auto value = draw(s, "exponential", {}, type);
  if (const double rate = call.values.number(1); rate != 1) {
    value = s.emit_one("aten::mul.Scalar", {{"self", value}, {"other", 1 / rate}}, type);
  }
  return {value};
}

// (self, mean, std) of the logarithm
Ids log_normal(Session& s, const Recorded& call) {
  return {s.emit_one("aten::exp", {{"self", normal_like(s, call)[0]}}, result_type(call))};
}

// Without replacement, or one draw: the largest of p / e, with e exponential (as LibTorch does).
Ids multinomial(Session& s, const Recorded& call) {
  const auto self = call.values.tensor(0);
  const int64_t samples = call.values.integer(1);
  if (call.values.boolean(2) && samples > 1) {
    fail("capture",
         "multinomial draws without replacement, or one sample, but got {} with "
         "replacement{}",
         samples, s.where());
  }
  const auto type = type_of(self);
  const auto e = draw(s, "exponential", {}, type);
  const auto ratio = s.emit_one("aten::div.Tensor", {{"self", s.value_of(self)}, {"other", e}},
                                type);
  auto values = result_type(call);
  values.dtype = type.dtype;
  return {s.emit("aten::topk", {{"self", ratio}, {"k", samples}}, {values, result_type(call)})[1]};
}

// (input, p, train?) -> output, the elements that are kept
Ids native_dropout(Session& s, const Recorded& call) {
  const auto self = s.value_of(call.values.tensor(0));
  const auto type = result_type(call), mask = type_of(call.results[1]);
  const double p = call.values.number(1);
  if (!call.values[2].isNone() && !call.values.boolean(2)) {
    return {self, s.emit_one("perigee::full", {{"value", true}}, mask)};
  }
  const auto kept = draw(s, "bernoulli", {{"p", 1 - p}}, type);
  const auto product = s.emit_one("aten::mul.Tensor", {{"self", self}, {"other", kept}}, type);
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  return {s.emit_one("aten::mul.Scalar", {{"self", product}, {"other", scale}}, type),
          converted(s, kept, mask)};
}

}  // namespace

Canonical find_random(const std::string& name) {
  static const auto& table = *new std::unordered_map<std::string_view, Canonical>{
      {"aten::rand", rand},
      {"aten::rand.generator", rand},
      {"aten::rand_like", rand},
      {"aten::rand_like.generator", rand},
      {"aten::randn", randn},
      {"aten::randn.generator", randn},
      {"aten::randn_like", randn},
      {"aten::randn_like.generator", randn},
      {"aten::uniform", uniform_between},
      {"aten::normal_functional", normal_like},
      {"aten::normal.float_float", normal_numbers},
      {"aten::normal.Tensor_float", normal_tensors},
      {"aten::normal.float_Tensor", normal_tensors},
      {"aten::normal.Tensor_Tensor", normal_tensors},
      {"aten::bernoulli", bernoulli_tensor<0>},
      {"aten::bernoulli.Tensor", bernoulli_tensor<1>},
      {"aten::bernoulli.p", bernoulli},
      {"aten::randint", randint<0>},
      {"aten::randint.generator", randint<0>},
      {"aten::randint.low", randint_between<0>},
      {"aten::randint.low_generator", randint_between<0>},
      {"aten::randint_like", randint<1>},
      {"aten::randint_like.low_dtype", randint_between<1>},
      {"aten::random", random_all},
      {"aten::random.to", randint<1>},
      {"aten::random.from", random_from},
      {"aten::exponential", exponential},
      {"aten::log_normal", log_normal},
      {"aten::multinomial", multinomial},
      {"aten::native_dropout", native_dropout},
  };
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace perigee::tracing
