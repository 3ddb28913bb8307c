// The kernel of an op on a GPU: Perigee's own, else the reference's or LibTorch's. One file per
// family; each function returns the kernel for the op's types, or nothing where there is none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "cuda/kernels/kernels.h"
#include "cuda/torch_side.h"
#include "exec/ops/op.h"
#include "exec/ops/random.h"

namespace perigee::cuda {

using exec::Arguments;
using exec::Draw;
using exec::Kernel;

struct OpContext {
  at::Device place;
  Fault* fault = nullptr;  // in host memory mapped into the device
  bool deterministic = false;
  int capability = 0;  // of the GPU: 90 for 9.0
};

Kernel cuda_kernel(const exec::Op& op, const OpContext& context);

// Clears the fault that kernels reported; throws Error where there was one.
void take_fault(Fault& reported);

Kernel full(const Arguments& arguments, const OpContext& context);
Kernel random(const Arguments& arguments, const OpContext& context);
Kernel dropout(const Arguments& arguments, const OpContext& context);

// The kernels of cuDNN or LibTorch (flash or memory-efficient) that apply, else the reference's.
Kernel attention(const Arguments& arguments, const OpContext& context);
Kernel attention_backward(const Arguments& arguments, const OpContext& context);

// aten::native_layer_norm and perigee::rms_norm, also of a sum (add_layer_norm, add_rms_norm), and
// their gradients, also with an addition.
Kernel row_norm(const Arguments& arguments, const OpContext& context);
Kernel row_norm_backward(const Arguments& arguments, const OpContext& context);

Kernel gelu_backward_sum(const Arguments& arguments, const OpContext& context);
Kernel swiglu(const Arguments& arguments, const OpContext& context);
Kernel swiglu_backward(const Arguments& arguments, const OpContext& context);

Kernel cross_entropy(const Arguments& arguments, const OpContext& context);
Kernel cross_entropy_backward(const Arguments& arguments, const OpContext& context);

Kernel rotary(const Arguments& arguments, const OpContext& context);
Kernel rotary_backward(const Arguments& arguments, const OpContext& context);
Kernel merge_attention(const Arguments& arguments, const OpContext& context);
Kernel fp8_cast(const Arguments& arguments, const OpContext& context);
Kernel fp8_amax(const Arguments& arguments, const OpContext& context);
Kernel fp8_cast_rows(const Arguments& arguments, const OpContext& context);
Kernel fp8_amax_rows(const Arguments& arguments, const OpContext& context);

Kernel sum_over_dims(const Arguments& arguments, const OpContext& context);

// aten::mm, and perigee::addmm_ of 16 bits, padded where that is faster (products.h).
Kernel product(const Arguments& arguments, const OpContext& context);
Kernel product_in_place(const Arguments& arguments, const OpContext& context);

// perigee::mm_gelu and mm_gelu_backward: by cuBLASLt's epilogues where it has a kernel for them.
Kernel activated_product(const Arguments& arguments, const OpContext& context);

Kernel reshape(const Arguments& arguments, const OpContext& context);
Kernel copy(const Arguments& arguments, const OpContext& context);
Kernel accumulate(const Arguments& arguments, const OpContext& context);
Kernel scale(const Arguments& arguments, const OpContext& context);
Kernel squared_norm(const Arguments& arguments, const OpContext& context);
Kernel clip_scale(const Arguments& arguments, const OpContext& context);
Kernel update_loss_scale(const Arguments& arguments, const OpContext& context);
Kernel examine_step(const Arguments& arguments, const OpContext& context);
Kernel restore(const Arguments& arguments, const OpContext& context);

// The step of an elementwise optimizer (optim/all.h) on a flat bucket; nothing for other ops.
Kernel optimizer(const Arguments& arguments);

// ---- shared by these files

// Returns the kernels' element type. Throws Error for a type that no kernel has.
Element element_of(at::ScalarType type);

// Returns whether arithmetic kernels support the type.
bool is_computed(at::ScalarType type);

// Returns whether it is bfloat16 or float16.
bool is_half(at::ScalarType type);

// Returns the type that kernels compute in: float64 for float64, else float32.
at::ScalarType wide_type(at::ScalarType type);

// exec::dropout on the GPU.
void drop_elements(const at::Tensor& self, at::Tensor& out, double p,
                   const exec::RandomStream& stream, const exec::RandomBlock& block);

// Throws Error when the last kernel launch failed. `kernel`: its name.
void check_launch(const char* kernel);

// Returns whether the tensor is contiguous, and every row a whole number of pieces of 16 bytes.
bool has_whole_rows(const at::Tensor& tensor);

// Returns the number of ranges of rows whose sums a kernel makes. It depends on the number of rows
// only, so that sums are equal on all GPUs.
int64_t parts_of(int64_t rows);

// Sums over the rows of a matrix that a kernel makes in parts.
class ColumnTotals {
 public:
  // `type`: of the matrix. totals: one for each sum, of as many elements as the matrix has columns, of
  // any floating point type; or no tensor for one that is not needed.
  ColumnTotals(at::ScalarType type, int64_t parts, std::initializer_list<at::Tensor> totals);
  // Returns the memory of the k-th sum's partials, [parts, columns] of wide_type(type), or nullptr.
  void* partials(size_t k) const { return partials_.at(k); }
  // Writes the totals, after the kernel.
  void finish() const;

 private:
  at::Tensor memory_;
  std::vector<void*> partials_;
  PartSums sums_;
};

// Returns the tensor as rows of so many elements.
Rows rows_of(const at::Tensor& tensor, int64_t columns);

// Returns the tensor's memory, or nullptr for no tensor.
const void* data_or_null(const at::Tensor& tensor);

}  // namespace perigee::cuda
