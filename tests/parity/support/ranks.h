// Trains a captured model on the ranks of a plan, in threads, and compares the ranks' tensors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compile/compile.h"
#include "exec/comm/communicator.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "methods/method.h"
#include "plan/plan.h"
#include "tests/parity/support/models.h"

namespace perigee::parity {

// Samples of a batch in most tests.
inline constexpr int64_t kRows = 8;

// Dry runs, each made once.
class DryRuns : public compile::TraceSource {
 public:
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override;

 private:
  std::map<std::string, std::optional<compile::OpTrace>> known_;
};

// Returns a rank's program, from dry runs of ops on one thread.
compile::Program compile_rank(const Given& given, const plan::Plan& plan,
                              const compile::StepSpec& spec = {.clip_norm = 0.5}, int64_t rank = 0);

// Returns the number of instructions of the op in the program's sections, or in the one of this
// name, if it is given.
int64_t count(const compile::Program& program, const std::string& op,
              const std::string& section = "");

// The outcome of a rank: its numbers, and its tensors by name with their parts of the whole.
struct Outcome {
  std::vector<double> losses, norms;
  std::multimap<std::string, std::pair<at::Tensor, std::vector<mesh::Range>>> tensors;
  int64_t counted = 0;  // bytes
};

// Runs `steps` steps of a rank's program on the batch among the given inputs, its memory counted
// for `owner`.
Outcome run_rank(const Given& given, const compile::Program& program, const mesh::Mesh& mesh,
                 exec::Communicator& communicator, int owner, int64_t steps = 2);

// Returns "" if two ranks of equal plans have the same bits, else the name of what differs first.
std::string find_difference(const Outcome& a, const Outcome& b);

// Returns "" if a rank has the numbers and the parts of one device, else the first difference.
std::string compare(const Outcome& one, const Outcome& rank, double tolerance = 1e-10);

// Returns the mean distance of a rank's weights and buffers from those of one device.
double mean_distance(const Outcome& one, const Outcome& rank);

// Returns the methods that shipped strategies define in Lua: local_sgd.
const std::vector<std::shared_ptr<const methods::Method>>& shipped_in_lua();

// Returns the plan of a strategy, written as data, for a model captured at the `rows` samples of a
// step (or of one of its microbatches, or of a copy's part of one). Devices multiply eight-bit
// floats where it wants native products.
plan::Plan plan_of(const Given& given, const std::string& strategy, int64_t rows);

// Returns a strategy as data: axes (`["data", 2]`), and methods beside the microbatches.
std::string strategy_on(const std::string& axes, const std::string& methods,
                        int64_t microbatches = 1);

// Returns the mesh axis of an instruction of communication, or "".
std::string axis_of(const compile::Instruction& instruction);

// Returns the number of each collective but all_reduce in a program: "forward all_gather".
std::map<std::string, int> exchanges_of(const compile::Program& program);

// Compiles the plan for each of its ranks, applies `edit` to the programs, and trains on them, each
// rank a thread; gradients are clipped unless the spec says otherwise. Returns each rank's outcome.
std::vector<Outcome> train(const Given& given, const plan::Plan& plan,
                           const std::function<void(compile::Program&)>& edit = {},
                           const compile::StepSpec& spec = {.clip_norm = 0.5}, int64_t steps = 2);

// Returns "" if each rank's counted peak equals the predicted one, else the first difference.
std::string compare_memory(const Given& given, const plan::Plan& plan,
                           const std::vector<Outcome>& ranks);

// Returns "" if the ranks together hold each tensor of one device, else the first that they do not.
std::string find_missing(const Outcome& one, const std::vector<Outcome>& ranks);

// Returns "" if all ranks equal one device, of whose tensors none is missing, else the first
// difference and its place.
std::string compare(const Outcome& one, const std::vector<Outcome>& ranks,
                    double tolerance = 1e-10);

}  // namespace perigee::parity
