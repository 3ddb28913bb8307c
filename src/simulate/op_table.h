// Time, arithmetic and traffic of a rank's step by op.
#pragma once

#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/program.h"
#include "mesh/mesh.h"
#include "simulate/op_cost.h"

namespace perigee::simulate {

// All runs of one op (or collective over one stream) in a step.
struct OpRow {
  std::string name;    // "aten::mm", "comm::all_reduce"
  std::string stream;  // of collectives; "" for ops
  std::string scope;   // of rows by scope
  bool backward = false;
  int64_t runs = 0;
  double seconds = 0;   // of all runs, without contention
  double flops = 0;     // of ops
  double bytes = 0;     // read and written, or sent
  double measured = 0;  // part of `seconds` that was measured, not estimated
};

// Returns the rows of one optimizer step, the longest first.
std::vector<OpRow> op_table(const compile::Program& program, const mesh::Mesh& mesh,
                            OpCosts& costs);

// Returns a row for each scope, pass and op, in this order. A row is that of the program in which
// it takes the longest.
std::vector<OpRow> scope_table(const compile::Programs& programs, const mesh::Mesh& mesh,
                               OpCosts& costs);

}  // namespace perigee::simulate
