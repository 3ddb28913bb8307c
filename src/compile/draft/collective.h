// How a collective of a program moves bytes: flat buffers, one part for each rank of the group.
// Its workspace is computed here, so that compile/ gives it an address and exec/ allocates nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compile/stream.h"
#include "mesh/mesh.h"

namespace perigee::compile {

// Largest unit, in bytes, whose all-reduce takes about as long as that of a rank's part. Up to this
// size gradients are summed over other axes before the unit's own reduce-scatter.
inline constexpr int64_t kSmallSum = int64_t{4} << 20;

// Returns the ranks that communicate on a stream of the rank's program; for a message, the
// sender first.
std::vector<int64_t> ranks_of(const mesh::Mesh& mesh, const Stream& stream, int64_t rank);

// Returns the lengths of a dim's parts, in group order.
std::vector<int64_t> part_lengths(int64_t size, int64_t ranks);

// Returns whether the parts of `dim` of a contiguous tensor are consecutive, so that they need
// no packing.
bool is_outermost(const std::vector<int64_t>& shape, int64_t dim);

// Returns a collective's workspace in elements of the operand's type, the same on all ranks.
// `counts`: the parts' elements. Only a reduce-scatter needs any: back ends that do not reduce in
// transit receive the other ranks' contributions there, a bounded piece of each at a time.
int64_t workspace_elements(std::string_view op, const std::vector<int64_t>& counts);

}  // namespace perigee::compile
