// The safetensors file format: an 8-byte length, a JSON header, then the tensors' bytes, row-major,
// little endian.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/target.h"
#include "graph/dtype.h"

namespace perigee::checkpoint {

// A tensor in memory. The bytes belong to someone else.
struct TensorBytes {
  std::string name;
  graph::DType dtype = graph::DType::float32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes the file and waits until it is on the disk. Returns the XXH3-128 checksum of its content
// (32 hexadecimal digits). Throws Error (failed) naming the file when it cannot be written whole;
// the file is then removed.
std::string write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                              const std::map<std::string, std::string>& metadata = {});

// As above, to a target, with the bytes of one tensor at a time, in order, from a function; `bytes`
// of the tensors are not read. A span must stay valid until the next call of the function.
std::string write_safetensors(Target& target, const std::string& path,
                              std::span<const TensorBytes> tensors,
                              const std::function<std::span<const std::byte>(size_t)>& bytes_of,
                              const std::map<std::string, std::string>& metadata = {});

// The header of a file.
struct SafetensorsHeader {
  // Bytes of the file.
  struct Place {
    uint64_t offset = 0, bytes = 0;
  };
  std::vector<TensorBytes> tensors;  // in the file's order, without bytes
  std::vector<Place> places;         // of each tensor
  std::map<std::string, std::string> metadata;
};

// Returns the bytes from the file's start to its first tensor. `start`: the first 8 bytes or more.
// Throws Error naming `path` where the file is damaged or cut short.
uint64_t header_bytes(std::span<const std::byte> start, uint64_t file_bytes,
                      const std::string& path);

// Reads the header from the first header_bytes() bytes of a file, or more. Throws as above where
// the header breaks the format.
SafetensorsHeader read_header(std::span<const std::byte> start, uint64_t file_bytes,
                              const std::string& path);

// A file mapped into memory.
class SafetensorsFile {
 public:
  // Throws Error naming the file when it cannot be read, is cut short, or its header breaks
  // the format.
  explicit SafetensorsFile(const std::string& path);

  const std::vector<TensorBytes>& tensors() const { return tensors_; }  // in the file's order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Returns the tensor, or nullptr.
  const TensorBytes* find(std::string_view name) const;
  // Returns the checksum that write_safetensors gave. Reads the whole file.
  std::string checksum() const;

 private:
  std::shared_ptr<const void> mapping_;
  std::span<const std::byte> content_;
  std::vector<TensorBytes> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace perigee::checkpoint
