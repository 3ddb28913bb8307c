// How a program's comm:: instruction reads (graph/ops.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "compile/program.h"
#include "exec/comm/communicator.h"

namespace perigee::exec {

// Returns the collective without its tensors. Throws Error for an unknown op or reduction.
Transfer transfer_of(const compile::Instruction& instruction);

// The counts of a comm::exchange, which tensors hold: counts [n, n] int64, on any device.
struct RowCounts {
  at::Tensor counts;
  bool back = false;
  int64_t width = 0;  // elements of a row

  // Returns the exchange that position `index` of the group takes part in, of as many of the
  // buffers' rows as the counts say now. Throws Error where they are more than the buffers have.
  Transfer of(const Transfer& buffers, int64_t index) const;
};

// Returns the mesh axes over which it runs ("data,context").
std::string axis_of(const compile::Instruction& instruction);

}  // namespace perigee::exec
