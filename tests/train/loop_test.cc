// The training loop over ranks that are threads: bad data, faults and flipped bits.
#include "train/run/loop.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "capture/models/models.h"
#include "exec/memory/allocator.h"
#include "tests/support/torch_test.h"
#include "train/plan/make_plan.h"
#include "train/ranks/connect.h"
#include "train/run/exit_status.h"

using namespace perigee;
using namespace perigee::train;
using Catch::Matchers::Contains;
using Kind = compile::Binding::Kind;

namespace {

using Tensors = std::map<std::string, at::Tensor>;

// The steps' batches of another source, of which some are changed.
struct Changed : DataSource {
  std::unique_ptr<DataSource> inner;
  std::function<int64_t(int64_t)> read = [](int64_t step) { return step; };  // the inner step
  std::set<int64_t> bad;  // steps whose data are not numbers
  bool once = false;      // only the first time that each rank reads them
  int64_t ranks = 1;
  std::map<int64_t, int64_t> reads;
  std::mutex mutex;

  Batch at(int64_t step, Range samples) override {
    std::lock_guard lock(mutex);
    auto batch = inner->at(step > 0 ? read(step) : 0, samples);
    if (!bad.contains(step) || (once && reads[step]++ >= ranks)) return batch;
    for (auto& [name, tensor] : batch) {
      if (tensor.is_floating_point()) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    return batch;
  }
  std::vector<int64_t> indices(int64_t step, Range samples) override {
    return {step, samples.begin, samples.length};
  }
};

struct Outcome {
  std::vector<std::string> errors;  // by rank; "": none
  std::vector<Status> statuses;
  std::vector<int64_t> checkpoints;
  std::vector<StepMetrics> metrics;
  LoopResult result;
  Tensors weights;  // parameters and buffers, whole
};

const std::string kMlp =
    "kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3\nloss = 'mse'\ndtype = "
    "'float64'\n";
const std::string kResnet =
    "kind = 'resnet'\ndepth = 18\nwidth = 2\nclasses = 3\nimage = 8\ndtype = 'float64'\n";
const std::string kGpt =
    "kind = 'gpt'\nlayers = 2\nwidth = 12\nheads = 2\nvocab = 16\ndtype = 'float64'\n";

struct Setup {
  job::Job job;
  int64_t ranks = 2;
  std::string strategy = R"([["parallel_mode", [["data", 2]]]])";
  std::function<void(RankTrainer&, int64_t rank, int64_t step)> before = [](auto&&...) {};

  Setup(const std::string& model, const std::string& train)
      : job(job::Job::parse("[model]\n" + model +
                                "[data]\nsynthetic = true\nsequence = 8\n[batch]\nglobal = 8\n"
                                "[lr_schedule]\nkind = 'constant'\nwarmup = 0\n[cluster]\n"
                                "device = 'cpu'\ntimeout = 30\n[train]\nvalidate_every = 0\n" +
                                train,
                            "a.toml")) {}

