// Canonical form, op by op: sizes only in types, one op for one meaning, no op without effect.
#include "capture/record/canonical.h"

#include <ATen/ATen.h>

#include <unordered_map>

#include "base/fail.h"
#include "capture/device/dtype.h"
#include "capture/device/tensor.h"
#include "capture/device/views.h"

namespace perigee::tracing {
namespace {

using Ids = std::vector<graph::ValueId>;

Ids same(Session& session, const Recorded& call) {
  return {session.value_of(call.values.tensor(0))};
}

Ids reshape(Session& session, const Recorded& call) {
  return {reshaped(session, session.value_of(call.values.tensor(0)), result_type(call).shape)};
}

Ids expand(Session& session, const Recorded& call) {
  return {converted(session, session.value_of(call.values.tensor(0)), result_type(call))};
}

// copy(self, src) and fill.Tensor(self, value): the second operand in the shape of the first.
Ids copy(Session& session, const Recorded& call) {
  return {converted(session, operand(session, call, call.values.tensor(1)), result_type(call))};
}

Ids full(Session& session, const Recorded& call, const at::Scalar& value) {
  const auto type = result_type(call);
  if (value.isComplex()) {
    return {converted(session, complex_number(session, type.dtype, value.toComplexDouble()), type)};
  }
  return {session.emit_one("perigee::full", {{"value", number_for(type.dtype, value)}}, type)};
}

template <int Value>
Ids constant(Session& session, const Recorded& call) {
  return full(session, call, Value);
}

template <size_t Argument>
Ids filled(Session& session, const Recorded& call) {
  return full(session, call, call.values[Argument].toScalar());
}

// slice(self, dim, start, end, step): bounds within the dim; bounds without effect are left out.
Ids slice(Session& session, const Recorded& call) {
  const auto self = call.values.tensor(0);
  const auto value = session.value_of(self);
  if (call.results[0].sizes() == self.sizes() && call.values.integer(4) == 1) return {value};
  const int64_t dim = at::maybe_wrap_dim(call.values.integer(1), self.dim());
  const int64_t size = self.size(dim);
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (call.values[i].isNone()) return otherwise;
    const int64_t at = call.values.integer(i);
    return std::clamp(at < 0 ? at + size : at, int64_t{0}, size);
  };
  Arguments arguments{{"self", value}};
  if (dim != 0) arguments.emplace_back("dim", dim);
  if (const auto start = bound(2, 0); start != 0) arguments.emplace_back("start", start);
  if (const auto end = bound(3, size); end != size) arguments.emplace_back("end", end);
  if (const auto step = call.values.integer(4); step != 1) arguments.emplace_back("step", step);
  return {session.emit_one("aten::slice.Tensor", std::move(arguments), result_type(call))};
}

Ids select(Session& session, const Recorded& call) {
  const auto self = call.values.tensor(0);
  const int64_t dim = at::maybe_wrap_dim(call.values.integer(1), self.dim());
  const int64_t index = call.values.integer(2);
  return {session.emit_one("aten::select.int",
                           {{"self", session.value_of(self)},
                            {"dim", dim},
                            {"index", index < 0 ? index + self.size(dim) : index}},
                           result_type(call))};
}

// A transposition of the same two dims undoes itself.
Ids transposed(Session& session, const Recorded& call) {
  const auto self = session.value_of(call.values.tensor(0));
  if (const auto* node = session.producer(self, call.op.name)) {
    const auto dims = [&](const graph::Node& of) {
      return std::minmax({of.get<int64_t>("dim0", 0), of.get<int64_t>("dim1", 0)});
    };
    const auto rank = call.results[0].dim();
    const bool two_dims = call.op.name == "aten::t";
    if (two_dims ||
        dims(*node) == std::minmax({at::maybe_wrap_dim(call.values.integer(1), rank),
                                    at::maybe_wrap_dim(call.values.integer(2), rank)})) {
      return {node->get<graph::ValueId>("self", {})};
    }
  }
  return emit_call(session, call);
}

Ids as_strided(Session& session, const Recorded& call) {
  const auto self = call.values.tensor(0);
  const auto offset = call.values[3].isNone() ? self.storage_offset() : call.values.integer(3);
  const auto view = strided_view(self, Geometry::of(self),
                                 {call.values.ints(1), call.values.ints(2), offset});
  if (!view.defined()) {
    fail(
        "capture",
        "as_strided must equal a chain of views, but got sizes [{}], strides [{}] and offset {} of "
        "a tensor [{}] with strides [{}]{}",
        fmt::join(call.values.ints(1), ", "), fmt::join(call.values.ints(2), ", "), offset,
        fmt::join(self.sizes(), ", "), fmt::join(self.strides(), ", "), session.where());
  }
  return {session.value_of(view)};
}

// A graph has conjugation and the sign of its imaginary part as ops; LibTorch only sets a flag.
Ids conjugate(Session& session, const Recorded& call) {
  return {session.emit_one("aten::_conj_physical",
                           {{"self", session.value_of(call.values.tensor(0))}}, result_type(call))};
}

Ids negate(Session& session, const Recorded& call) {
  return {session.emit_one("aten::neg", {{"self", session.value_of(call.values.tensor(0))}},
                           result_type(call))};
}

const std::unordered_map<std::string_view, Canonical>& table() {
  static const auto& entries = *new std::unordered_map<std::string_view, Canonical>{
      {"aten::alias", same},
      {"aten::detach", same},
      {"aten::lift", same},
      {"aten::lift_fresh", same},
      {"aten::clone", same},
      {"aten::_lazy_clone", same},
      {"aten::positive", same},
      {"aten::_fw_primal", same},
      {"aten::view", reshape},
      {"aten::_unsafe_view", reshape},
      {"aten::_reshape_alias", reshape},
      {"aten::unsqueeze", reshape},
      {"aten::squeeze", reshape},
      {"aten::squeeze.dim", reshape},
      {"aten::squeeze.dims", reshape},
      {"aten::expand", expand},
      {"aten::_to_copy", expand},
      {"aten::copy", copy},
      {"aten::fill.Tensor", copy},
      {"aten::zeros", constant<0>},
      {"aten::zeros_like", constant<0>},
      {"aten::new_zeros", constant<0>},
      {"aten::zero", constant<0>},
      {"aten::empty.memory_format", constant<0>},
      {"aten::empty_strided", constant<0>},
      {"aten::empty_like", constant<0>},
      {"aten::empty_permuted", constant<0>},
      {"aten::new_empty", constant<0>},
      {"aten::new_empty_strided", constant<0>},
      {"aten::ones", constant<1>},
      {"aten::ones_like", constant<1>},
      {"aten::new_ones", constant<1>},
      {"aten::scalar_tensor", filled<0>},
      {"aten::full", filled<1>},
      {"aten::full_like", filled<1>},
      {"aten::fill.Scalar", filled<1>},
      {"aten::new_full", filled<2>},
      {"aten::t", transposed},
      {"aten::transpose.int", transposed},
      {"aten::slice.Tensor", slice},
      {"aten::select.int", select},
      {"aten::as_strided", as_strided},
      {"aten::_conj", conjugate},
      {"aten::_neg_view", negate},
  };
  return entries;
}

}  // namespace

