// Tensors of the capture device: a shape, no memory, and the graph's value that they stand for.
#pragma once

#include <ATen/core/Tensor.h>

#include "graph/graph.h"

namespace perigee::tracing {

inline const c10::Device capture_device{c10::kPrivateUse1, 0};

// A copy made by autograd (saved variables, detach) stands for the same value.
class CaptureTensor final : public c10::TensorImpl {
 public:
  CaptureTensor(c10::Storage storage, const at::Tensor& meta, graph::ValueId value,
                uint64_t session);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version, bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version, bool allow_tensor_metadata_change) const override;

  graph::ValueId value() const { return value_; }
  uint64_t session() const { return session_; }
  const at::Tensor& meta() const { return meta_; }  // the same geometry on the meta device

 private:
  at::Tensor meta_;
  graph::ValueId value_;
  uint64_t session_;
};

// Returns a tensor with meta's geometry. `share`: the storage of the tensor that it is a view of.
at::Tensor make_capture_tensor(const at::Tensor& meta, graph::ValueId value, uint64_t session,
                               const at::Tensor& share = {});

// Returns the tensor's impl where it is on the capture device, else nullptr. A functional tensor
// (LibTorch's wrapper that makes writes pure) is looked through.
const CaptureTensor* captured(const at::Tensor& tensor);

// Returns an empty meta tensor with these sizes, contiguous.
at::Tensor meta_tensor(at::IntArrayRef sizes, at::ScalarType type);

}  // namespace perigee::tracing