  Outcome run(Changed& data) {
    exec::install_allocator();
    auto built = make_model(job.model, job.data.sequence);
    Batch example;
    for (const auto& field : built.batch) {
      auto shape = field.shape;
      shape.insert(shape.begin(), 1);
      example[field.name] = at::zeros(
          shape, at::dtype(field.dtype == graph::DType::int64 ? at::kLong : at::kDouble));
    }
    const auto source = perigee::source(built.model.module, example, built.model.forward);
    auto planned = make_plan(source, Strategy::data(strategy), job, {ranks});
    data.inner = data::open_synthetic(job).training;
    data.ranks = ranks;
    const Blueprint blueprint{planned.captured.graph, planned.captured.graph, planned.captured.init,
                              planned.captured.tied, planned.plan};
    Tensors values;
    for (const auto& item : built.model.module->named_parameters()) {
      values[item.key()] = item.value().detach();
    }
    for (const auto& item : built.model.module->named_buffers()) values[item.key()] = item.value();
    compile::NoTraces traces;
    Outcome outcome;
    outcome.errors.resize(static_cast<size_t>(ranks));
    outcome.statuses.resize(static_cast<size_t>(ranks), Status::done);
    const auto connections = connect_threads(job, ranks);
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto& connection = connections[static_cast<size_t>(rank)];
        try {
          RankTrainer trainer(blueprint, job, connection, traces);
          trainer.initialise([&](const std::string& name) {
            const auto found = values.find(name);
            return found == values.end() ? at::Tensor() : found->second;
          });
          run_rank(trainer, connection, data, rank, outcome);
        } catch (const Error& error) {
          outcome.errors[static_cast<size_t>(rank)] = error.what();
          outcome.statuses[static_cast<size_t>(rank)] = error.status();
          connection.communicator->abort(error.what());
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return outcome;
  }

 private:
  void run_rank(RankTrainer& trainer, const Connection& connection, Changed& data, int64_t rank,
                Outcome& outcome) {
    LoopHooks hooks;
    hooks.before = [&](int64_t step) { before(trainer, rank, step); };
    if (rank == 0) {
      hooks.report = [&](const StepMetrics& metrics) { outcome.metrics.push_back(metrics); };
      hooks.checkpoint = [&](int64_t step, const std::string&, bool) {
        outcome.checkpoints.push_back(step);
        return 0.0;
      };
    }
    data::Validation none;
    auto result = run_loop(trainer, *connection.communicator, job, 1, data, none, hooks);
    Tensors weights;
    for (const auto& input : trainer.blueprint().training.inputs) {
      if (input.kind == graph::Input::Kind::parameter) {
        weights[input.name] = trainer.full(Kind::parameter, input.name);
      } else if (input.kind == graph::Input::Kind::buffer) {
        weights[input.name] = trainer.full(Kind::buffer, input.name);
      }
    }
    if (rank != 0) return;
    outcome.result = std::move(result);
    outcome.weights = std::move(weights);
  }
};

void require_good(const Outcome& outcome) {
  for (const auto& error : outcome.errors) REQUIRE(error == "");
}

bool are_equal(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size() || a.empty()) return false;
  for (const auto& [name, tensor] : a) {
    if (!b.contains(name) || !b.at(name).equal(tensor)) return false;
  }
  return true;
}

// Flips the lowest bit of a tensor's first element.
void flip(const at::Tensor& tensor) { *static_cast<uint8_t*>(tensor.data_ptr()) ^= 1; }

}  // namespace

TEST_CASE("a run that skips a step whose data are bad equals one that never saw them, to the bit") {
  const std::string two_stages = R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {}]])";
  const std::string units = R"([["parallel_mode", [["data", 2]]], "fsdp"])";
  struct Case {
    std::string model, strategy;
    int64_t micro;
  };
  const std::string data = R"([["parallel_mode", [["data", 2]]]])";
  for (const auto& [model, strategy, micro] :
       {Case{kMlp, data, 2}, Case{kMlp, units, 4}, Case{kResnet, data, 4}, Case{kResnet, data, 2},
        Case{kResnet, two_stages, 4}}) {
    CAPTURE(model, strategy, micro);
    Setup setup(model, "steps = 5\nskip_bad_steps = 1");
    setup.job.batch.micro = micro;
    setup.strategy = strategy;
    Changed bad;
    bad.bad = {3};
    const auto skipped = setup.run(bad);
    require_good(skipped);
    CHECK(skipped.result.bad_steps.skipped == 1);
    REQUIRE(skipped.metrics.size() == 5);
    CHECK(skipped.metrics[2].skipped);
    CHECK_THAT(skipped.metrics[2].bad, Contains("its loss is not a number"));
    CHECK(skipped.metrics[2].bad_samples == std::vector<int64_t>{3, 0, 8});

    setup.job.train.steps = 4;
    Changed without;
    without.read = [](int64_t step) { return step < 3 ? step : step + 1; };
    const auto never = setup.run(without);
    require_good(never);
    CHECK(are_equal(skipped.weights, never.weights));
    // What a step of the same good data would have given is another result.
    setup.job.train.steps = 5;
    Changed good;
    CHECK_FALSE(are_equal(skipped.weights, setup.run(good).weights));
    // Steps that are named are left out in the same way.
    setup.job.train.skip_bad_steps = 0;
    setup.job.train.skip_steps = "3";
    const auto left_out = setup.run(good);
    require_good(left_out);
    CHECK(are_equal(skipped.weights, left_out.weights));
    CHECK(left_out.result.bad_steps.bad == 0);
  }
}

