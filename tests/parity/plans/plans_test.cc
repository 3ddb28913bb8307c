// Programs of random plans: ranks take the steps that one device takes, start the same collectives
// in the same order, and hold exactly the memory that was predicted.
#include <fmt/format.h>

#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "compile/compile.h"
#include "exec/comm/threads.h"
#include "exec/op_threads.h"
#include "tests/exec/processes.h"
#include "tests/parity/support/models.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;
using exec::must;

// The collectives of a rank's program that another rank joins, in the order in which they start.
std::string collectives(const Program& program, const mesh::Mesh& mesh, int64_t other) {
  std::string text;
  for (const auto& section : program.sections) {
    for (const auto& instruction : section.instructions) {
      if (instruction.kind != Instruction::Kind::collective) continue;
      const auto axes = program.streams[instruction.stream].name();
      const auto group = mesh::group_of(mesh, mesh::AxisSet::parse(axes), program.rank);
      if (std::find(group.begin(), group.end(), other) == group.end()) continue;
      text += fmt::format(" {}:{} over {} at {}", section.name(), instruction.op, axes,
                          instruction.scope);
    }
  }
  return text;
}

struct Drawn {
  Given given;
  plan::Plan plan;
  compile::StepSpec spec{.weight_decay = 0.1, .clip_norm = 0.5};
};

// A model of some rows on a mesh of 1 to 8 ranks.
Drawn draw(const std::string& model, uint64_t seed) {
  Drawn drawn;
  std::mt19937_64 random(seed);
  torch::manual_seed(seed);
  auto& plan = drawn.plan;
  auto& axes = plan.mesh.axes;
  switch (any(random, 0, 2)) {
    case 0:
      axes = {{"data", any(random, 1, 8)}};
      break;
    case 1:
      axes = {{"tensor", any(random, 2, 3)}, {"data", any(random, 1, 2)}};
      break;
    default:
      axes = {{"tensor", 2}, {"context", 2}, {"data", any(random, 1, 2)}};
      if (any(random, 0, 1)) plan.batch_axes = "data,context";
  }
  if (any(random, 0, 3) == 0) drawn.spec = {.optimizer = "sgd", .options = {{"momentum", 0.9}}};
  // Its loss is neither a mean nor a sum over samples.
  plan.microbatches = model == "experts" ? 1 : any(random, 1, 3);
  plan.communication.bucket_bytes = 2048;
  plan.communication.overlap = any(random, 0, 4) > 0;
  const int64_t rows = any(random, 3, 9);
  drawn.given = capture_model(models().at(model)(rows * plan.microbatches), plan.microbatches);
  place_randomly(plan, drawn.given.graph, random, any(random, 0, 1) == 1);
  return drawn;
}

// Shards most parameters over axes on which they are replicated, in units with levels of their own,
// freezes some parameters, and recomputes some scopes.
void keep_in_parts(Drawn& drawn, uint64_t seed) {
  std::mt19937_64 random(1000 + seed);
  auto& plan = drawn.plan;
  const auto axes_of = [&](const std::string& name) {
    std::string axes;
    const auto placed = plan.placements.find(name);
    for (size_t a = 0; a < plan.mesh.axes.size(); ++a) {
      const bool whole = placed == plan.placements.end() || placed->second[a].is_replicate();
      if (!whole || any(random, 0, 4) == 0) continue;
      axes += (axes.empty() ? "" : ",") + plan.mesh.axes[a].name;
    }
    return axes;
  };
  for (const auto& input : drawn.given.graph.inputs) {
    if (input.kind != graph::Input::Kind::parameter) continue;
    if (any(random, 0, 9) == 0) drawn.spec.frozen.push_back(input.name);
    const auto axes = axes_of(input.name);
    if (axes.empty() || any(random, 0, 9) == 0) continue;
    // Added to one of the last units that are sharded over these axes, or to a new one.
    const auto unit = std::find_if(
        plan.units.rbegin(), plan.units.rend(), [&](const plan::Unit& u) {
          return u.axes == mesh::AxisSet::parse(axes) && any(random, 0, 2) > 0;
        });
    if (unit != plan.units.rend()) {
      unit->parameters.push_back(input.name);
      continue;
    }
    plan.units.push_back({"unit." + std::to_string(plan.units.size()),
                          {input.name},
                          mesh::AxisSet::parse(axes),
                          static_cast<int>(any(random, 1, 3)),
                          any(random, 0, 1) == 1});
  }
  for (const auto& scope : drawn.given.graph.scopes) {
    const bool outer = !scope.path.empty() && scope.path.find('.') == std::string::npos;
    if (outer && any(random, 0, 3) == 0) plan.recompute.regions.push_back({scope.path});
  }
  plan.communication.prefetch_forward = any(random, 0, 2);
  plan.communication.prefetch_backward = any(random, 0, 2);
  plan.communication.prefetch_bytes = any(random, 0, 2) * 1500;
  plan::verify(plan, drawn.given.graph);
}

