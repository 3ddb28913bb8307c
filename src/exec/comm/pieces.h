// Collectives between ranks whose operands lie in memory that all of them can address. The work is
// cut into pieces, which any of the ranks may run: `threads.h` and `shared/` carry them out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "exec/comm/communicator.h"

namespace perigee::exec {

// One rank's buffers and counts (Transfer). Elements of an absent buffer: 0.
struct Operands {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t input_elements = 0, output_elements = 0;
  std::span<const int64_t> input_counts, output_counts;
};

struct JointTransfer {
  Collective::Kind kind = Collective::Kind::all_reduce;
  at::ScalarType type = at::kByte;
  mesh::Reduce reduce = mesh::Reduce::sum;
  int64_t peer = 0;
  // By position in the group. Of a message: the sender's, the receiver's.
  std::span<const Operands> ranks;
};

// One rank's call, for comparison with the others'.
struct Call {
  Collective::Kind kind = Collective::Kind::all_reduce;
  at::ScalarType type = at::kByte;
  mesh::Reduce reduce = mesh::Reduce::sum;
  int64_t peer = 0;
  Operands operands;  // addresses are not compared
};
Call call_of(const Transfer& transfer);

// Returns the number of pieces, at least 1.
int64_t pieces_of(const JointTransfer& transfer);

// Runs one piece: no two pieces write the same bytes, and none reads what another one writes. Sums
// are taken in the group's order. Throws Error for an element type that cannot be reduced.
void run_piece(const JointTransfer& transfer, int64_t piece);

// Returns an error text where the ranks' calls do not fit each other, or "".
std::string mismatch(std::span<const Call> calls, const std::string& group);

}  // namespace perigee::exec
