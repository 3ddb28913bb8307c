#include "exec/kernels/attention/attention_segments.h"

#include <map>

namespace perigee::exec::kernels {
namespace {

struct Extent {
  int64_t first = 0, last = 0, count = 0;
};

// Returns where the keys of each document lie.
std::map<int64_t, Extent> extents_of(DocumentNumbers keys) {
  std::map<int64_t, Extent> extents;
  Extent* current = nullptr;
  for (int64_t k = 0; k < keys.size; ++k) {
    if (k == 0 || keys.data[k] != keys.data[k - 1]) {
      current = &extents[keys.data[k]];
      if (current->count == 0) current->first = k;
    }
    current->last = k;
    ++current->count;
  }
  return extents;
}

}  // namespace

std::vector<AttentionSegment> attention_segments(DocumentNumbers queries, DocumentNumbers keys) {
  const auto extents = extents_of(keys);
  std::vector<AttentionSegment> segments;
  for (int64_t begin = 0, end = 0; begin < queries.size; begin = end) {
    const auto document = queries.data[begin];
    while (end < queries.size && queries.data[end] == document) ++end;
    AttentionSegment segment{.row = begin, .rows = end - begin, .document = document};
    if (const auto found = extents.find(document); found != extents.end()) {
      const auto& extent = found->second;
      segment.key = extent.first;
      segment.keys = extent.last + 1 - extent.first;
      segment.all_keys = extent.count == segment.keys;
    }
    segments.push_back(segment);
  }
  return segments;
}

}  // namespace perigee::exec::kernels
