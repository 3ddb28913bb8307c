#include "exec/comm/threads.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/fail.h"
#include "exec/comm/pieces.h"
#include "exec/memory/allocator.h"
#include "exec/op_threads.h"

namespace perigee::exec {
namespace {

using Kind = Collective::Kind;

// One collective of one group. It runs in pieces after the last rank has joined; ranks that wait
// for it share the pieces.
struct SharedCollective {
  std::vector<Transfer> transfers;  // by position in its ranks
  std::vector<Operands> operands;   // set when all have joined
  JointTransfer joint;
  std::vector<bool> joined;
  size_t joined_count = 0;
  int64_t began = 0;

  // Set when all have joined.
  int64_t pieces = 0;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> finished{0};
  bool done = false;
  int64_t ended = 0;
};

// State that all ranks of a job share.
struct World {
  int64_t size;
  ThreadOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;                                            // why the job ended, or ""
  std::map<std::string, std::shared_ptr<SharedCollective>> open;  // not all ranks have joined
};

std::vector<Call> calls_of(const SharedCollective& collective) {
  std::vector<Call> calls;
  for (const auto& transfer : collective.transfers) calls.push_back(call_of(transfer));
  return calls;
}

class ThreadGroup : public Group {
 public:
  ThreadGroup(std::shared_ptr<World> world, const std::string& name,
              const std::vector<int64_t>& ranks, int64_t rank)
      : Group(name, ranks, rank), world_(std::move(world)) {
    key_ = fmt::format("{}/{}", name, fmt::join(ranks, ","));
  }

  std::shared_ptr<std::byte> one_memory(int64_t bytes) override;

  // Counts collectives and messages from 0 again.
  void restart() {
    next_ = 0;
    next_message_.clear();
  }

 protected:
  std::shared_ptr<Work> transfer(Transfer transfer) override;

 private:
  friend class ThreadWork;
  std::shared_ptr<World> world_;
  std::string key_;
  int64_t next_ = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> next_message_;  // (from, to)
};

class ThreadWork : public Work {
 public:
  ThreadWork(ThreadGroup& group, std::shared_ptr<SharedCollective> collective, size_t position,
             std::vector<int64_t> ranks)
      : world_(group.world_),
        group_(group),
        collective_(std::move(collective)),
        position_(position),
        ranks_(std::move(ranks)) {}

  void wait() override {
    std::unique_lock lock(world_->mutex);
    const auto limit = std::chrono::steady_clock::now() + world_->options.timeout;
    const auto until = [&](auto condition) {
      if (!world_->changed.wait_until(lock, limit,
                                      [&] { return condition() || !world_->failure.empty(); })) {
        fail_timeout();
      }
    };
    until([&] { return collective_->pieces > 0; });
    if (collective_->pieces > 0) {
      lock.unlock();
      help(*collective_, *world_);
      lock.lock();
      until([&] { return collective_->done; });
    }
    if (!collective_->done) {
      fail_run("communicator", "rank {} waits for {} over {}, but {}", group_.rank(),
               name_of(collective_->transfers[position_].kind), group_.name(), world_->failure);
    }
    lock.unlock();
    began = collective_->began;
    ended = collective_->ended;
    if (auto& unpack = collective_->transfers[position_].unpack) unpack();
    collective_->transfers[position_] = {};
  }

  // Runs pieces of the collective until none is left.
  static void help(SharedCollective& collective, World& world) {
    int64_t mine = 0;
    std::string error;
    for (int64_t piece; (piece = collective.next.fetch_add(1)) < collective.pieces; ++mine) {
      try {
        run_piece(collective.joint, piece);
      } catch (const std::exception& e) {
        error = e.what();
      }
    }
    if (mine == 0) return;
    const bool last = collective.finished.fetch_add(mine) + mine == collective.pieces;
    if (!last && error.empty()) return;
    std::lock_guard lock(world.mutex);
    if (!error.empty() && world.failure.empty()) world.failure = error;
    if (last) {
      collective.ended = now();
      collective.done = error.empty();
    }
    world.changed.notify_all();
  }

 private:
  [[noreturn]] void fail_timeout() {
    std::vector<int64_t> missing;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (!collective_->joined[i]) missing.push_back(ranks_[i]);
    }
    const auto text = fmt::format(
        "{} over {} must be joined by all its ranks within {} s, but rank {} did not join",
        name_of(collective_->transfers[position_].kind), group_.name(),
        std::chrono::duration<double>(world_->options.timeout).count(), fmt::join(missing, ", "));
    if (world_->failure.empty()) world_->failure = text;
    world_->changed.notify_all();
    fail_run("communicator", "rank {}: {}", group_.rank(), text);
  }

