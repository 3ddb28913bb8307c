#include "tests/support/torch_test.h"

// The other headers come after LibTorch's.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "base/fail.h"
#include "exec/comm/threads.h"
#include "tests/support/temporary_folder.h"
#include "train/output/checkpoints.h"
#include "train/ranks/share.h"

namespace fs = std::filesystem;
using namespace perigee;
using namespace std::chrono_literals;
using test::error_of;
using test::Folder;
using train::CheckpointOptions;
using train::Checkpoints;

namespace {

constexpr int64_t kRanks = 2, kSize = 6;

// A tensor of which each rank has a half, and steps that change it.
struct Half {
  int64_t rank;
  std::vector<double> values = std::vector<double>(kSize / kRanks);

  explicit Half(int64_t rank) : rank(rank) {
    std::iota(values.begin(), values.end(), double(rank * kSize));
  }
  void step() {
    for (auto& value : values) value = value * 1.5 + 1 / (value + 2);
  }
  checkpoint::TensorPart part() const {
    return {"w", graph::DType::float64, {kSize}, {{rank * kSize / kRanks, kSize / kRanks}}};
  }
  void load(const std::string& folder) {
    checkpoint::Checkpoint(folder).read(part(), std::as_writable_bytes(std::span(values)));
  }
  Checkpoints::Pieces pieces() {
    const auto size = static_cast<int64_t>(values.size() * sizeof(double));
    return {.bytes = [=](int64_t) { return size; },
            .take =
                [this](int64_t, std::span<std::byte> copy) {
                  auto bytes = std::as_bytes(std::span(values));
                  if (!copy.empty()) {
                    std::copy(bytes.begin(), bytes.end(), copy.begin());
                    bytes = copy;
                  }
                  return Snapshot{.pieces = {{part(), bytes}}, .not_finite = {}};
                },
            .memory =
                [](int64_t bytes) {
                  return std::shared_ptr<std::byte>(new std::byte[static_cast<size_t>(bytes)],
                                                    std::default_delete<std::byte[]>());
                }};
  }
};

// Opens once, for all who wait.
class Gate {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 60s, [&] { return open_; })) fail_run("test", "a gate is closed");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

job::Job job_with(double timeout) {
  job::Job job;
  job.cluster.timeout = timeout;
  job.batch.global = 2;
  job.train.keep_checkpoints = 2;
  return job;
}

void run_with(double timeout, const std::function<void(exec::Communicator&, const job::Job&)>& f) {
  const auto job = job_with(timeout);
  exec::run_ranks(kRanks, [&](exec::Communicator& rank) { f(rank, job); },
                  {.timeout = std::chrono::milliseconds(int64_t(timeout * 1000))});
}

std::vector<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return {names.begin(), names.end()};
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a step goes on while its checkpoint is written, and the checkpoint has its values") {
  Folder folder;
  Gate gate;
  std::atomic<int> polls = 0;
  run_with(20, [&](exec::Communicator& rank, const job::Job& job) {
    Half half(rank.rank());
    CheckpointOptions options{.run = folder.path(), .plan_hash = "plan"};
    options.reached = [&](std::string_view stage) {
      if (stage == "tensor" && half.rank == 1) gate.wait();
    };
    Checkpoints checkpoints(rank, job, options, half.pieces());
    half.step();
    CHECK(checkpoints.begin(1, "{}", /*copies=*/true).value_or(-1) >= 0);
    for (int step = 2; step < 12; ++step) {
      half.step();
      checkpoints.poll();
    }
    if (++polls == kRanks) gate.open();
    // No more steps are needed than until the ranks have written. All ranks poll as often.
    const auto all = train::everyone(rank);
    while (train::share_number(checkpoint::newest_checkpoint(folder.path()).empty(), *all) > 0) {
      checkpoints.poll();
    }
  });
  const checkpoint::Checkpoint checkpoint(folder.at("checkpoints/step-1"));
  CHECK(checkpoint.info().samples == 2);
  CHECK(checkpoint.info().plan_hash == "plan");
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    Half expected(rank), stored(rank);
    expected.step();
    stored.load(checkpoint.folder());
    CHECK(stored.values == expected.values);
  }
}

