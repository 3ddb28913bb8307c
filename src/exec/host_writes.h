// Parameters that the host may have written since a program's last step.
#pragma once

#include <ATen/ATen.h>

#include <memory>

namespace perigee::exec {

class HostWrites {
 public:
  // Returns the tensor, through which the host may write as long as it or a view of it lives.
  at::Tensor give(const at::Tensor& tensor) {
    given_ = true;
    return at::from_blob(
        tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor, token = token_](void*) {},
        tensor.options(), tensor.device());
  }

  // Returns whether the host may have written since stepped().
  bool possible() const { return given_ || token_.use_count() > 1; }
  // A step has read the parameters. The host writes between steps only.
  void stepped() { given_ = false; }

 private:
  bool given_ = true;  // a tensor was given since then; at first the parameters are not set
  std::shared_ptr<char> token_ = std::make_shared<char>();  // shared by the tensors that live
};

}  // namespace perigee::exec
