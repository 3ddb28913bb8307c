// The parts of an archive of torch.export: its graph as JSON, and its tensors by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace perigee::exported {

// The schema of the archive's graph that this reader knows (torch/_export/serde/schema.py of the
// PyTorch that Perigee is built with). A larger minor number may have kinds of arguments that it
// does not know.
inline constexpr int64_t kSchemaMajor = 8, kSchemaMinor = 17;

struct StoredTensor {
  at::Tensor tensor;  // on the CPU; tensors that share memory in the archive share it here
  bool parameter = false;
  bool requires_grad = false;
};

struct Archive {
  nlohmann::json program;                         // schema.ExportedProgram
  std::map<std::string, StoredTensor> weights;    // parameters and persistent buffers
  std::map<std::string, StoredTensor> constants;  // other buffers and constants
};

// Reads the file whole. Throws Error naming it for: no zip or no archive of torch.export, a damaged
// or truncated one, several models, another version of the schema, tensors that are pickled (of a
// subclass of torch.Tensor) or larger than their bytes.
Archive read_archive(const std::string& path);

}  // namespace perigee::exported
