// A program's comm:: instruction (graph/ops.h) as a Transfer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "compile/program.h"
#include "exec/comm/communicator.h"

namespace perigee::exec {

// Returns the collective's kind, reduction, counts and peer; the caller sets its tensors. Throws
// Error for an unknown op or reduction.
Transfer transfer_of(const compile::Instruction& instruction);

// The counts of a comm::exchange, which depend on values: `counts` [n, n] int64, on any device; row
// i holds the rows that position i of the group sends to each position.
struct RowCounts {
  at::Tensor counts;
  bool back = false;  // the reverse exchange: `counts` transposed
  int64_t width = 0;  // elements of a row

  // Returns the exchange of position `index` of the group, with the buffers cut to the rows of
  // `counts`, which it reads. Throws Error where the buffers have fewer rows.
  Transfer of(const Transfer& buffers, int64_t index) const;
};

// Returns the name of the instruction's stream: the mesh axes it runs over ("data,context").
std::string axis_of(const compile::Instruction& instruction);

}  // namespace perigee::exec
