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

// Bytes of a unit up to which a sum takes about as long for all of it as for a rank's part: it is
// made before the unit is reduced.
inline constexpr int64_t kSmallSum = int64_t{4} << 20;

// Returns the ranks that communicate on a stream of the rank's program; of a message
// the sender first.
std::vector<int64_t> ranks_of(const mesh::Mesh& mesh, const Stream& stream, int64_t rank);

// Returns the lengths of a dim's parts, in group order.
std::vector<int64_t> part_lengths(int64_t size, int64_t ranks);

// Returns true where the parts of `dim` of a contiguous tensor lie one after the other: no packing.
bool is_outermost(const std::vector<int64_t>& shape, int64_t dim);

// Returns how many elements of the operand's type a collective works in beside operand and result,
// the same on all ranks. `counts` are the parts' elements. Only a reduce-scatter needs any: where
// the back end does not reduce on the way, the others' contributions are received here, a bounded
// piece of each at a time.
int64_t workspace_elements(std::string_view op, const std::vector<int64_t>& counts);

}  // namespace perigee::compile