TEST_CASE("a bad step ends the job on all ranks, before a checkpoint is due") {
  Setup setup(kMlp, "steps = 5\ncheckpoint_every = 1");
  Changed bad;
  bad.bad = {3};
  const auto outcome = setup.run(bad);
  for (const auto& error : outcome.errors) {
    CHECK_THAT(error, Contains("step 3 is bad") && Contains("samples 16 to 23, indices 3, 0, 8"));
  }
  CHECK(outcome.checkpoints == std::vector<int64_t>{1, 2});
}

TEST_CASE("a second run tells a transient fault from bad data, and its update is kept") {
  Setup setup(kResnet, "steps = 3\nrerun = true");
  setup.job.batch.micro = 2;
  Changed good;
  const auto expected = setup.run(good);
  require_good(expected);
  Changed transient;
  transient.bad = {3};
  transient.once = true;
  setup.job.train.steps = 4;
  const auto outcome = setup.run(transient);
  for (const auto status : outcome.statuses) CHECK(status == kTransientFault);
  CHECK(outcome.checkpoints.back() == 3);
  REQUIRE(outcome.metrics.size() == 3);
  CHECK(outcome.metrics[2].transient);
  CHECK(outcome.metrics[2].loss == expected.metrics[2].loss);
  CHECK(outcome.metrics[2].grad_norm == expected.metrics[2].grad_norm);

  Changed bad;
  bad.bad = {3};
  const auto persistent = setup.run(bad);
  for (const auto status : persistent.statuses) CHECK(status == kPersistentFault);
  CHECK(persistent.checkpoints.empty());
}

TEST_CASE("the second run of a step gives the weights of a first one") {
  Setup setup(kMlp, "steps = 3\nrerun = true\nspike_norm = 1e-9");
  Changed data;
  const auto outcome = setup.run(data);  // no median, hence no spike
  require_good(outcome);
  // From the ninth step on each step is a spike that is only said, and each is run twice.
  setup.job.train.steps = 12;
  const auto twice = setup.run(data);
  require_good(twice);
  CHECK(twice.result.bad_steps.spikes == 4);
  CHECK(twice.result.bad_steps.skipped == 0);
  setup.job.train.rerun = false;
  setup.job.train.spike_norm = 0;
  const auto once = setup.run(data);
  require_good(once);
  CHECK(are_equal(twice.weights, once.weights));
}

