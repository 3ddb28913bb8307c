#include "exec/comm/threads.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/fail.h"
#include "exec/comm/reduce.h"

namespace perigee::exec {
namespace {

using Kind = Collective::Kind;
using at::Tensor;

// One collective of one group. It runs in pieces after the last rank has joined; ranks that wait
// for it share the pieces.
struct SharedCollective {
  std::vector<Transfer> transfers;  // by position in its ranks
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

constexpr int64_t kPiece = 32768;  // elements

int64_t pieces_of(const SharedCollective& collective) {
  const auto& t = collective.transfers[0];
  const auto n = static_cast<int64_t>(collective.transfers.size());
  switch (t.kind) {
    case Kind::all_reduce:
      return std::max<int64_t>(1, (t.input.numel() + kPiece - 1) / kPiece);
    case Kind::all_gather:
    case Kind::all_to_all:
      return n * n;
    case Kind::reduce_scatter:
    case Kind::broadcast:
      return n;
    default:
      return 1;
  }
}

int64_t sum_before(const std::vector<int64_t>& counts, int64_t index) {
  int64_t sum = 0;
  for (int64_t i = 0; i < index; ++i) sum += counts[i];
  return sum;
}

void copy_elements(const Tensor& from, int64_t first, const Tensor& to, int64_t at, int64_t count) {
  if (count == 0) return;
  const auto size = static_cast<int64_t>(from.element_size());
  const auto* source = static_cast<const char*>(from.const_data_ptr()) + first * size;
  auto* target = static_cast<char*>(to.mutable_data_ptr()) + at * size;
  if (source != target) std::memmove(target, source, static_cast<size_t>(count * size));
}

void run_piece(SharedCollective& collective, int64_t piece) {
  auto& all = collective.transfers;
  const auto n = static_cast<int64_t>(all.size());
  const auto column = [&](Tensor Transfer::*member) {
    std::vector<Tensor> tensors;
    for (auto& t : all) tensors.push_back(t.*member);
    return tensors;
  };
  switch (all[0].kind) {
    case Kind::all_reduce: {
      const int64_t begin = piece * kPiece, end = std::min(begin + kPiece, all[0].input.numel());
      return reduce_elements(column(&Transfer::input), column(&Transfer::output), all[0].reduce,
                             begin, end);
    }
    case Kind::reduce_scatter: {
      const auto& counts = all[0].input_counts;
      const int64_t at = sum_before(counts, piece), count = counts[piece];
      if (count == 0) return;
      std::vector<Tensor> inputs;
      for (auto& t : all) inputs.push_back(t.input.narrow(0, at, count));
      return reduce_elements(inputs, std::span(&all[piece].output, 1), all[0].reduce, 0, count);
    }
    case Kind::all_gather: {
      const int64_t from = piece / n, to = piece % n;
      const auto& counts = all[to].output_counts;
      return copy_elements(all[from].input, 0, all[to].output, sum_before(counts, from),
                           counts[from]);
    }
    case Kind::all_to_all: {
      const int64_t from = piece / n, to = piece % n;
      return copy_elements(all[from].input, sum_before(all[from].input_counts, to), all[to].output,
                           sum_before(all[to].output_counts, from), all[from].input_counts[to]);
    }
    case Kind::broadcast:
      return copy_elements(all[all[0].peer].input, 0, all[piece].output, 0,
                           all[piece].output.numel());
    case Kind::send:
    case Kind::receive: {
      const int sender = all[0].kind == Kind::send ? 0 : 1;
      return copy_elements(all[sender].input, 0, all[1 - sender].output, 0,
                           all[sender].input.numel());
    }
    case Kind::barrier:
      return;
  }
}

// Returns an error text for a collective whose ranks started different collectives, or "".
std::string mismatch(const SharedCollective& collective, const Group& group) {
  const auto& first = collective.transfers[0];
  const auto numel = [](const Transfer& t) {
    return t.input.defined() ? t.input.numel() : t.output.defined() ? t.output.numel() : 0;
  };
  const auto type = [](const Transfer& t) {
    return t.input.defined()    ? t.input.scalar_type()
           : t.output.defined() ? t.output.scalar_type()
                                : at::kByte;
  };
  for (const auto& t : collective.transfers) {
    const bool pair = (first.kind == Kind::send && t.kind == Kind::receive) ||
                      (first.kind == Kind::receive && t.kind == Kind::send);
    const bool sizes = numel(t) == numel(first) || t.kind == Kind::all_gather ||
                       t.kind == Kind::all_to_all;
    if ((t.kind != first.kind && !pair) || !sizes || type(t) != type(first) ||
        t.reduce != first.reduce) {
      return fmt::format(
          "all ranks of {} must start the same collective, but got {} of {} {} and {} of {} {}",
          group.name(), name_of(first.kind), numel(first), c10::toString(type(first)),
          name_of(t.kind), numel(t), c10::toString(type(t)));
    }
  }
  return "";
}

class ThreadGroup : public Group {
 public:
  ThreadGroup(std::shared_ptr<World> world, const std::string& name,
              const std::vector<int64_t>& ranks, int64_t rank)
      : Group(name, ranks, rank), world_(std::move(world)) {
    key_ = fmt::format("{}/{}", name, fmt::join(ranks, ","));
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
        run_piece(collective, piece);
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
  if (const auto wrong = mismatch(*collective, *this); !wrong.empty()) {
    world_->failure = wrong;
    world_->changed.notify_all();
    fail_run("communicator", "rank {}: {}", rank(), wrong);
  }
  collective->began = now();
  collective->pieces = pieces_of(*collective);
  world_->changed.notify_all();
  lock.unlock();
  ThreadWork::help(*collective, *world_);
  return work;
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
      at::set_num_threads(1);
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
