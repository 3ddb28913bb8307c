#include "exec/ops/activated_product.h"

#include <array>

namespace perigee::exec {
namespace {

using at::Tensor;
using graph::ValueId;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

const std::pair<std::string, graph::Arg> kTanh = {"approximate", std::string("tanh")};

// Returns the type of the op's first result as a matrix [r, c].
graph::TensorType matrix_type(const Arguments& a) {
  const auto& type = a.type();
  const int64_t columns = type.shape.back();
  return {type.dtype, {columns == 0 ? 0 : type.numel() / columns, columns}};
}

// Returns the product, computed in the way that the plan states for the op.
Op in_same_way(const Arguments& a, Op product) {
  if (const auto* way = a.find("way")) product.args.emplace_back("way", *way);
  return product;
}

Kernel forward(const Arguments& a, const std::function<Kernel(const Op&)>& kernel_of) {
  const auto type = matrix_type(a);
  const int self = a.operand("self"), mat2 = a.operand("mat2"), bias = a.optional_operand("bias");
  const auto product = kernel_of(
      bias >= 0
          ? in_same_way(a, {"aten::addmm",
                            {{"self", ValueId{0}}, {"mat1", ValueId{1}}, {"mat2", ValueId{2}}},
                            {type}})
          : in_same_way(a, {"aten::mm", {{"self", ValueId{0}}, {"mat2", ValueId{1}}}, {type}}));
  const auto gelu = kernel_of({"aten::gelu", {{"self", ValueId{0}}, kTanh}, {type}});
  return [=, shape = a.type().shape](Operands in, Results out, const Draw& draw) {
    std::array<Tensor, 1> pre, result;
    if (bias >= 0) {
      product(std::array{in[bias], in[self], in[mat2]}, pre, draw);
    } else {
      product(std::array{in[self], in[mat2]}, pre, draw);
    }
    gelu(pre, result, draw);
    out[0] = result[0].view(shape);
    if (out.size() > 1) out[1] = pre[0];
  };
}

Kernel backward(const Arguments& a, const std::function<Kernel(const Op&)>& kernel_of) {
  const auto type = matrix_type(a);
  const int self = a.operand("self"), mat2 = a.operand("mat2"), saved = a.operand("pre");
  const auto product = kernel_of(
      in_same_way(a, {"aten::mm", {{"self", ValueId{0}}, {"mat2", ValueId{1}}}, {type}}));
  const graph::TensorType sum{type.dtype, {type.shape[1]}};
  const auto gradient = kernel_of({"perigee::gelu_backward_sum",
                                   {{"grad_output", ValueId{0}}, {"self", ValueId{1}}, kTanh},
                                   {type, sum}});
  return [=, shape = a.type().shape](Operands in, Results out, const Draw& draw) {
    std::array<Tensor, 1> upstream;
    std::array<Tensor, 2> results;
    product(std::array{in[self], in[mat2]}, upstream, draw);
    const auto pre = in[saved].view(upstream[0].sizes());
    gradient(std::array{upstream[0], pre}, results, draw);
    out[0] = results[0].view(shape);
    if (out.size() > 1) out[1] = results[1];
  };
}

}  // namespace

Kernel compose_product(const Arguments& arguments,
                       const std::function<Kernel(const Op&)>& kernel_of) {
  return arguments.name() == "perigee::mm_gelu" ? forward(arguments, kernel_of)
                                                : backward(arguments, kernel_of);
}

}  // namespace perigee::exec
