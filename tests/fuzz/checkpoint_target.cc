// The index of a checkpoint (checkpoint/checkpoint.h) beside an intact file of tensors. "@" in the
// input stands for that file's checksum.
#include <algorithm>
#include <cstring>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/safetensors.h"
#include "tests/fuzz/target.h"

using namespace perigee;
using namespace perigee::checkpoint;

namespace {

// Writes "w": float32[4, 2] in two pieces of 2 rows, and "b": float32[3]. Returns the
// file's checksum.
std::string write_tensors() {
  std::vector<float> values(11);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto bytes = std::as_bytes(std::span(values));
  using graph::DType;
  const std::vector<TensorBytes> tensors = {
      {"b", DType::float32, {3}, bytes.subspan(32)},
      {"w[0:2,0:2]", DType::float32, {2, 2}, bytes.subspan(0, 16)},
      {"w[2:4,0:2]", DType::float32, {2, 2}, bytes.subspan(16, 16)}};
  return write_safetensors(fuzz::scratch_folder() + "/rank-0.safetensors", tensors);
}

}  // namespace

PERIGEE_FUZZ_TARGET(checkpoint) {
  static const std::string checksum = write_tensors();
  std::string index;
  for (const char c : input) index += c == '@' ? checksum : std::string(1, c);
  fuzz::scratch_file("index.json", index);
  fuzz::scratch_file("COMPLETE", checksum_of(index) + "\n");
  const Checkpoint opened(fuzz::scratch_folder());
  export_checkpoint(opened, fuzz::scratch_folder() + "/export.safetensors");
  const SafetensorsFile exported(fuzz::scratch_folder() + "/export.safetensors");
  for (const auto& tensor : opened.tensors()) {
    const auto* found = exported.find(tensor.name);
    if (tensor.weight) fuzz::require(found && found->shape == tensor.shape, "a weight is lost");
  }
}
