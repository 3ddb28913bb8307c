// Instructions of a program ready to run: every tensor made, every group found.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compile/program.h"
#include "exec/comm/collective_op.h"
#include "exec/comm/communicator.h"
#include "exec/ops/op.h"
#include "mesh/mesh.h"

namespace perigee::exec {

// What an op must give back: the value's memory, as declared.
struct Expected {
  size_t result;
  at::Tensor value;
};

// An instruction for one slot: every tensor made, every kernel found.
struct Prepared {
  const compile::Instruction* source = nullptr;
  Kernel* kernel = nullptr;                   // op
  std::vector<at::Tensor> operands;           // op
  std::vector<at::Tensor> results;            // op: room for what the call returns
  std::vector<Expected> expected;             // op
  std::shared_ptr<Group> group;               // collective; none: a copy
  Transfer transfer;                          // collective
  std::optional<RowCounts> rows;              // comm::exchange
  const compile::Binding* binding = nullptr;  // load
  at::Tensor target;                          // load
};

struct PreparedSection {
  std::vector<Prepared> instructions;
  std::vector<std::byte*> bases;  // of the slot's frames
};

// What an instruction is prepared from: its program, and the program's values at the addresses of
// one slot.
struct Surroundings {
  const compile::Program& program;
  Communicator& communicator;
  const mesh::Mesh& mesh;
  std::function<at::Tensor(compile::ValueId)> tensor_of;
};

// Makes the tensors of an instruction and finds its group. Throws Error for a data tensor that the
// program does not bind.
void prepare(Prepared& prepared, const compile::Instruction& instruction,
             const Surroundings& surroundings);

// Returns the program's first binding of that kind and name, or nullptr.
const compile::Binding* find_binding(const compile::Program& program, compile::Binding::Kind kind,
                                     const std::string& name);

// Whether two tensors have sizes, type and strides alike; of dims with one element
// strides say nothing.
bool same_layout(const at::Tensor& a, const at::Tensor& b);
std::string layout_of(const at::Tensor& t);

}  // namespace perigee::exec