TEST_CASE("each rank is told how many of its tensors are written") {
  Folder folder;
  std::atomic<int> told = 0;
  run_with(20, [&](exec::Communicator& rank, const job::Job& job) {
    Half half(rank.rank());
    CheckpointOptions options{.run = folder.path(), .plan_hash = "plan"};
    options.written = [&](int64_t part, int64_t all) { told += part == 0 && all == 1 ? 1 : 100; };
    Checkpoints checkpoints(rank, job, options, half.pieces());
    half.step();
    checkpoints.begin(1, "{}", /*copies=*/false);
    checkpoints.wait();
  });
  CHECK(told == kRanks);
}

TEST_CASE("a checkpoint waits for the one before, and the last one is waited for") {
  Folder folder;
  std::mutex mutex;
  std::vector<std::string> events;  // of rank 0
  Gate second;
  run_with(20, [&](exec::Communicator& rank, const job::Job& job) {
    Half half(rank.rank());
    int64_t step = 1;
    CheckpointOptions options{.run = folder.path(), .plan_hash = "plan"};
    options.reached = [&](std::string_view stage) {
      if (stage == "tensor") second.wait();
      std::lock_guard lock(mutex);
      if (half.rank == 0) events.emplace_back(stage);
    };
    options.sync = [&] {
      std::lock_guard lock(mutex);
      events.emplace_back("synced");
    };
    Checkpoints checkpoints(rank, job, options, half.pieces());
    for (; step <= 2; ++step) {
      half.step();
      checkpoints.poll();
      if (step == 2) second.open();
      checkpoints.begin(step, "{}", /*copies=*/step == 1);
    }
    checkpoints.wait();
    CHECK(checkpoint::newest_checkpoint(folder.path()) == folder.at("checkpoints/step-2"));
    checkpoints.wait();  // there is none
  });
  const Names one = {"begun",  "tensor", "tensors", "rank",
                     "synced", "index",  "renamed", "complete"};
  auto expected = one;
  expected.insert(expected.end(), one.begin(), one.end());
  CHECK(events == expected);
  CHECK(names_in(folder.at("checkpoints")) == Names{"step-1", "step-2"});
}

TEST_CASE("a checkpoint whose pieces are not accepted does not begin") {
  Folder folder;
  run_with(20, [&](exec::Communicator& rank, const job::Job& job) {
    Half half(rank.rank());
    auto pieces = half.pieces();
    pieces.accept = [](int64_t step, const auto&) { return step != 2; };
    Checkpoints checkpoints(rank, job, {.run = folder.path(), .plan_hash = "plan"}, pieces);
    CHECK(checkpoints.begin(1, "{}", /*copies=*/true));
    CHECK_FALSE(checkpoints.begin(2, "{}", /*copies=*/true));
    checkpoints.wait();  // there is none
  });
  CHECK(names_in(folder.at("checkpoints")) == Names{"step-1"});
}

TEST_CASE("a disk that takes three time-outs ends no job") {
  constexpr double kTimeout = 0.5;
  for (const std::string slow : {"tensors", "index"}) {
    Folder folder;
    std::atomic<bool> slept = false;
    run_with(kTimeout, [&](exec::Communicator& rank, const job::Job& job) {
      Half half(rank.rank());
      CheckpointOptions options{.run = folder.path(), .plan_hash = "plan"};
      options.reached = [&](std::string_view stage) {
        if (stage != slow || half.rank != 0 || slept.exchange(true)) return;
        std::this_thread::sleep_for(std::chrono::duration<double>(3 * kTimeout));
      };
      Checkpoints checkpoints(rank, job, options, half.pieces());
      checkpoints.begin(1, "{}", true);
      for (int step = 0; step < 5; ++step) checkpoints.poll();  // the job goes on
      checkpoints.begin(2, "{}", true);                         // and waits
      checkpoints.wait();
    });
    CHECK(slept);
    CHECK(names_in(folder.at("checkpoints")) == Names{"step-1", "step-2"});
  }
}

