// Recorded and replayed steps of whole programs: each bit of the steps that run as the host submits
// them, with other batches, learning rates and random numbers in each step; and faults, which are found.
#include <algorithm>
#include <atomic>
#include <set>

#include "tests/cuda/simulated/programs/plans.h"
#include "tests/cuda/simulated/turns.h"
#include "tests/support/torch_test.h"

namespace perigee::cuda {
namespace {

using Catch::Contains;

// Rows with ops that read numbers on the host.
const std::set<std::string> kUnrecordable = {"dropless", "experts"};

// Runs `seeds` seeds, each on one of the plans.
void replay_seeds(uint64_t first, uint64_t seeds) {
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const auto& row = rows()[seed % rows().size()];
    if (kUnrecordable.contains(row.name)) continue;
    INFO(row.name << ", seed " << seed);
    const auto& of = compiled(row.name);
    const auto run = simulate_varied(of, seed);
    REQUIRE(run.finding() == "");
    REQUIRE(varied_difference(of, run) == "");
  }
}

TEST_CASE("every plan computes the CPU's bits in replayed steps, with validation between them") {
  replay_seeds(0, rows().size());
}

TEST_CASE("every plan computes the CPU's bits in replayed steps in 1000 orders", "[.long]") {
  replay_seeds(100, 1000);
}

TEST_CASE("the same steps without a record compute the same bits") {
  for (const char* name : {"fsdp", "local", "dropless"}) {
    INFO(name);
    const auto& of = compiled(name);
    const auto run = simulate_varied(of, 5, {.replay = false});
    REQUIRE(run.finding() == "");
    REQUIRE(varied_difference(of, run) == "");
  }
}

TEST_CASE("a seed repeats the order of replayed work, and another one has another order") {
  const auto& of = compiled("zero2");
  const auto order = simulate_varied(of, 3).order;
  CHECK(simulate_varied(of, 3).order == order);
  CHECK(simulate_varied(of, 4).order != order);
}

TEST_CASE("a program with an op that reads numbers on the host is not recorded, by its name") {
  for (const auto& name : kUnrecordable) {
    INFO(name);
    CHECK_THAT(simulate_varied(compiled(name), 1).errors[0],
               Contains("recorded steps need ops that the host does not wait for, but perigee::") &&
                   Contains("in scope \"blocks.0.experts\" reads numbers on the host"));
  }
}

// ---- negative controls: a recorder that does one thing wrong

class Wrapped : public exec::RecordedStep {
 public:
  explicit Wrapped(std::unique_ptr<exec::RecordedStep> inner) : inner_(std::move(inner)) {}
  void write(size_t upload, const at::Tensor& source) override { inner_->write(upload, source); }
  void record(const std::function<void()>& submit) override { inner_->record(submit); }
  void upload(const at::Tensor& target) override { inner_->upload(target); }
  const uint32_t* step_in_memory() const override { return inner_->step_in_memory(); }
  void launch(const Launch& launch) override { inner_->launch(launch); }

 protected:
  std::unique_ptr<exec::RecordedStep> inner_;
};

// All launches have the batches of the first one.
class KeepsBatches : public Wrapped {
 public:
  using Wrapped::Wrapped;
  void write(size_t upload, const at::Tensor& source) override {
    if (!launched_) inner_->write(upload, source);
  }
  void launch(const Launch& launch) override {
    launched_ = true;
    inner_->launch(launch);
  }

 private:
  bool launched_ = false;
};

// Two loads of equally many bytes have one buffer, which has the batch that was written last.
class SharesBuffers : public Wrapped {
 public:
  using Wrapped::Wrapped;
  void write(size_t upload, const at::Tensor& source) override {
    sources_.resize(std::max(sources_.size(), upload + 1));
    sources_[upload] = source.clone();
  }
  void launch(const Launch& launch) override {
    for (size_t i = 0; i < sources_.size(); ++i) {
      auto last = i;
      for (size_t j = i; j < sources_.size(); ++j) {
        if (sources_[j].nbytes() == sources_[i].nbytes()) last = j;
      }
      inner_->write(i, sources_[last]);
    }
    inner_->launch(launch);
  }

 private:
  std::vector<at::Tensor> sources_;
};

// Random ops have the step that was recorded.
class KeepsStep : public Wrapped {
 public:
  using Wrapped::Wrapped;
  const uint32_t* step_in_memory() const override { return nullptr; }
};

template <class Step>
class Faulty : public exec::Recorder {
 public:
  explicit Faulty(exec::Recorder& inner) : inner_(inner) {}
  std::unique_ptr<exec::RecordedStep> prepare(std::span<const int64_t> upload_bytes) override {
    return std::make_unique<Step>(inner_.prepare(upload_bytes));
  }

