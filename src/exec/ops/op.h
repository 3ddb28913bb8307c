// An op without its graph, and the function that computes it. The reference interpreter, the
// executor and the dry runs of the profile share these.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compile/trace.h"
#include "graph/graph.h"

namespace perigee::exec {

// The part of the step's random numbers that an op draws (exec/ops/random.h).
struct Draw {
  uint64_t seed = 0;
  int64_t step = 0;
  // Of an op in a recorded step (exec/recorder.h): memory of the device that has the number of the
  // step in place of `step`; nullptr elsewhere.
  const uint32_t* step_in_memory = nullptr;
  int64_t microbatch = 0;
  int64_t microbatches = 1;
};

// ValueIds in `args` are indices of operands, in each_operand order. An output without a type is
// not needed.
struct Op {
  std::string name;
  std::vector<std::pair<std::string, graph::Arg>> args;
  std::vector<std::optional<graph::TensorType>> outputs;
};

// Computes an op: reads `operands` and sets the needed `outputs`. Not thread-safe: one thread calls
// a kernel at a time.
using Kernel = std::function<void(std::span<const at::Tensor> operands,
                                  std::span<at::Tensor> outputs, const Draw& draw)>;

// Returns the op of a node; its ValueIds become indices of operands.
Op op_of(const graph::Graph& graph, const graph::Node& node);

// Returns the op of a trace's instance.
Op op_of(const compile::OpInstance& instance);

// Returns the kernel of an ATen op (or of any op with a schema that LibTorch's dispatcher knows): a
// boxed call with the schema's defaults filled in. Throws Error for an unknown op, a missing
// argument or one of another type.
Kernel dispatcher_kernel(const Op& op);

// Reads the arguments of an op. Throws Error naming op and argument where one is missing or has
// another type. `otherwise`: the value of an argument that the op leaves out.
class Arguments {
 public:
  explicit Arguments(const Op& op) : op_(op) {}

  const graph::Arg* find(std::string_view name) const;
  // Returns the operand's position, or -1 where it is absent.
  int optional_operand(std::string_view name) const;
  int operand(std::string_view name) const;
  std::vector<int> operands(std::string_view name) const;
  double number(std::string_view name, std::optional<double> otherwise = {}) const;
  int64_t integer(std::string_view name, std::optional<int64_t> otherwise = {}) const;
  bool flag(std::string_view name, std::optional<bool> otherwise = {}) const;
  std::string text(std::string_view name, std::optional<std::string> otherwise = {}) const;
  std::vector<int64_t> integers(std::string_view name) const;  // empty where it is left out

  bool wanted(size_t output) const {
    return output < op_.outputs.size() && op_.outputs[output].has_value();
  }
  // Returns the type of an output. Throws Error where the output is not needed.
  const graph::TensorType& type(size_t output = 0) const;
  const std::string& name() const { return op_.name; }
  const Op& op() const { return op_; }

 private:
  template <class T>
  T required(std::string_view name, const std::optional<T>& otherwise) const;

  const Op& op_;
};

}  // namespace perigee::exec
