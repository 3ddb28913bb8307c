// Instructions with everything resolved that does not change between steps: tensors,
// kernels, groups.
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
#include "exec/memory/served_allocations.h"
#include "exec/ops/op.h"
#include "mesh/mesh.h"

namespace perigee::exec {

// A result that an op must return: the value's memory, as declared.
struct Expected {
  size_t result;
  at::Tensor value;
};

// An instruction of one slot; comments say which kinds of instruction use a field.
struct Prepared {
  const compile::Instruction* source = nullptr;
  Kernel* kernel = nullptr;  // op
  // op whose allocations are known, on a device without planned memory
  std::unique_ptr<ServedAllocations> served;
  std::vector<at::Tensor> operands;           // op
  std::vector<at::Tensor> results;            // op: receives the results of a call
  std::vector<Expected> expected;             // op
  std::shared_ptr<Group> group;               // collective; nullptr: a copy to or from the host
  Transfer transfer;                          // collective
  std::optional<RowCounts> rows;              // comm::exchange
  const compile::Binding* binding = nullptr;  // load
  at::Tensor target;                          // load
};

struct PreparedSection {
  std::vector<Prepared> instructions;
  std::vector<std::byte*> bases;  // of the slot's frames
};

// Context in which an instruction is prepared: its program, and the program's values at the
// addresses of one slot.
struct PrepareContext {
  const compile::Program& program;
  Communicator& communicator;
  const mesh::Mesh& mesh;
  std::function<at::Tensor(compile::ValueId)> tensor_of;
};

// Returns the op of an instruction; its ValueIds become indices of operands.
Op op_of(const compile::Program& program, const compile::Instruction& instruction);

// Returns "rank 0: aten::mm in scope "head" (forward, section micro)".
std::string place_text(const compile::Program& program, const compile::Section& section,
                       const compile::Instruction& instruction);

// Makes the tensors of an instruction and finds its group. Throws Error for a data tensor that the
// program does not bind.
void prepare(Prepared& prepared, const compile::Instruction& instruction,
             const PrepareContext& context);

// Copies each result that an op has given elsewhere, or in another layout, to its planned address.
// Throws Error where a result has another type or is missing.
void store_results(Prepared& prepared);

// Returns the tensor that a load copies: this rank's part of a data tensor, or `given` itself. Throws
// Error for an undefined tensor, and for one of another type or shape.
at::Tensor part_of_batch(const Prepared& load, at::Tensor given);

// Returns the program's first binding of that kind and name, or nullptr.
const compile::Binding* find_binding(const compile::Program& program, compile::Binding::Kind kind,
                                     const std::string& name);

// Returns the names of the program's bindings of that kind, in its order, each once.
std::vector<std::string> binding_names(const compile::Program& program,
                                       compile::Binding::Kind kind);

// Returns whether two tensors have equal sizes, types and strides; strides of dims of size 1 do
// not count.
bool same_layout(const at::Tensor& a, const at::Tensor& b);
// Returns "float32[8, 32] with strides [32, 1]".
std::string layout_of(const at::Tensor& t);

// Returns by section the first instruction that writes a parameter, buffer or state; nullptr: none.
std::vector<const compile::Instruction*> find_updates(const compile::Program& program);

}  // namespace perigee::exec
