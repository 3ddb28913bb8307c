// Rows of queries that see the same keys, where several documents lie in one sequence.
#pragma once

#include <cstdint>
#include <vector>

namespace perigee::exec::kernels {

struct AttentionSegment {
  int64_t row = 0, rows = 0;  // a run of queries of one document
  int64_t key = 0, keys = 0;  // from the first to the last key of the document; none: 0
  int64_t document = 0;
  bool all_keys = true;  // whether each of these keys is of the document
};

// The document numbers of a sequence.
struct DocumentNumbers {
  const int64_t* data;
  int64_t size;
};

// Returns the segments of all queries, in their order. Numbers need not be in order: keys of a
// document that lie apart make a segment with keys of others.
std::vector<AttentionSegment> attention_segments(DocumentNumbers queries, DocumentNumbers keys);

}  // namespace perigee::exec::kernels
