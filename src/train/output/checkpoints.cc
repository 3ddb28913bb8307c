#include "train/output/checkpoints.h"

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "train/output/best_step.h"
#include "train/output/finite_weights.h"
#include "train/ranks/share.h"
#include "train/ranks/wait_for_work.h"

namespace perigee::train {
namespace {

// Work on a thread of its own, one at a time.
class Background {
 public:
  ~Background() { finish(); }

  void start(std::function<void()> work) {
    error_ = nullptr;
    ended_ = false;
    thread_ = std::thread([this, work = std::move(work)] {
      try {
        work();
      } catch (...) {
        error_ = std::current_exception();
      }
      ended_ = true;
    });
  }
  bool works() const { return !ended_; }
  bool has_failed() const { return ended_ && error_; }
  void finish() {
    if (thread_.joinable()) thread_.join();
  }
  // Waits for the work. Throws what it threw.
  void join() {
    finish();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::thread thread_;
  std::exception_ptr error_;  // valid once `ended_`
  std::atomic<bool> ended_ = true;
};

}  // namespace

struct Checkpoints::Impl {
  enum class Phase {
    idle,
    writing,     // every rank writes its pieces
    completing,  // all have; rank 0 completes the checkpoint
  };

  exec::Communicator& communicator;
  const job::Job& job;
  CheckpointOptions options;
  Pieces pieces;
  std::shared_ptr<exec::Group> all;
  bool root;

  Phase phase = Phase::idle;
  int64_t step = 0;
  std::string loop_state;  // at the step
  std::optional<checkpoint::CheckpointWriter> writer;
  std::shared_ptr<std::byte> memory;  // of the copy
  int64_t room = 0;                   // bytes of it
  int64_t part = 0, parts = 0;        // of the tensors that are being written
  at::Tensor state = at::zeros({1}, at::kLong);
  std::atomic<bool> cancelled = false;
  Background background;  // destroyed first: it uses the others

  Impl(exec::Communicator& ranks, const job::Job& given, CheckpointOptions how, Pieces from)
      : communicator(ranks),
        job(given),
        options(std::move(how)),
        pieces(std::move(from)),
        all(everyone(ranks)),
        root(ranks.rank() == 0) {}

  void reserve(int64_t for_step) {
    const auto bytes = pieces.bytes(for_step);
    if (bytes <= room) return;
    memory.reset();
    room = 0;
    memory = pieces.memory(bytes);
    room = bytes;
  }

  void reach(std::string_view stage) {
    if (stage == "tensor") options.written(part++, parts);
    if (cancelled) fail_run("checkpoint", "the checkpoint of step {} was given up", step);
    if (options.reached) options.reached(stage);
  }

  void write(const std::vector<checkpoint::Piece>& mine) {
    part = 0;
    parts = std::ssize(mine);
    writer->write_rank(communicator.rank(), mine);
  }

  void complete() {
    options.sync();
    checkpoint::CheckpointInfo info;
    info.step = step;
    info.samples = step * job.batch.global + options.more_samples;
    info.state = loop_state;
    info.plan_hash = options.plan_hash;
    const auto spared = job.train.keep_best ? best_step_of(loop_state) : 0;
    writer->finish(info, communicator.world(), job.train.keep_checkpoints, spared);
  }

  // Returns whether the checkpoint has begun.
  bool begin(int64_t of_step, const std::string& state_text, bool copies) {
    step = of_step;
    loop_state = state_text;
    if (copies) reserve(step);
    auto snapshot = pieces.take(step, {memory.get(), static_cast<size_t>(copies ? room : 0)});
    if (!pieces.accept(step, snapshot)) return false;
    writer.emplace(options.run, step, [this](std::string_view stage) { reach(stage); });
    const auto make_folder = [&] {
      options.check();
      writer->begin();
    };
    wait_for_work(*all, job, root ? std::function<void()>(make_folder) : nullptr);
    // A rank that fails to write removes its files, and the folder with the last of them: before any
    // rank writes, all have found it.
    wait_for_work(*all, job, [&] { writer->find(communicator.rank()); });
    phase = Phase::writing;
    background.start([this, mine = std::move(snapshot.pieces)] { write(mine); });
    return true;
  }

