// Sizes of the parts in which an S3 service takes an object, or copies it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "checkpoint/s3/settings.h"

namespace perigee::checkpoint::s3 {

// Returns the bytes of a part of an upload of `bytes` bytes, in at most 9,000 parts: the service's
// limit is 10,000.
inline uint64_t uploaded_part_bytes(const Settings& settings, uint64_t bytes) {
  return std::max(settings.part_bytes, bytes / 9000 + 1);
}

// Returns the bytes of a part of an object of `bytes` bytes that the service copies: as many as 64
// parts of an upload, and at most 5 GiB, the service's limit.
inline uint64_t copied_part_bytes(const Settings& settings, uint64_t bytes) {
  constexpr uint64_t kParts = 64, kMost = 5ULL << 30U;
  return kParts * std::min(kMost / kParts, uploaded_part_bytes(settings, bytes / kParts));
}

}  // namespace perigee::checkpoint::s3
