#include "tests/cuda/simulated/programs/plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "exec/comm/threads.h"
#include "exec/executor.h"
#include "exec/op_threads.h"
#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/programs/device.h"
#include "tests/cuda/simulated/races.h"
#include "tests/cuda/simulated/ranks.h"
#include "tests/cuda/simulated/turns.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/steps.h"

namespace perigee::cuda {
namespace {

using Kind = compile::Binding::Kind;

constexpr int64_t kSamples = 8, kSteps = 2;
// Each of the patterns of runs of local SGD runs, is recorded, and is replayed.
constexpr int64_t kVariedSteps = 6;

const std::string kGpt =
    "kind = 'gpt'\nlayers = 2\nwidth = 12\nheads = 2\nhidden = 16\nvocab = 8\ndropout = 0.1\n";
const std::string kDeep =
    "kind = 'gpt'\nlayers = 4\nwidth = 12\nheads = 2\nhidden = 16\nvocab = 8\n";
const std::string kExperts =
    "kind = 'moe'\nlayers = 2\nwidth = 12\nheads = 2\nhidden = 16\nvocab = 8\nexperts = 4\n"
    "capacity_per = 'sample'\n";
const std::string kDropless = kExperts + "top_k = 1\ncapacity = 0\ndropless = true\n";

const std::string kOne = R"(["data", 1])", kTwo = R"(["data", 2])", kFour = R"(["data", 4])",
                  kTensor = R"(["tensor", 2])", kStages = R"(["pipe", 2])";

struct Pair {
  std::unique_ptr<exec::Executor> training, validation;
};

Pair executors_of(const Compiled& of, size_t rank, exec::Communicator& communicator,
                  const std::shared_ptr<exec::Device>& device) {
  exec::ExecutorOptions options{.seed = 9, .device = device};
  Pair made;
  made.training = std::make_unique<exec::Executor>(of.programs[rank], communicator, of.plan.mesh,
                                                   options);
  parity::set_weights(*made.training, of.given);
  options.lender = made.training.get();
  made.validation = std::make_unique<exec::Executor>(of.validations[rank], communicator,
                                                     of.plan.mesh, options);
  return made;
}

// Runs the steps of simulate_varied. The learning rate of step k is k / 100.
parity::Outcome run_varied(Pair& executors, const parity::Given& given) {
  const auto& program = executors.training->program();
  parity::Outcome outcome;
  for (int64_t step = 1; step <= kVariedSteps; ++step) {
    exec::StepInputs inputs{.step = step};
    for (const auto& binding : program.bindings) {
      if (binding.name.starts_with("lr.")) inputs.scalars[binding.name] = 0.01 * double(step);
    }
    inputs.data = [&](const std::string& name, int64_t m) {
      auto all = given.inputs.at(name).roll(step, 0);
      if (all.scalar_type() == at::kLong) all = (all + step).remainder(8);  // tokens and labels
      const auto rows = all.size(0) / program.microbatches / program.model_copies;
      return all.narrow(0, (m * program.model_copies + program.model_copy) * rows, rows);
    };
    executors.training->run(inputs);
    outcome.losses.push_back(executors.training->tensor(Kind::result, "loss").item<double>());
    outcome.norms.push_back(executors.training->tensor(Kind::result, "grad_norm").item<double>());
    executors.validation->run(inputs);
    outcome.losses.push_back(executors.validation->tensor(Kind::result, "loss").item<double>());
  }
  return outcome;
}

// The host reads the rank's tensors after the last step.
void declare_reads(const exec::Executor& executor) {
  simulated::Accesses read;
  for (const auto& binding : executor.program().bindings) {
    if (binding.kind != Kind::data) {
      read.reads.push_back(simulated::bytes_of(executor.tensor(binding)));
    }
  }
  simulated::host_accesses(read);
}

void add_findings(Simulated& run) {
  run.races = simulated::races();
  run.broken_rules = simulated::broken_rules();
  run.deadlock = simulated::deadlock();
  run.order = simulated::order_of_work();
}

// Returns "" where each rank has each bit of `expected`, else the first difference.
std::string first_difference(const std::vector<parity::Outcome>& expected, const Simulated& run) {
  for (size_t r = 0; r < expected.size(); ++r) {
    const auto &wanted = expected[r], &got = run.ranks[r];
    if (wanted.losses != got.losses) return fmt::format("rank {} has other losses", r);
    if (wanted.norms != got.norms) return fmt::format("rank {} has other norms", r);
    if (wanted.tensors.size() != got.tensors.size()) return fmt::format("rank {} failed", r);
    for (auto a = wanted.tensors.begin(), b = got.tensors.begin(); a != wanted.tensors.end();
         ++a, ++b) {
      if (a->first != b->first || !at::equal(a->second.first, b->second.first)) {
        return fmt::format("rank {} has another {}", r, a->first);
      }
    }
  }
  return "";
}

}  // namespace

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {"data", kFour, "", kGpt},
      {"buckets", kTwo, R"(["grad_comm", {"bucket_mb": 0.002, "communicators": 2}])", kGpt},
      {"accumulation", kTwo, R"(["overlap", {"accumulate": true}])", kGpt, 4},
      {"kept weights", kTwo, R"(["amp_native", {"dtype": "bf16", "keep_weights": true}])", kGpt, 2,
       "float32"},
      {"zero1", kTwo, R"(["zero1", {}])", kGpt},
      {"zero2", kTwo, R"(["zero2", {}])", kGpt},
      {"fsdp", kFour, R"(["fsdp", {}])", kGpt},
      {"gathered once", kTwo, R"(["fsdp", {"reshard_after_forward": false}])", kGpt},
      {"offloaded units", kTwo, R"(["fsdp", {"cpu_offload": true}])", kGpt},
      {"recompute", kTwo, R"(["checkpoint", ["blocks.*"]], ["fsdp", {}])", kGpt},
      {"offload", kOne, R"(["offload", {"1": "blocks.*", "optimizer": true}])", kGpt},
      {"offload early", kTwo, R"(["offload", {"1": "**", "prefetch": 3}])", kGpt},
      {"tensor", kTensor, R"(["tensor_parallel", {}])", kGpt},
      {"tensor, sequence", kTensor, R"(["tensor_parallel", {"sequence": true}])", kGpt},
      {"slices", kTensor, R"(["tensor_parallel", {}], ["overlap", {"slices": 2}])", kGpt},
      {"chunked loss", kTensor, R"(["chunked_loss", {"chunks": 3}], ["tensor_parallel", {}])", kGpt,
       2},
      {"sequence", R"(["sequence", 2])", R"(["sequence_parallel", {}])", kGpt},
      {"context", R"(["context", 2])", R"(["context_parallel", {}])", kGpt},
      {"ring", R"(["context", 2])", R"(["context_parallel", {"attention": "ring"}])", kGpt},
      {"ring of sequences", R"(["sequence", 2], ["context", 2])",
       R"(["context_parallel", {"attention": "hierarchical"}])", kGpt},
      {"experts", R"(["expert", 2])", R"(["expert_parallel", {}], ["overlap", {"experts": true}])",
       kExperts},
      {"dropless", R"(["expert", 2])", R"(["expert_parallel", {}])", kDropless},
      {"1f1b", kStages, R"(["pipeline_parallel", {"schedule": "1f1b"}])", kGpt, 4},
      {"1f1b of four", R"(["pipe", 4])",
       R"(["pipeline_parallel", {"schedule": "1f1b"}], ["overlap", {"receives": true}])", kDeep, 4},
      {"receives of one microbatch", kStages,
       R"(["pipeline_parallel", {"schedule": "1f1b"}], ["overlap", {"receives": true}])", kGpt, 1},
      {"zero bubble", kStages, R"(["pipeline_parallel", {"schedule": "zb1p"}])", kGpt, 4},
      {"interleaved", kStages, R"(["pipeline_parallel", {"schedule": "interleaved", "chunks": 2}])",
       kDeep, 4},
      {"pipeline and data", R"(["pipe", 2], ["data", 2])",
       R"(["pipeline_parallel", {"schedule": "zb1p"}], ["offload", {"1": "blocks.*"}])", kGpt, 4},
      {"pipeline and tensor", R"(["tensor", 2], ["pipe", 2])", R"(["mixed_parallel", {}])", kGpt},
      {"local", kTwo, R"(["local_sgd", {"every": 2}])", kGpt},
  };
  return all;
}

