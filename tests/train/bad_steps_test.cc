// Bad steps: which steps are, what becomes of them, and what the job ends with.
#include "train/run/bad_steps.h"

#include <cmath>
#include <limits>

#include "tests/support/torch_test.h"
#include "train/run/exit_status.h"

using namespace perigee;
using namespace perigee::train;
using Catch::Matchers::Contains;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sample i of the run is place 100 + i.
struct Places : DataSource {
  Batch at(int64_t, Range) override { return {}; }
  std::vector<int64_t> indices(int64_t step, Range samples) override {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < samples.length; ++i) {
      places.push_back(100 + (step - 1) * 4 + samples.begin + i);
    }
    return places;
  }
};

job::Job job_of(const std::string& train) {
  return job::Job::parse("[model]\nkind = 'mlp'\n[batch]\nglobal = 4\n[train]\n" + train, "a.toml");
}

// A trainer whose guarded steps have the given losses, one for each run.
struct Runs {
  explicit Runs(const std::string& train, bool scales_loss = false, const std::string& state = "{}")
      : job(job_of(train)), bad(job, scales_loss, state) {}

  job::Job job;
  BadSteps bad;
  Places data;
  int64_t step = 0;
  int64_t forgotten = 0;
  std::vector<StepLimits> limits;
  bool guarded = true;

  StepResult run(std::vector<double> losses, double norm = 1) {
    size_t next = 0;
    return bad.run(
        ++step, data,
        [&](const StepLimits& given) {
          limits.push_back(given);
          const auto loss = losses.at(next++);
          const bool passes = std::isfinite(loss) && std::isfinite(norm) && loss <= given.loss &&
                              norm <= given.grad_norm;
          return StepResult{.loss = loss, .grad_norm = norm, .skipped = guarded && !passes};
        },
        [&] { ++forgotten; });
  }
  // Runs good steps, until losses have a median.
  void begin() {
    for (size_t i = 0; i < Spikes::kAtLeast; ++i) run({2});
  }
  std::string ends() const {
    return bad.judgement().ends ? bad.judgement().ends->what() : "goes on";
  }
  Status status() const {
    return bad.judgement().ends ? bad.judgement().ends->status() : Status::done;
  }
};

}  // namespace

TEST_CASE("a step that is not finite ends the job, named with its samples") {
  for (const double loss : {kNan, kInfinity}) {
    Runs runs("");
    runs.guarded = false;
    runs.run({2});
    CHECK(runs.ends() == "goes on");
    runs.run({loss});
    CHECK(runs.status() == Status::failed);
    CHECK_THAT(runs.ends(), Contains("the loss must be finite") && Contains("step 2 is bad") &&
                                Contains("samples 4 to 7, indices 104-107") &&
                                Contains("train.skip_steps = \"2\""));
  }
  Runs runs("");
  runs.guarded = false;
  runs.run({2}, kNan);
  CHECK_THAT(runs.ends(), Contains("the norm of its gradients is not a number"));
}

TEST_CASE("bad steps in a row are skipped up to a number, and a good one starts the count anew") {
  Runs runs("skip_bad_steps = 2");
  for (int round = 0; round < 3; ++round) {
    runs.run({2});
    for (int i = 0; i < 2; ++i) {
      CHECK(runs.run({kNan}).skipped);
      CHECK(runs.ends() == "goes on");
      CHECK_THAT(runs.bad.judgement().warning, Contains("it is skipped"));
    }
  }
  CHECK(runs.bad.counts().bad == 6);
  CHECK(runs.bad.counts().skipped == 6);
  runs.run({kNan});
  CHECK(runs.status() == Status::failed);
  CHECK_THAT(runs.ends(), Contains("train.skip_bad_steps = 2"));
  Runs endless("skip_bad_steps = 1\nstop_if_not_finite = false");
  for (int i = 0; i < 5; ++i) endless.run({kNan});
  CHECK(endless.ends() == "goes on");
}

TEST_CASE("a plan with a loss scale skips steps by itself, which are not bad") {
  Runs runs("", true);
  runs.run({kNan});
  CHECK(runs.ends() == "goes on");
  CHECK(runs.bad.counts().bad == 0);
  CHECK(runs.bad.counts().skipped == 1);
}