 private:
  exec::Recorder& inner_;
};

template <class Step>
std::string difference_with(const std::string& row) {
  const auto& of = compiled(row);
  const auto run = simulate_varied(
      of, 2, {.recorder = [](exec::Recorder& inner) -> std::unique_ptr<exec::Recorder> {
        return std::make_unique<Faulty<Step>>(inner);
      }});
  CHECK(run.finding() == "");
  return varied_difference(of, run);
}

TEST_CASE("a batch, a buffer or a step that is not the launch's own changes results") {
  for (const char* row : {"data", "1f1b"}) {
    INFO(row);
    CHECK(difference_with<Wrapped>(row) == "");
    CHECK_THAT(difference_with<KeepsBatches>(row), Contains("has other losses"));
    CHECK_THAT(difference_with<SharesBuffers>(row), Contains("has other losses"));
    CHECK_THAT(difference_with<KeepsStep>(row), Contains("has other losses"));
  }
}

// Work is refused after all of it was submitted, at its first batch, or at its second one.
class RefusesAtEnd : public Wrapped {
 public:
  using Wrapped::Wrapped;
  void record(const std::function<void()>& submit) override {
    inner_->record([&] {
      submit();
      throw Error(Status::failed, "exec", "the graph is refused");
    });
  }
};

class RefusesBatches : public Wrapped {
 public:
  using Wrapped::Wrapped;
  void upload(const at::Tensor&) override {
    throw Error(Status::failed, "exec", "the batch is refused");
  }
};

class RefusesSecondBatch : public Wrapped {
 public:
  using Wrapped::Wrapped;
  void upload(const at::Tensor& target) override {
    if (uploads_++ == 1) throw Error(Status::failed, "exec", "the second batch is refused");
    inner_->upload(target);
  }

 private:
  int uploads_ = 0;
};

// On one of the ranks, or on all of them.
template <class Step>
Simulated refuse_steps(const Compiled& of, bool all, bool required) {
  std::atomic<bool> refused = false;
  const Varied how{.required = required,
                   .recorder = [&](exec::Recorder& inner) -> std::unique_ptr<exec::Recorder> {
                     if (refused.exchange(true) && !all)
                       return std::make_unique<Faulty<Wrapped>>(inner);
                     return std::make_unique<Faulty<Step>>(inner);
                   }};
  return simulate_varied(of, 2, how);
}

TEST_CASE("steps that a rank cannot record run without a record, unless it is required") {
  for (const char* row : {"data", "1f1b", "local", "offload"}) {
    INFO(row);
    const auto& of = compiled(row);
    for (const bool all : {false, true}) {
      for (const auto& run : {refuse_steps<RefusesAtEnd>(of, all, false),
                              refuse_steps<RefusesBatches>(of, all, false)}) {
        CHECK(run.finding() == "");
        CHECK(varied_difference(of, run) == "");
      }
      // Midway, transfers are in flight, whose streams CUDA finds not joined when the record ends.
      auto run = refuse_steps<RefusesSecondBatch>(of, all, false);
      for (const auto& rule : run.broken_rules) {
        CHECK_THAT(rule, Contains("is joined before the capture ends"));
      }
      run.broken_rules.clear();
      CHECK(run.finding() == "");
      CHECK(varied_difference(of, run) == "");
    }
    const auto run = refuse_steps<RefusesAtEnd>(of, true, true);
    CHECK_THAT(run.errors[0], Contains("must be recorded as a CUDA graph, but got: ") &&
                                  Contains("the graph is refused; set cluster.graphs = false"));
  }
}

// While a thread captures, its waits of a kind do nothing.
thread_local bool captures = false;
std::string without_wait;
decltype(cudaStreamBeginCapture)* begin_capturing = nullptr;
decltype(cudaStreamEndCapture)* end_capturing = nullptr;
decltype(cudaStreamWaitEvent)* wait_for_event = nullptr;

void leave_out_waits(Calls& table) {
  begin_capturing = table.cudaStreamBeginCapture;
  end_capturing = table.cudaStreamEndCapture;
  wait_for_event = table.cudaStreamWaitEvent;
  table.cudaStreamBeginCapture = [](cudaStream_t stream, cudaStreamCaptureMode mode) {
    captures = true;
    return begin_capturing(stream, mode);
  };
  table.cudaStreamEndCapture = [](cudaStream_t stream, cudaGraph_t* graph) {
    captures = false;
    return end_capturing(stream, graph);
  };
  table.cudaStreamWaitEvent = [](cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    if (captures && simulated::label().starts_with(without_wait)) return cudaSuccess;
    return wait_for_event(stream, event, flags);
  };
}

TEST_CASE(
    "streams that are not joined to a recorded step, or not by its program's waits, are found") {
  struct Control {
    std::string row, wait, call, rule;
  };
  // The end of a collective is recorded on a stream that joins by the same wait.
  for (const auto& control : {Control{"tensor", "the wait for event", "cudaEventRecordWithFlags",
                                      "an external record is on a captured stream"},
                              Control{"offload", "the wait for event", "cudaStreamEndCapture",
                                      "is joined before the capture ends"}}) {
    INFO(control.row);
    without_wait = control.wait;
    const auto run = simulate_varied(compiled(control.row), 1, {.change = leave_out_waits});
    CHECK_THAT(run.errors[0], Contains("step 2 must be recorded as a CUDA graph, but got: ") &&
                                  Contains(control.call) && Contains("set cluster.graphs = false"));
    CHECK_THAT(run.broken_rules.at(0), Contains(control.rule));
  }
}

}  // namespace
}  // namespace perigee::cuda