  std::shared_ptr<World> world_;
  ThreadGroup& group_;
  std::shared_ptr<SharedCollective> collective_;
  size_t position_;
  std::vector<int64_t> ranks_;  // of the collective
};

std::shared_ptr<Work> ThreadGroup::transfer(Transfer transfer) {
  if (transfer.pack) transfer.pack();
  // Two ranks meet for a message, all for a collective.
  std::string key = key_;
  size_t position = static_cast<size_t>(index());
  auto who = ranks();
  if (transfer.kind == Kind::send || transfer.kind == Kind::receive) {
    const bool sends = transfer.kind == Kind::send;
    const int64_t from = sends ? index() : transfer.peer, to = sends ? transfer.peer : index();
    key += fmt::format("/{}>{}#{}", from, to, next_message_[{from, to}]++);
    position = sends ? 0 : 1;
    who = {ranks()[from], ranks()[to]};
  } else {
    key += fmt::format("#{}", next_++);
  }
  std::unique_lock lock(world_->mutex);
  if (!world_->failure.empty()) {
    fail_run("communicator", "rank {} starts {} over {}, but {}", rank(), name_of(transfer.kind),
             name(), world_->failure);
  }
  auto& open = world_->open[key];
  if (!open) {
    open = std::make_shared<SharedCollective>();
    open->transfers.resize(who.size());
    open->joined.resize(who.size());
  }
  const auto collective = open;
  collective->transfers[position] = std::move(transfer);
  collective->joined[position] = true;
  auto work = std::make_shared<ThreadWork>(*this, collective, position, who);
  if (++collective->joined_count < who.size()) return work;
  world_->open.erase(key);
  const auto calls = calls_of(*collective);
  if (const auto wrong = mismatch(calls, name()); !wrong.empty()) {
    world_->failure = wrong;
    world_->changed.notify_all();
    fail_run("communicator", "rank {}: {}", rank(), wrong);
  }
  collective->began = now();
  for (const auto& call : calls) collective->operands.push_back(call.operands);
  collective->joint = {calls[0].kind, calls[0].type, calls[0].reduce, calls[0].peer,
                       collective->operands};
  collective->pieces = pieces_of(collective->joint);
  world_->changed.notify_all();
  lock.unlock();
  ThreadWork::help(*collective, *world_);
  return work;
}

std::shared_ptr<std::byte> ThreadGroup::one_memory(int64_t bytes) {
  const bool first = index() == 0;
  std::shared_ptr<std::byte> memory;
  if (first) memory = allocate_uncounted(bytes);
  // The others copy the first rank's pointer.
  auto address = at::full({1}, reinterpret_cast<int64_t>(&memory), at::kLong);
  run({.kind = Kind::broadcast, .input = first ? address : at::Tensor(), .output = address});
  if (!first) {
    memory = *reinterpret_cast<std::shared_ptr<std::byte>*>(*address.const_data_ptr<int64_t>());
  }
  run({.kind = Kind::barrier});
  if (!memory) fail_run("exec", "one copy of the weights needs {} bytes, but less is free", bytes);
  return counted_frames(std::move(memory), bytes / size(), false);
}

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<World> world, int64_t rank)
      : world_(std::move(world)), rank_(rank) {}
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return world_->size; }

  std::shared_ptr<Group> group(const std::string& name,
                               const std::vector<int64_t>& ranks) override {
    auto& group = groups_[{name, ranks}];
    if (!group) group = std::make_shared<ThreadGroup>(world_, name, ranks, rank_);
    return group;
  }

  void abort(const std::string& reason) override {
    std::lock_guard lock(world_->mutex);
    if (world_->failure.empty()) world_->failure = fmt::format("rank {} failed: {}", rank_, reason);
    world_->changed.notify_all();
  }

  bool restore() override {
    std::lock_guard lock(world_->mutex);
    world_->failure.clear();
    world_->open.clear();
    for (const auto& [key, group] : groups_) group->restart();
    return true;
  }

 private:
  std::shared_ptr<World> world_;
  int64_t rank_;
  std::map<std::pair<std::string, std::vector<int64_t>>, std::shared_ptr<ThreadGroup>> groups_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> thread_communicators(int64_t world,
                                                                ThreadOptions options) {
  auto shared = std::make_shared<World>();
  shared->size = world;
  shared->options = options;
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int64_t rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<ThreadCommunicator>(shared, rank));
  }
  return ranks;
}

void run_ranks(int64_t world, const std::function<void(Communicator&)>& body,
               ThreadOptions options) {
  auto communicators = thread_communicators(world, options);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (auto& communicator : communicators) {
    threads.emplace_back([&body, &mutex, &first, rank = communicator.get()] {
      set_op_threads(1);
      c10::AutoGradMode no_grad(false);
      try {
        body(*rank);
      } catch (const std::exception& error) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        rank->abort(error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace perigee::exec