TEST_CASE("a spike is a multiple of the median of good steps, and is said, skipped or a stop") {
  Runs says("spike_loss = 3");
  says.run({50});  // no median yet
  CHECK(says.bad.judgement().reason.empty());
  says.begin();
  says.run({5.9});
  CHECK(says.bad.judgement().reason.empty());
  CHECK_FALSE(says.run({6.5}).skipped);
  CHECK_THAT(says.bad.judgement().warning,
             Contains("is a spike: its loss is 6.5, 3.25 times the median 2 of"));
  CHECK(says.ends() == "goes on");
  CHECK(says.bad.counts().spikes == 1);

  Runs skips("spike_norm = 3\non_spike = 'skip'\nskip_bad_steps = 1");
  skips.begin();
  CHECK(skips.limits.back().grad_norm == kInfinity);
  CHECK(skips.run({2}, 3.5).skipped);
  CHECK(skips.limits.back().grad_norm == 3);
  CHECK(skips.limits.back().loss == kInfinity);
  CHECK(skips.ends() == "goes on");
  skips.run({2}, 3.5);  // the skipped one is not in the median
  CHECK_THAT(skips.ends(),
             Contains("train.skip_bad_steps = 1") && Contains("gradient norm is 3.5"));

  Runs stops("spike_loss = 3\non_spike = 'stop'");
  stops.begin();
  stops.run({7});
  CHECK(stops.status() == Status::failed);
  CHECK_THAT(stops.ends(), Contains("on_spike") && Contains("indices 132-135"));
}

TEST_CASE("a resumed run compares with the same medians") {
  Runs first("spike_loss = 3");
  first.begin();
  Runs resumed("spike_loss = 3", false, first.bad.state());
  resumed.run({6.5});
  CHECK(resumed.bad.counts().spikes == 1);
  Runs without("spike_loss = 3", false, "{}");
  without.run({6.5});
  CHECK(without.bad.counts().spikes == 0);
  CHECK(Runs("").bad.state() == "{}");
}

TEST_CASE("a second run tells a transient fault from a persistent one") {
  Runs transient("rerun = true");
  const auto result = transient.run({kNan, 2});
  CHECK(transient.forgotten == 1);
  CHECK(result.loss == 2);
  CHECK_FALSE(result.skipped);
  CHECK(transient.bad.judgement().transient);
  CHECK(transient.status() == kTransientFault);
  CHECK(static_cast<int>(transient.status()) == 16);
  CHECK_THAT(transient.ends(), Contains("transient fault") && Contains("--resume"));

  Runs persistent("rerun = true");
  persistent.run({kNan, kNan});
  CHECK(persistent.status() == kPersistentFault);
  CHECK(static_cast<int>(persistent.status()) == 17);
  CHECK_THAT(persistent.ends(), Contains("also when run a second time"));

  Runs skipped("rerun = true\nskip_bad_steps = 1");
  CHECK(skipped.run({kNan, kNan}).skipped);
  CHECK(skipped.ends() == "goes on");
  CHECK(skipped.run({kNan, kNan}).skipped);
  CHECK(skipped.status() == kPersistentFault);

  // A spike that is only said is run a second time, and then counts.
  Runs spike("rerun = true\nspike_loss = 3");
  spike.begin();
  const auto kept = spike.run({7, 7});
  CHECK(spike.limits.back().loss == kInfinity);
  CHECK_FALSE(kept.skipped);
  CHECK_THAT(spike.bad.judgement().warning, Contains("also when run a second time"));
  CHECK(spike.ends() == "goes on");
}

TEST_CASE("steps of train.skip_steps are skipped, not bad, and in no median") {
  Runs runs("skip_steps = '1-7, 9'\nspike_loss = 3");
  for (int i = 0; i < 7; ++i) {
    runs.bad.run(
        ++runs.step, runs.data,
        [](const StepLimits&) { return StepResult{.loss = kNan, .grad_norm = 1, .skipped = true}; },
        [] {});
    CHECK(runs.ends() == "goes on");
  }
  CHECK(runs.bad.counts().skipped == 7);
  CHECK(runs.bad.counts().bad == 0);
}

TEST_CASE("samples are named by their numbers in the run and their places in the data") {
  CHECK(name_samples({40, 8}, {}) == "samples 40 to 47");
  CHECK(name_samples({40, 6}, {3, 9, 10, 11, 40, 41}) ==
        "samples 40 to 45, indices 3, 9-11, 40, 41");
  CHECK(name_samples({0, 4}, {1, 3, 5, 7}, 2) == "samples 0 to 3, indices 1, 3 and 2 more");
}