TEST_CASE("one flipped bit of a replica is named with its rank, tensor and step, on all ranks") {
  struct Case {
    std::string strategy;
    int64_t ranks, rank;
    Kind kind;
    std::string tensor, expected;
  };
  const std::string four = R"([["parallel_mode", [["data", 4]]]])";
  const std::string two = R"([["parallel_mode", [["data", 2]]]])";
  for (const auto& c : {Case{four, 4, 2, Kind::parameter, "blocks.0.weight",
                             "after step 4 blocks.0.weight of rank 2 is not that of ranks 0, 1, 3"},
                        Case{four, 4, 3, Kind::state, "exp_avg_sq:head.bias",
                             "exp_avg_sq:head.bias of rank 3 is not that of ranks 0, 1, 2"},
                        Case{two, 2, 1, Kind::parameter, "head.weight",
                             "head.weight differs between ranks 0 and 1"}}) {
    CAPTURE(c.strategy, c.tensor);
    Setup setup(kMlp, "steps = 6\ncheck_replicas = 2");
    setup.strategy = c.strategy;
    setup.ranks = c.ranks;
    Changed data;
    require_good(setup.run(data));
    setup.before = [&](RankTrainer& trainer, int64_t rank, int64_t step) {
      if (rank == c.rank && step == 4) flip(trainer.executor().tensor(c.kind, c.tensor));
    };
    const auto outcome = setup.run(data);
    for (const auto& error : outcome.errors) {
      CHECK_THAT(error, Contains(c.expected) && Contains("equal after step 2"));
    }
    setup.job.train.check_replicas = 0;
    require_good(setup.run(data));
  }
}

TEST_CASE("replicas are equal under every kind of parallelism") {
  for (const std::string strategy :
       {R"([["parallel_mode", [["tensor", 2]]], ["tensor_parallel", {}]])",
        R"([["parallel_mode", [["tensor", 2]]], ["tensor_parallel", {"sequence": true}]])",
        R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {}]])",
        R"([["parallel_mode", [["data", 2]]], "fsdp"])"}) {
    CAPTURE(strategy);
    Setup setup(kGpt, "steps = 3\ncheck_replicas = 1");
    setup.job.batch.micro = 4;
    setup.strategy = strategy;
    Changed data;
    require_good(setup.run(data));
  }
}

TEST_CASE("a tensor that tensor ranks hold whole, and that differs, is named") {
  Setup setup(kGpt, "steps = 2\ncheck_replicas = 1");
  setup.job.batch.micro = 4;
  setup.strategy = R"([["parallel_mode", [["tensor", 2]]], ["tensor_parallel", {}]])";
  setup.before = [&](RankTrainer& trainer, int64_t rank, int64_t step) {
    if (rank == 1 && step == 2) {
      trainer.executor().tensor(Kind::state, "exp_avg_sq:blocks.0.norm1.weight").add_(1);
    }
  };
  Changed data;
  for (const auto& error : setup.run(data).errors) {
    CHECK_THAT(error, Contains("norm1.weight differs between ranks 0 and 1"));
  }
}

TEST_CASE("replicas are equal where a stage trains nothing and steps may be skipped") {
  for (const std::string frozen : {"blocks.0.*", "head.*"}) {
    CAPTURE(frozen);
    Setup setup(kMlp, "steps = 2\ncheck_replicas = 1\nskip_bad_steps = 1");
    setup.job.batch.micro = 4;
    setup.job.model.frozen = {frozen};
    setup.strategy =
        R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {"starts": ["head"]}]])";
    Changed data;
    data.bad = {1};
    const auto outcome = setup.run(data);
    require_good(outcome);
    REQUIRE(outcome.metrics.size() == 2);
    CHECK(outcome.metrics[0].skipped);
    CHECK_FALSE(outcome.metrics[1].skipped);
  }
}

TEST_CASE("the seconds that ranks computed and waited are in the metrics and the result") {
  Setup setup(kMlp, "steps = 2");
  Changed data;
  const auto outcome = setup.run(data);
  require_good(outcome);
  REQUIRE(outcome.metrics.size() == 2);
  for (const auto& metrics : outcome.metrics) {
    REQUIRE(metrics.compute_s.size() == 2);
    for (size_t rank = 0; rank < 2; ++rank) {
      CHECK(metrics.compute_s[rank] > 0);
      CHECK(metrics.wait_s[rank] >= 0);
    }
    CHECK(metrics.submit_s.empty());  // on CPUs
  }
  CHECK(outcome.result.computed_s.size() == 2);
  CHECK(outcome.result.waited_s.size() == 2);
}
