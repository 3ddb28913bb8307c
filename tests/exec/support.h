// Calls one op with tensors and constants by name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "exec/ops/op.h"

namespace perigee::exec {

using Named = std::vector<std::pair<std::string, at::Tensor>>;
using Args = std::vector<std::pair<std::string, graph::Arg>>;

inline graph::TensorType f64(std::vector<int64_t> shape) {
  return {graph::DType::float64, std::move(shape)};
}
inline graph::TensorType f32(std::vector<int64_t> shape) {
  return {graph::DType::float32, std::move(shape)};
}

inline std::vector<at::Tensor> call(Kernel (*kernel)(const Op&), const std::string& name,
                                    const Named& tensors, const Args& args,
                                    const std::vector<graph::TensorType>& types,
                                    const Draw& draw = {}) {
  Op op{.name = name, .args = {}, .outputs = {types.begin(), types.end()}};
  std::vector<at::Tensor> operands;
  for (const auto& [key, tensor] : tensors) {
    op.args.emplace_back(key, graph::ValueId{static_cast<int32_t>(operands.size())});
    operands.push_back(tensor);
  }
  op.args.insert(op.args.end(), args.begin(), args.end());
  std::vector<at::Tensor> outputs(types.size());
  kernel(op)(operands, outputs, draw);
  return outputs;
}

}  // namespace perigee::exec
