// Allocation traces: an op instance's allocations inside LibTorch and the strides of its results.
// A dry run records one per distinct instance, the profile database keeps it, and compile/ plans
// memory with it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

// A local op with everything that its allocations depend on.
struct OpInstance {
  std::string op;
  std::vector<std::pair<std::string, graph::Arg>> args;  // ValueId indices count `operands`
  std::vector<graph::TensorType> operands;               // local types, in each_operand order
  std::vector<std::vector<int64_t>> operand_strides;
  std::vector<std::optional<graph::TensorType>> outputs;  // nothing: a result that is not needed
};

// Returns the text that identifies the instance in the database.
std::string key(const OpInstance& instance);

struct OpTrace {
  std::vector<int64_t> allocations;  // bytes, in order
  // allocation k may reuse the memory of allocation j < k if j is in freed_before[k]
  std::vector<std::vector<int32_t>> freed_before;
  std::vector<int32_t> output_allocation;  // per output: its allocation; -1: shares an operand
  std::vector<std::vector<int64_t>> output_strides;  // per output
  // Whether these are all its allocations. If not, the op allocates freely, its results are copied
  // to their planned addresses, and memory is an estimate.
  bool complete = true;
  // Not 0: LibTorch's other threads (the op's workers, exec/memory/workers.h) allocate too, and the
  // first of `allocations` has this many bytes for each of them.
  int64_t worker_bytes = 0;
};

// Source of traces for compile/.
class TraceSource {
 public:
  virtual ~TraceSource() = default;
  // Returns the trace, or nothing where the instance has not been recorded (then memory
  // is an estimate).
  virtual std::optional<OpTrace> find(const OpInstance& instance) = 0;
};

// Makes another source thread-safe.
class SharedTraces : public TraceSource {
 public:
  // Kept by reference.
  explicit SharedTraces(TraceSource& traces) : traces_(traces) {}
  std::optional<OpTrace> find(const OpInstance& instance) override {
    const std::lock_guard lock(asking_);
    return traces_.find(instance);
  }

 private:
  TraceSource& traces_;
  std::mutex asking_;
};

}  // namespace perigee::compile
