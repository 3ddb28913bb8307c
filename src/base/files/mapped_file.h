// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace perigee {

struct MappedFile {
  std::shared_ptr<const void> owner;  // unmaps when the last copy goes
  std::span<const std::byte> bytes;
};

// Throws Error (invalid) naming the file and the system's reason.
MappedFile map_file(const std::string& path);

}  // namespace perigee