Outcome run_on_one_device(const Drawn& drawn, compile::TraceSource& traces) {
  plan::Plan plan;
  plan.graph_hash = drawn.plan.graph_hash;
  plan.mesh.axes = {{"data", 1}};
  plan.microbatches = drawn.plan.microbatches;
  const auto program = compile::compile(drawn.given.graph, plan, drawn.spec, 0, traces);
  return run_rank(drawn.given, program, plan.mesh, *exec::single_communicator(), 0);
}

std::vector<Program> compile_all(const Drawn& drawn, compile::TraceSource& traces) {
  std::vector<Program> programs;
  for (int64_t rank = 0; rank < drawn.plan.mesh.size(); ++rank) {
    programs.push_back(compile::compile(drawn.given.graph, drawn.plan, drawn.spec, rank, traces));
    compile::verify(programs.back());
    must(programs.back().exact_memory, "every op must have a trace");
  }
  return programs;
}

// The kinds of collectives that ran.
std::set<std::string> seen;

void check_plan(const std::string& model, uint64_t seed, bool in_parts) {
  exec::set_op_threads(1);  // as ranks: some ops allocate by the number of threads
  auto drawn = draw(model, seed);
  if (in_parts) keep_in_parts(drawn, seed);
  DryRuns traces;
  const auto one = run_on_one_device(drawn, traces);
  const auto programs = compile_all(drawn, traces);
  for (size_t r = 0; r < programs.size(); ++r) {
    for (const auto& section : programs[r].sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.kind == Instruction::Kind::collective) seen.insert(instruction.op);
      }
    }
    for (size_t q = 0; q < r; ++q) {
      const auto mine = collectives(programs[r], drawn.plan.mesh, static_cast<int64_t>(q));
      const auto other = collectives(programs[q], drawn.plan.mesh, static_cast<int64_t>(r));
      must(mine == other, fmt::format("rank {} starts{}, rank {} starts{}", r, mine, q, other));
    }
  }
  const auto predicted =
      compile::predict_memory(drawn.given.graph, drawn.plan, drawn.spec, traces).peak_bytes;
  std::vector<Outcome> outcomes(programs.size());
  exec::run_ranks(std::ssize(programs),
                  [&](exec::Communicator& c) {
                    const auto r = static_cast<size_t>(c.rank());
                    outcomes[r] = run_rank(drawn.given, programs[r], drawn.plan.mesh, c,
                                           static_cast<int>(r));
                  },
                  {.timeout = std::chrono::seconds(20)});
  for (size_t r = 0; r < programs.size(); ++r) {
    const auto wrong = compare(one, outcomes[r]);
    must(wrong.empty(), fmt::format("rank {}: {}", r, wrong));
    must(outcomes[r].counted == predicted[r], fmt::format("rank {}: predicted {} bytes, counted {}",
                                                          r, predicted[r], outcomes[r].counted));
  }
  const auto missing = find_missing(one, outcomes);
  must(missing.empty(), missing);
}

void check_plans(const std::string& model, uint64_t plans, bool in_parts = false) {
  for (uint64_t seed = 0; seed < plans; ++seed) {
    std::string wrong;
    try {
      check_plan(model, seed, in_parts);
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    INFO(model << (in_parts ? " in parts" : "") << ", seed " << seed << ": "
               << wrong.substr(0, 2000));
    CHECK(wrong.empty());
  }
}

TEST_CASE("gpt: random plans hold the predicted bytes and train as one device") {
  check_plans("gpt", 40);
}
TEST_CASE("images: random plans hold the predicted bytes and train as one device") {
  check_plans("images", 40);
}
TEST_CASE("experts: random plans hold the predicted bytes and train as one device") {
  check_plans("experts", 40);
}
TEST_CASE("regression: random plans hold the predicted bytes and train as one device") {
  seen.clear();
  check_plans("regression", 40);
  for (const char* op :
       {"comm::all_reduce", "comm::all_gather", "comm::reduce_scatter", "comm::all_to_all"}) {
    INFO(op);
    CHECK(seen.contains(op));
  }
}
TEST_CASE("random plans with sharded parameters hold the predicted bytes and train as one device") {
  for (const char* model : {"gpt", "images", "experts", "regression", "recurrent"}) {
    check_plans(model, 20, true);
  }
}

}  // namespace
}  // namespace perigee::parity
