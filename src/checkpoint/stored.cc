#include "checkpoint/stored.h"

#include <ATen/ATen.h>

#include "exec/tensor.h"

namespace perigee::checkpoint {

namespace {

// Returns the part in the type that it is stored in, where it may be converted.
TensorPart stored_part(const Checkpoint& checkpoint, TensorPart part) {
  const auto* stored = checkpoint.find(part.name);
  if (stored && stored->weight && graph::is_floating(stored->dtype) &&
      graph::is_floating(part.dtype)) {
    part.dtype = stored->dtype;
  }
  return part;
}

}  // namespace

void require_stored(const Checkpoint& checkpoint, TensorPart part) {
  checkpoint.require(stored_part(checkpoint, std::move(part)));
}

void read_stored(const Checkpoint& checkpoint, TensorPart part, at::Tensor target) {
  part = stored_part(checkpoint, std::move(part));
  const auto bytes = at::empty(target.sizes(), exec::scalar_type(part.dtype));
  checkpoint.read(part,
                  {static_cast<std::byte*>(bytes.data_ptr()), static_cast<size_t>(bytes.nbytes())});
  target.copy_(bytes);
}

}  // namespace perigee::checkpoint
