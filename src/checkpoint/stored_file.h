// A file of a checkpoint whose tensors are read in parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/target.h"

namespace perigee::checkpoint {

class StoredFile {
 public:
  virtual ~StoredFile() = default;
  // Returns the bytes of a tensor; nothing where the file has none of the name.
  virtual std::optional<uint64_t> bytes_of(const std::string& tensor) const = 0;
  // Returns bytes of a tensor, which are valid until the next call.
  virtual std::span<const std::byte> read(const std::string& tensor, uint64_t offset,
                                          uint64_t bytes) = 0;
  // The most bytes to read at once; 0: any number, as no memory is needed for them.
  virtual uint64_t most_bytes() const = 0;
  // Returns whether all bytes were compared with the file's checksum when it was opened.
  virtual bool is_checked() const = 0;
  // Reads the whole file. Returns its checksum.
  virtual std::string checksum() = 0;
};

// Opens a file of `bytes` bytes: one of this host is mapped into memory, and of another one the
// header is read. Throws Error where it cannot be read or is no safetensors file.
std::unique_ptr<StoredFile> open_stored(Target& target, const std::string& path, uint64_t bytes);

}  // namespace perigee::checkpoint
