// Files of tensors (checkpoint/safetensors.h).
#include "checkpoint/safetensors.h"
#include "tests/fuzz/target.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(safetensors) {
  const checkpoint::SafetensorsFile file(fuzz::scratch_file("in.safetensors", input));
  size_t bytes = 0;
  unsigned sum = 0;
  for (const auto& tensor : file.tensors()) {
    bytes += tensor.bytes.size();
    for (const auto byte : tensor.bytes) sum += static_cast<unsigned>(byte);  // reads all
    int64_t size = static_cast<int64_t>(graph::size_of(tensor.dtype));
    for (const auto n : tensor.shape) size *= n;
    fuzz::require(size == static_cast<int64_t>(tensor.bytes.size()), "a tensor of another size");
  }
  fuzz::require(bytes <= input.size() && sum <= 255 * input.size(), "tensors outside of the file");
  const auto path = fuzz::scratch_folder() + "/out.safetensors";
  checkpoint::write_safetensors(path, file.tensors(), file.metadata());
  const checkpoint::SafetensorsFile again(path);
  fuzz::require(again.metadata() == file.metadata(), "written metadata differ");
  fuzz::require(again.tensors().size() == file.tensors().size(), "written tensors are lost");
  for (const auto& tensor : file.tensors()) {
    const auto* other = again.find(tensor.name);
    fuzz::require(other && other->dtype == tensor.dtype && other->shape == tensor.shape &&
                      std::ranges::equal(other->bytes, tensor.bytes),
                  "a written tensor differs");
  }
}
