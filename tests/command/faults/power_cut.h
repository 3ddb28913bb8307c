// The state of a disk after a power cut: changes that were not synced may be lost or
// torn, or survive in another order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/command/faults/writes.h"

namespace perigee::test {

// A change of a folder's files, as plugin_writes.cc records it.
struct Change {
  ChangeKind kind = ChangeKind::create;
  std::string path, target;  // relative to the folder; target: of a rename
  int64_t offset = 0;        // of a write; of a truncation the new size
  std::string data;
};

// Returns the changes under `folder` that the log holds, in their order.
std::vector<Change> read_changes(const std::string& log, const std::string& folder);

// What a change that was not synced before the cut leaves.
enum class Left : uint8_t { nothing, half, all };  // half: of a write's bytes; else all

// Files by relative path; a folder ends in "/" and has no bytes.
using Files = std::map<std::string, std::string>;

// Returns the files after a cut between changes[count - 1] and changes[count]. A write or a
// truncation is synced by fsync of its file, every other change by fsync of the folder that it
// changes. `left`: of a change that is not synced, by its index.
Files files_after_cut(const std::vector<Change>& changes, size_t count,
                      const std::function<Left(size_t)>& left);

// Makes `folder` hold these files only.
void write_files(const Files& files, const std::string& folder);

}  // namespace perigee::test