const Compiled& compiled(const std::string& name) {
  static std::map<std::string, Compiled> known;
  const auto [at, added] = known.try_emplace(name);
  auto& of = at->second;
  if (!added) return of;
  const auto row = std::find_if(rows().begin(), rows().end(),
                                [&](const Row& r) { return r.name == name; });
  if (row == rows().end()) throw std::out_of_range(name);
  exec::set_op_threads(1);  // as ranks: some ops allocate by the number of threads
  torch::manual_seed(5);
  const int64_t copies = row->methods.find("local_sgd") == row->methods.npos ? 1 : 2;
  of.given = parity::built_in(row->model, kSamples, row->microbatches * copies, row->dtype, 4);
  of.plan = parity::plan_of(
      of.given, parity::strategy_on(row->axes, row->methods, row->microbatches), kSamples);
  static parity::DryRuns traces;
  const compile::StepSpec spec{.clip_norm = 0.5};
  for (int64_t rank = 0; rank < of.plan.mesh.size(); ++rank) {
    of.programs.push_back(compile::compile(of.given.graph, of.plan, spec, rank, traces));
    compile::verify(of.programs.back());
    const compile::StepSpec validation{.evaluation = true, .borrow_weights = true};
    of.validations.push_back(compile::compile(of.given.graph, of.plan, validation, rank, traces));
  }
  of.expected.resize(of.programs.size());
  exec::run_ranks(std::ssize(of.programs), [&](exec::Communicator& c) {
    const auto r = static_cast<size_t>(c.rank());
    of.expected[r] = parity::run_rank(of.given, of.programs[r], of.plan.mesh, c,
                                      static_cast<int>(r), kSteps);
  });
  return of;
}

