// Gradients of the built-in GPT are reduced while its backward pass runs.
#include <algorithm>
#include <map>

#include "capture/models/models.h"
#include "compile/compile.h"
#include "compile/draft/draft.h"
#include "exec/comm/threads.h"
#include "exec/executor.h"
#include "exec/memory/dry_run.h"
#include "exec/op_threads.h"
#include "tests/exec/processes.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

class DryRuns : public compile::TraceSource {
 public:
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override {
    return record_trace(instance);
  }
};

struct Gpt {
  graph::Graph graph;
  Batch batch;

  Gpt() {
    const auto job = job::Job::parse(
        "[model]\nkind = 'gpt'\nlayers = 3\nwidth = 128\nheads = 4\nvocab = 64\n"
        "[data]\nsynthetic = true\nsequence = 128\n",
        "gpt.toml");
    const auto built = make_model(job.model, job.data.sequence);
    for (const auto& field : built.batch) {
      auto shape = field.shape;
      shape.insert(shape.begin(), 8);
      batch[field.name] = at::randint(field.classes, shape, at::kLong);
    }
    graph = capture(*built.model.module, batch, built.model.forward).graph;
  }
};

// Overlap of a rank's steps.
struct Overlap {
  int64_t buckets = 0;        // of one step
  int64_t ops_in_flight = 0;  // least number of backward ops between a bucket's start and its wait,
                              // over all buckets but the last
  int64_t backward = 0;  // nanoseconds in which a bucket was reduced and the backward pass computed
  int64_t total = 0;     // the same for any op
};

bool is_bucket(const Interval& interval) {
  return interval.stream > 0 && interval.bytes > 8;  // not a loss or a norm
}

// Returns the number of backward ops between each bucket's start and its wait.
std::vector<int64_t> ops_in_flight(const compile::Program& program) {
  std::vector<int64_t> counts;
  std::map<int32_t, int64_t> open;  // by event
  for (const auto& section : program.sections) {
    for (const auto& instruction : section.instructions) {
      using Kind = compile::Instruction::Kind;
      const bool computes = instruction.kind == Kind::op &&
                            instruction.phase == graph::Phase::backward;
      if (computes) {
        for (auto& [event, count] : open) ++count;
      }
      if (instruction.kind == Kind::wait && open.contains(instruction.event)) {
        counts.push_back(open.at(instruction.event));
        open.erase(instruction.event);
      }
      if (instruction.kind != Kind::collective) continue;
      compile::each_operand(instruction, [&](graph::ValueId v) {
        if (program.values[v.index].type.bytes() > 8) open[instruction.event] = 0;
      });
    }
  }
  return counts;
}

// Several steps: on a loaded machine, ranks can wait for each other during a whole backward pass.
constexpr int kSteps = 8;

Overlap run(const Gpt& gpt, Communicator& communicator, const plan::Communication& communication) {
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(gpt.graph);
  plan.mesh.axes = {{"data", communicator.world()}};
  plan.communication = communication;
  DryRuns traces;
  Executor executor(
      compile::compile(gpt.graph, plan, {.clip_norm = 1}, communicator.rank(), traces),
      communicator, plan.mesh);
  Overlap seen;
  auto behind = ops_in_flight(executor.program());
  std::sort(behind.begin(), behind.end());
  seen.ops_in_flight = behind.size() > 1 ? behind[1] : 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    executor.record(true);
    executor.run({.step = step,
                  .scalars = {{"lr.0", 1e-3}},
                  .data = [&](const std::string& name, int64_t) { return gpt.batch.at(name); }});
    std::vector<Interval> all, backward;
    seen.buckets = 0;
    for (const auto& interval : executor.intervals()) {
      seen.buckets += is_bucket(interval);
      if (interval.stream > 0 && !is_bucket(interval)) continue;
      all.push_back(interval);
      if (is_bucket(interval) || interval.phase == graph::Phase::backward)
        backward.push_back(interval);
    }
    seen.backward += overlap(backward);
    seen.total += overlap(all);
  }
  return seen;
}

const plan::Communication kBuckets = {.bucket_bytes = 64 << 10, .overlap = true};
const plan::Communication kOneBucket = {.bucket_bytes = 1 << 30, .overlap = true};
const plan::Communication kAfterwards = {.bucket_bytes = 64 << 10, .overlap = false};

}  // namespace

TEST_CASE("buckets of a GPT's gradients are reduced during its backward pass, on threads") {
  const Gpt gpt;
  const auto of_ranks = [&](const plan::Communication& communication) {
    std::vector<Overlap> seen(2);
    run_ranks(2, [&](Communicator& c) { seen[c.rank()] = run(gpt, c, communication); },
              {.timeout = std::chrono::seconds(60)});
    // The last rank to start a reduction executes it: only the other rank computes meanwhile.
    return Overlap{seen[0].buckets, seen[0].ops_in_flight, seen[0].backward + seen[1].backward,
                   seen[0].total + seen[1].total};
  };
  const auto buckets = of_ranks(kBuckets);
  CHECK(buckets.buckets > 5);
  CHECK(buckets.ops_in_flight > 0);
  CHECK(buckets.backward > 0);
  // With one bucket, or with all of them at the end, no compute hides them.
  const auto one = of_ranks(kOneBucket);
  CHECK(one.buckets == 1);
  CHECK(one.total == 0);
  const auto afterwards = of_ranks(kAfterwards);
  CHECK(afterwards.buckets == buckets.buckets);
  CHECK(afterwards.ops_in_flight == 0);
  CHECK(afterwards.backward == 0);
}

TEST_CASE("buckets of a GPT's gradients are reduced during its backward pass, over Gloo") {
  // Captured before the fork, on one thread: a process that has run a backward pass on several
  // threads cannot be forked.
  exec::set_op_threads(1);
  const Gpt gpt;
  const auto errors = fork_ranks(
      2,
      [&](Communicator& c) {
        const auto buckets = run(gpt, c, kBuckets);
        must(buckets.buckets > 5, "there are several buckets");
        must(buckets.backward > 0, "they are reduced while the backward pass computes");
        const auto one = run(gpt, c, kOneBucket);
        must(one.buckets == 1 && one.total == 0, "one bucket has nothing beside it");
        must(run(gpt, c, kAfterwards).backward == 0,
             "buckets after the backward pass do not overlap with it");
      },
      std::chrono::seconds(40), Carrier::gloo);
  for (const auto& error : errors) CHECK(error == "");
}

}  // namespace perigee::exec
