// What a rank's step is made of, by op.
#pragma once

#include <string>
#include <vector>

#include "compile/program.h"
#include "mesh/mesh.h"
#include "search/op_cost.h"

namespace perigee::search {

// All runs of one op (or collective over one stream) in a step.
struct OpRow {
  std::string name;    // "aten::mm", "comm::all_reduce"
  std::string stream;  // of collectives; "": it computes
  int64_t runs = 0;
  double seconds = 0;   // each by itself, nothing beside it
  double flops = 0;     // of ops
  double bytes = 0;     // read and written, or sent
  double measured = 0;  // of the seconds
};

// Returns the rows of one optimizer step, those that take longest first.
std::vector<OpRow> op_table(const compile::Program& program, const mesh::Mesh& mesh,
                            OpCosts& costs);

}  // namespace perigee::search