std::string Simulated::finding() const {
  if (!deadlock.empty()) return deadlock;
  if (!races.empty()) return "race: " + races.front();
  if (!broken_rules.empty()) return "broken rule: " + broken_rules.front();
  for (const auto& error : errors) {
    if (!error.empty()) return error;
  }
  return "";
}

Simulated simulate(const Compiled& of, const std::vector<compile::Program>& programs, uint64_t seed,
                   const std::function<void(Calls&)>& change) {
  simulated::restart(seed);
  if (change) change(simulated::table());
  const auto world = static_cast<int>(programs.size());
  Simulated run;
  run.ranks.resize(programs.size());
  // Kept until all ranks have ended: work of one that has failed may run until then.
  std::vector<std::unique_ptr<exec::Executor>> executors(programs.size());
  run.errors = run_gpus(
      world, std::chrono::seconds(60), [&](exec::Communicator& c, CudaDevice& gpu) {
        exec::set_op_threads(1);
        const c10::AutoGradMode no_grad(false);
        const auto r = static_cast<size_t>(c.rank());
        executors[r] = std::make_unique<exec::Executor>(
            programs[r], c, of.plan.mesh,
            exec::ExecutorOptions{.seed = 9, .device = program_device(gpu, c.rank())});
        auto& executor = *executors[r];
        parity::set_weights(executor, of.given);
        {
          const simulated::Turn turn(static_cast<int>(r), world);
          run.ranks[r] = parity::run_steps(executor, of.given, kSteps);
        }
        declare_reads(executor);
        parity::add_tensors(run.ranks[r], executor);
      });
  add_findings(run);
  return run;
}

std::string difference(const Compiled& of, const Simulated& run) {
  return first_difference(of.expected, run);
}

Simulated simulate_varied(const Compiled& of, uint64_t seed, const Varied& how) {
  simulated::restart(seed);
  if (how.change) how.change(simulated::table());
  const auto world = static_cast<int>(of.programs.size());
  Simulated run;
  run.ranks.resize(of.programs.size());
  std::vector<std::unique_ptr<exec::Recorder>> recorders(of.programs.size());
  std::vector<Pair> executors(of.programs.size());
  run.errors = run_gpus(
      world, std::chrono::seconds(60), [&](exec::Communicator& c, CudaDevice& gpu) {
        exec::set_op_threads(1);
        const c10::AutoGradMode no_grad(false);
        const auto r = static_cast<size_t>(c.rank());
        if (how.recorder) recorders[r] = how.recorder(*gpu.recorder());
        executors[r] = executors_of(of, r, c, program_device(gpu, c.rank(), recorders[r].get()));
        if (how.replay) {
          executors[r].training->replay_steps(how.required);
          executors[r].validation->replay_steps(how.required);
        }
        {
          const simulated::Turn turn(static_cast<int>(r), world);
          run.ranks[r] = run_varied(executors[r], of.given);
        }
        declare_reads(*executors[r].training);
        parity::add_tensors(run.ranks[r], *executors[r].training);
      });
  add_findings(run);
  return run;
}

std::string varied_difference(const Compiled& of, const Simulated& run) {
  if (of.varied.empty()) {
    of.varied.resize(of.programs.size());
    exec::run_ranks(std::ssize(of.programs), [&](exec::Communicator& c) {
      const auto r = static_cast<size_t>(c.rank());
      const c10::AutoGradMode no_grad(false);
      auto executors = executors_of(of, r, c, nullptr);
      of.varied[r] = run_varied(executors, of.given);
      parity::add_tensors(of.varied[r], *executors.training);
    });
  }
  return first_difference(of.varied, run);
}

}  // namespace perigee::cuda