graph::TensorType result_type(const Recorded& call) { return type_of(call.results[0]); }

Canonical find_canonical(const std::string& name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : found->second;
}

graph::Arg number_for(graph::DType dtype, const at::Scalar& number) {
  if (dtype == graph::DType::boolean) return number.toBool();
  if (number.isComplex()) {
    const auto z = number.toComplexDouble();
    if (z.imag() == 0) return z.real();
    fail("capture", "numbers in a graph are real, but got {} + {}i", z.real(), z.imag());
  }
  if (graph::is_floating(dtype) || number.isFloatingPoint()) return number.toDouble();
  return number.toLong();
}

graph::ValueId complex_number(Session& session, graph::DType dtype, c10::complex<double> number) {
  const graph::TensorType type{dtype, {}};
  const auto bytes = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  return session.constant_bytes(
      type, dtype == graph::DType::complex64 ? bytes(c10::complex<float>(number)) : bytes(number));
}

graph::ValueId operand(Session& session, const Recorded& call, const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return session.value_of(tensor);
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) return session.constant(tensor);
  const auto& result = call.results[0];
  const bool follows = tensor.is_floating_point() && result.is_floating_point();
  return session.constant(follows ? tensor.to(result.scalar_type()) : tensor);
}

graph::ValueId reshaped(Session& session, graph::ValueId self, const std::vector<int64_t>& shape) {
  const auto type = session.graph.type(self);
  if (const auto* node = session.producer(self, "perigee::reshape")) {
    self = node->get<graph::ValueId>("self", {});
  }
  if (session.graph.type(self).shape == shape) return self;
  return session.emit_one("perigee::reshape", {{"self", self}}, {type.dtype, shape});
}

graph::ValueId converted(Session& session, graph::ValueId self, const graph::TensorType& type) {
  auto now = session.graph.type(self);
  if (now.dtype != type.dtype) {
    now.dtype = type.dtype;
    self = session.emit_one("perigee::cast", {{"self", self}}, now);
  }
  if (now.shape == type.shape) return self;
  return session.emit_one("perigee::expand", {{"self", self}}, type);
}

}  // namespace perigee::tracing