TEST_CASE("an error of writing ends the job at its next step, and earlier checkpoints stay") {
  for (const std::string stage : {"tensor", "tensors", "rank", "index"}) {
    const int64_t victim = stage == "index" ? 0 : 1;
    for (const bool waits : {false, true}) {
      INFO(stage << " " << waits);
      Folder folder;
      const auto body = [&](exec::Communicator& rank, const job::Job& job) {
        Half half(rank.rank());
        int64_t step = 1;
        CheckpointOptions options{.run = folder.path(), .plan_hash = "plan"};
        options.reached = [&](std::string_view reached) {
          if (half.rank == victim && reached == stage && step == 2) {
            fail_run("file", "the disk of rank {} is full", half.rank);
          }
        };
        Checkpoints checkpoints(rank, job, options, half.pieces());
        checkpoints.begin(step, "{}", true);
        checkpoints.wait();
        checkpoints.begin(++step, "{}", true);
        if (waits) checkpoints.wait();
        while (true) checkpoints.poll();
      };
      CHECK(error_of([&] { run_with(20, body); }) ==
            fmt::format("[file] the disk of rank {} is full", victim));
      CHECK(names_in(folder.at("checkpoints")) == Names{"step-1"});
      checkpoint::Checkpoint(folder.at("checkpoints/step-1")).verify();
    }
  }
}

TEST_CASE("a job that fails gives up a checkpoint that is being written") {
  Folder folder;
  Gate gate;
  CHECK(error_of([&] {
          run_with(20, [&](exec::Communicator& rank, const job::Job& job) {
            Half half(rank.rank());
            CheckpointOptions options{.run = folder.path(), .plan_hash = "plan"};
            options.reached = [&](std::string_view stage) {
              if (stage == "tensor") gate.wait();
            };
            Checkpoints checkpoints(rank, job, options, half.pieces());
            checkpoints.begin(1, "{}", true);
            gate.open();
            fail_run("test", "rank {} fails", rank.rank());
          });
        }).starts_with("[test] rank "));
  CHECK(checkpoint::newest_checkpoint(folder.path()).empty());
}

namespace {

constexpr int64_t kSteps = 5;

// Runs the ranks as threads that leave LibTorch's thread pool alone: a forked process may not
// set it.
void run_forked(const std::function<void(exec::Communicator&, const job::Job&)>& body) {
  const auto job = job_with(20);
  auto ranks = exec::thread_communicators(kRanks, {.timeout = 20s});
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { body(*rank, job); });
  for (auto& thread : threads) thread.join();
}

// Trains from the newest checkpoint to the last step. Calls `reached` at each stage of writing.
std::vector<double> train_halves(const std::string& run, const std::function<void()>& reached) {
  std::vector<double> all(kSize);
  run_forked([&](exec::Communicator& rank, const job::Job& job) {
    Half half(rank.rank());
    const auto newest = checkpoint::newest_checkpoint(run);
    int64_t first = 1;
    if (!newest.empty()) {
      half.load(newest);
      first = checkpoint::Checkpoint(newest).info().step + 1;
    }
    train::barrier(rank);  // before rank 0 removes an unfinished checkpoint
    CheckpointOptions options{.run = run, .plan_hash = "plan"};
    if (reached) options.reached = [&](std::string_view) { reached(); };
    Checkpoints checkpoints(rank, job, options, half.pieces());
    for (int64_t step = first; step <= kSteps; ++step) {
      half.step();
      if (step % 2 == 0 || step == kSteps) {
        checkpoints.begin(step, "{}", step < kSteps);
      } else {
        checkpoints.poll();
      }
    }
    checkpoints.wait();
    std::copy(half.values.begin(), half.values.end(), all.begin() + half.rank * kSize / kRanks);
  });
  return all;
}

}  // namespace

TEST_CASE("a run that is killed at any stage of writing ends bit-equal to one that is not") {
  Folder whole;
  std::atomic<int> stages = 0;
  const auto expected = train_halves(whole.path(), [&] { ++stages; });
  CHECK(stages == 3 * 10);  // of 3 checkpoints: 3 of each rank, 4 of rank 0
  std::set<int64_t> resumed_after;
  for (int last = 1; last <= stages; ++last) {
    INFO("killed at stage " << last);
    Folder folder;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::alarm(60);
      std::atomic<int> count = 0;
      train_halves(folder.path(), [&] {
        if (++count == last) ::kill(::getpid(), SIGKILL);
      });
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    const auto newest = checkpoint::newest_checkpoint(folder.path());
    resumed_after.insert(newest.empty() ? 0 : checkpoint::Checkpoint(newest).info().step);
    CHECK(train_halves(folder.path(), nullptr) == expected);
    const auto end = checkpoint::newest_checkpoint(folder.path());
    CHECK(end == folder.at("checkpoints/step-5"));
    checkpoint::Checkpoint(end).verify();
  }
  CHECK(resumed_after == std::set<int64_t>{0, 2, 4, 5});
}