  // Moves on from a phase whose work has ended on all ranks.
  void advance() {
    background.join();
    if (phase == Phase::completing) {
      writer.reset();
      phase = Phase::idle;
      return;
    }
    phase = Phase::completing;
    if (root) background.start([this] { complete(); });
  }

  void poll() {
    auto& own = *state.data_ptr<int64_t>();
    own = background.has_failed() ? -1 : background.works() ? 0 : 1;
    if (all->size() > 1) all->run({.input = state, .output = state, .reduce = mesh::Reduce::min});
    if (own == 0) return;
    if (own > 0) return advance();
    background.join();                                    // throws on the rank that has failed
    all->run({.kind = exec::Collective::Kind::barrier});  // which leaves the others here
    fail_run("checkpoint", "another rank could not write its part of step {}", step);
  }

  void wait() {
    if (phase == Phase::writing) {
      wait_for_work(*all, job, [&] { background.join(); });
      advance();
    }
    wait_for_work(*all, job, root ? std::function<void()>([&] { background.join(); }) : nullptr);
    advance();
  }

  // Ends the checkpoint that is being written. Rank 0, which alone could complete it, removes it
  // all. Another rank whose pieces are on the disk leaves them: rank 0 may be completing it.
  void drop() noexcept {
    cancelled = phase == Phase::writing;  // completing it is short, and all its pieces are there
    background.finish();
    cancelled = false;  // else no request could remove it
    if (writer && root) writer->abandon_all();
    if (writer && !root && (phase == Phase::idle || background.has_failed())) {
      writer->abandon(communicator.rank());
    }
    writer.reset();
    phase = Phase::idle;
  }

  template <class F>
  void guarded(const F& f) {
    try {
      f();
    } catch (...) {
      drop();
      throw;
    }
  }
};

Checkpoints::Checkpoints(exec::Communicator& communicator, const job::Job& job,
                         CheckpointOptions options, Pieces pieces)
    : impl_(std::make_unique<Impl>(communicator, job, std::move(options), std::move(pieces))) {}

Checkpoints::Checkpoints(RankTrainer& trainer, exec::Communicator& communicator,
                         const job::Job& job, CheckpointOptions options)
    : Checkpoints(communicator, job, std::move(options),
                  {.bytes = [&trainer](int64_t step) { return trainer.bytes_to_write(step); },
                   .take =
                       [&trainer](int64_t step, std::span<std::byte> copy) {
                         trainer.average_copies(step);
                         return trainer.pieces_to_write(step, copy);
                       },
                   .memory = [&trainer](int64_t bytes) { return trainer.host_memory(bytes); },
                   .accept =
                       [&](int64_t step, const Snapshot& snapshot) {
                         return are_weights_finite(trainer, snapshot, communicator, job, step);
                       }}) {}

Checkpoints::~Checkpoints() { impl_->drop(); }

void Checkpoints::reserve(int64_t step) { impl_->reserve(step); }

std::optional<double> Checkpoints::begin(int64_t step, const std::string& state, bool copies) {
  const auto start = std::chrono::steady_clock::now();
  wait();
  bool begun = false;
  impl_->guarded([&] { begun = impl_->begin(step, state, copies); });
  if (!begun) return std::nullopt;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Checkpoints::poll() {
  if (impl_->phase == Impl::Phase::idle) return;
  impl_->guarded([&] { impl_->poll(); });
}

void Checkpoints::wait() {
  if (impl_->phase == Impl::Phase::idle) return;
  impl_->guarded([&] { impl_->wait(); });
}

}  // namespace perigee::train
