#include "shard/rules/emitter.h"

#include <algorithm>

namespace perigee::shard {

using graph::DType;
using graph::TensorType;
using graph::ValueId;

ValueId Emitter::full(double value, TensorType type) {
  return lowering_.emit("perigee::full", {{"value", value}}, std::move(type));
}

ValueId Emitter::slice(ValueId v, int64_t dim, mesh::Range piece) {
  auto result = type(v);
  if (piece.begin == 0 && piece.length == result.shape[dim]) return v;
  result.shape[dim] = piece.length;
  return lowering_.emit(
      "aten::slice.Tensor",
      {{"self", v}, {"dim", dim}, {"start", piece.begin}, {"end", piece.begin + piece.length}},
      std::move(result));
}

ValueId Emitter::cat(const std::vector<ValueId>& tensors, int64_t dim) {
  if (tensors.size() == 1) return tensors[0];
  auto result = type(tensors[0]);
  result.shape[dim] = 0;
  for (auto v : tensors) result.shape[dim] += type(v).shape[dim];
  return lowering_.emit("aten::cat", {{"tensors", tensors}, {"dim", dim}}, std::move(result));
}

ValueId Emitter::cast(ValueId v, DType dtype) {
  if (type(v).dtype == dtype) return v;
  return lowering_.emit("perigee::cast", {{"self", v}}, {dtype, type(v).shape});
}

ValueId Emitter::reshape(ValueId v, std::vector<int64_t> shape) {
  if (type(v).shape == shape) return v;
  return lowering_.emit("perigee::reshape", {{"self", v}}, {type(v).dtype, std::move(shape)});
}

ValueId Emitter::column(ValueId v) {
  auto shape = type(v).shape;
  shape.push_back(1);
  return reshape(v, std::move(shape));
}

ValueId Emitter::unary(const char* op, ValueId v) {
  return lowering_.emit(op, {{"self", v}}, type(v));
}

ValueId Emitter::scalar(const char* op, ValueId v, graph::Arg other) {
  return lowering_.emit(op, {{"self", v}, {"other", std::move(other)}}, type(v));
}

ValueId Emitter::binary(const char* op, ValueId a, ValueId b) {
  auto shape = type(a).shape, other = type(b).shape;
  if (shape.size() < other.size()) std::swap(shape, other);
  const size_t offset = shape.size() - other.size();
  for (size_t d = 0; d < other.size(); ++d) {
    if (shape[offset + d] == 1) shape[offset + d] = other[d];
  }
  return lowering_.emit(op, {{"self", a}, {"other", b}}, {type(a).dtype, std::move(shape)});
}

ValueId Emitter::compare(const char* op, ValueId v, int64_t other) {
  return lowering_.emit(op, {{"self", v}, {"other", other}}, {DType::boolean, type(v).shape});
}

ValueId Emitter::keep(ValueId condition, ValueId v) {
  const auto zero = full(0.0, {type(v).dtype, {}});
  return lowering_.emit("aten::where.self",
                        {{"condition", condition}, {"self", v}, {"other", zero}}, type(v));
}

ValueId Emitter::reduce(const char* op, ValueId v, int64_t dim) {
  auto result = type(v);
  result.shape.erase(result.shape.begin() + dim);
  return lowering_.emit(op, {{"self", v}, {"dim", std::vector<int64_t>{dim}}}, std::move(result));
}

ValueId Emitter::all_reduce(ValueId v, const std::string& axes, const char* op) {
  return lowering_.emit("comm::all_reduce", {{"self", v}, {"axis", axes}, {"op", std::string(op)}},
                        type(v));
}

Emitter::Local Emitter::local_index(ValueId index, const mesh::Range& shard, int64_t size) {
  constexpr int64_t kFar = int64_t{1} << 30;
  const auto shifted = scalar("aten::sub.Scalar", index, shard.begin);
  const auto inside = lowering_.emit("aten::logical_and",
                                     {{"self", compare("aten::ge.Scalar", shifted, 0)},
                                      {"other", compare("aten::lt.Scalar", shifted, shard.length)}},
                                     {DType::boolean, type(index).shape});
  const bool first = size > 0 && shard.begin == 0,
             last = size > 0 && shard.begin + shard.length == size;
  const auto clamped = lowering_.emit(
      "aten::clamp",
      {{"self", shifted},
       {"min", first ? -kFar : 0},
       {"max", last ? kFar : std::max<int64_t>(shard.length - 1, 0)}},
      type(index));
  return {inside, clamped};
}

}  // namespace perigee::shard
