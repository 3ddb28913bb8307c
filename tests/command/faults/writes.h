// What plugin_writes.cc records: the changes that processes make to the files of a folder.
#pragma once

#include <cstdint>

namespace perigee::test {

enum class ChangeKind : uint8_t { create, make_folder, write, truncate, rename, remove, sync };

// The head of a record; two paths and the written bytes follow, without terminators.
struct ChangeHead {
  ChangeKind kind;
  uint32_t path_size = 0, target_size = 0;  // target: of a rename
  int64_t offset = 0;                       // of a write; of a truncation the new size
  uint64_t data_size = 0;
};

}  // namespace perigee::test
