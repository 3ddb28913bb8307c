#include "checkpoint/stored.h"

#include <ATen/ATen.h>

#include "exec/tensor.h"

namespace perigee::checkpoint {

void read_stored(const Checkpoint& checkpoint, TensorPart part, at::Tensor target) {
  const auto* stored = checkpoint.find(part.name);
  if (stored && stored->weight && graph::is_floating(stored->dtype) &&
      graph::is_floating(part.dtype)) {
    part.dtype = stored->dtype;
  }
  const auto bytes = at::empty(target.sizes(), exec::scalar_type(part.dtype));
  checkpoint.read(part,
                  {static_cast<std::byte*>(bytes.data_ptr()), static_cast<size_t>(bytes.nbytes())});
  target.copy_(bytes);
}

}  // namespace perigee::checkpoint
