// Shapes of results: LibTorch's Meta kernels where they exist, else the tables of shapes_*.cc,
// else, for pointwise ops, broadcasting.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>

#include <unordered_map>

#include "base/fail.h"
#include "capture/device/tensor.h"
#include "capture/record/op.h"
#include "capture/record/session.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

at::Tensor to_meta(const at::Tensor& tensor) {
  if (const auto* impl = captured(tensor)) return impl->meta();
  if (tensor.is_cpu() && tensor.dim() == 0) return tensor;  // a number; Meta kernels take it
  return meta_tensor(tensor.sizes(), tensor.scalar_type());
}

std::vector<at::Tensor> broadcast(const Values& values) {
  std::vector<at::Tensor> operands;
  for (size_t i = 0; i < values.size(); ++i) {
    if (auto tensor = values.tensor(i); tensor.defined()) operands.push_back(tensor);
  }
  auto sizes = operands[0].sizes().vec();
  at::native::ResultTypeState types;
  for (const auto& operand : operands) {
    sizes = at::infer_size(sizes, operand.sizes());
    types = at::native::update_result_type_state(operand, types);
  }
  return {meta_tensor(sizes, at::native::result_type(types))};
}

std::vector<at::Tensor> call_meta(const Op& op, std::vector<c10::IValue> values) {
  op.handle.callBoxed(values);
  std::vector<at::Tensor> results;
  for (auto& value : values) {
    if (value.isTensor()) {
      results.push_back(value.toTensor());
    } else {
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
    }
  }
  for (auto& result : results) {
    if (result.defined() && !result.is_meta()) {
      result = meta_tensor(result.sizes(), result.scalar_type());
    }
  }
  return results;
}

}  // namespace

Shape find_shape(const std::string& name) {
  static const auto& all = *new std::unordered_map<std::string, Shape>([] {
    std::unordered_map<std::string, Shape> all;
    for (const auto& table : {activation_shapes(), index_shapes(), norm_shapes(),
                              convolution_shapes(), pooling_shapes(), order_shapes(),
                              linear_algebra_shapes(), fourier_shapes(), perigee_shapes()}) {
      for (const auto& [op, shape] : table) all.emplace(op, shape);
    }
    return all;
  }());
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

std::vector<at::Tensor> infer_shapes(const Session& session, const Op& op, const Values& values) {
  std::vector<c10::IValue> metas;
  metas.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    auto value = values[i];
    each_tensor(value, to_meta);
    if (value.isDevice()) value = c10::Device(at::kMeta);
    metas.push_back(std::move(value));
  }
  const Values shaped(values.schema(), metas);
  if (op.shape) return op.shape(shaped);
  try {
    if (op.has_meta) return call_meta(op, metas);
  } catch (const c10::Error& error) {
    // An op inside a composite may have no Meta kernel; all other errors come from the model.
    const std::string_view text = error.what_without_backtrace();
    const bool missing = dynamic_cast<const c10::NotImplementedError*>(&error) ||
                         text.find("no fake impl or Meta kernel") != text.npos;
    if (!missing) throw;
  }
  if (op.pointwise) return broadcast(shaped);
  fail("capture", "every op needs a shape function, but {} has none{}", op.name, session.where());
}

}  // namespace perigee::tracing
