// The mapped file (mapped_file.h) that has an address.
#pragma once

namespace perigee {

// Returns the file's path, or nullptr. For handlers of SIGBUS, which a read past the end of a
// truncated file raises: allocates nothing and takes no lock. Knows the first 4096 files that are
// mapped at one time, and the first 511 bytes of a path.
const char* find_mapped_file(const void* address);

}  // namespace perigee
