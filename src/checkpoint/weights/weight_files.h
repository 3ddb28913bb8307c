// The tensors of one or several safetensors files.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace perigee::checkpoint {

// Files mapped into memory; a tensor's bytes are read when they are used.
class WeightFiles {
 public:
  // `path`: a safetensors file; an index of several (NAME.safetensors.index.json, "weight_map":
  // file names by tensor); or a folder, of which model.safetensors is read, else the files of
  // model.safetensors.index.json, else a single file NAME.safetensors. Throws Error naming the
  // files that are missing, damaged or lack a tensor of the index.
  explicit WeightFiles(const std::string& path);

  const std::string& path() const { return path_; }
  // Returns the tensor, or nullptr.
  const TensorBytes* find(std::string_view name) const;
  // Returns the names of all tensors, sorted.
  std::vector<std::string> names() const;

  // Returns whether a folder has files of tensors.
  static bool in_folder(const std::string& folder);

 private:
  void open_file(const std::string& path);
  void open_index(const std::string& path);

  std::string path_;
  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::map<std::string, const TensorBytes*, std::less<>> tensors_;
};

}  // namespace perigee::checkpoint
