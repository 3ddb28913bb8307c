// Ops without tensor operands: constants and random numbers.
#include <ATen/ATen.h>

#include "cuda/ops/ops.h"
#include "cuda/ops/random_place.h"
#include "exec/ops/random_op.h"
#include "exec/tensor.h"

namespace perigee::cuda {

void drop_elements(const at::Tensor& self, at::Tensor& out, double p,
                   const exec::RandomStream& stream, const exec::RandomBlock& block) {
  dropout(self.const_data_ptr(), out.mutable_data_ptr(), element_of(self.scalar_type()), p,
          place_of(stream, block), current_stream());
  check_launch("dropout");
}

Kernel full(const Arguments& a, const OpContext& context) {
  at::Scalar value = a.number("value");
  if (const auto* integer = std::get_if<int64_t>(a.find("value"))) value = *integer;
  const auto options =
      at::TensorOptions().dtype(exec::scalar_type(a.type().dtype)).device(context.place);
  return [value, options, shape = a.type().shape](std::span<const at::Tensor>,
                                                  std::span<at::Tensor> out, const Draw&) {
    out[0] = at::full(shape, value, options);
  };
}

Kernel random(const Arguments& a, const OpContext& context) {
  const exec::RandomArguments random(a, a.type().shape);
  const auto type = exec::scalar_type(a.type().dtype);
  const auto options = at::TensorOptions().dtype(type).device(context.place);
  return [random, options, element = element_of(type),
          drawing = drawing_of(exec::distribution_of(a), type)](
             std::span<const at::Tensor>, std::span<at::Tensor> out, const Draw& draw) {
    out[0] = at::empty(random.local, options);
    fill_random(out[0].mutable_data_ptr(), element, drawing,
                place_of(random.stream(draw), random.block(draw)), current_stream());
    check_launch("random");
  };
}

Kernel dropout(const Arguments& a, const OpContext&) {
  const exec::RandomArguments random(a, a.type().shape);
  return [random, self = a.operand("self"), p = a.number("p")](
             std::span<const at::Tensor> in, std::span<at::Tensor> out, const Draw& draw) {
    const auto from = in[self].contiguous();
    out[0] = at::empty(from.sizes(), from.options());
    drop_elements(from, out[0], p, random.stream(draw), random.block(draw));
  };
}

}  // namespace perigee::cuda
