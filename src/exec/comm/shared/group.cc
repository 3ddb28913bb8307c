#include "exec/comm/shared/group.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "exec/memory/allocator.h"

namespace perigee::exec {

using Kind = Collective::Kind;
using std::chrono::steady_clock;

// A collective that this rank has started. Its fields belong to the group's lock, but for those
// that the slot's phases order.
class SharedWork : public Work {
 public:
  SharedWork(SharedGroup& group, Transfer transfer)
      : group_(group), kind_(transfer.kind), transfer_(std::move(transfer)) {}
  void wait() override { group_.wait(*this); }

 private:
  friend class SharedGroup;
  SharedGroup& group_;
  Kind kind_;
  Transfer transfer_;
  // Copies of operands that are not shared.
  std::shared_ptr<std::byte> input_copy_, output_copy_;
  SharedPlace input_, output_;
  SharedGroup::Channel* channel_ = nullptr;
  int64_t number_ = -1;  // in the channel; -1: waits for a slot
  Slot* slot_ = nullptr;
  std::vector<Operands> operands_;  // of all ranks, once a piece is run here
  std::vector<std::shared_ptr<Mapping>> mappings_;
  JointTransfer joint_;
  int users_ = 0;  // threads that run its pieces
  std::atomic<bool> ended_ = false;
  std::string error_;
};

namespace {

constexpr int64_t kInline = 8;  // pieces that a rank runs rather than wake others for
constexpr int64_t kLook = 40;   // milliseconds of sleep between looks at the other ranks

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

Call call_at(const Ring& ring, int64_t number, int64_t rank) {
  const auto& c = ring.call(number, rank);
  const auto* counts = ring.counts(number, rank);
  Call call{.kind = static_cast<Kind>(c.kind),
            .type = static_cast<at::ScalarType>(c.type),
            .reduce = static_cast<mesh::Reduce>(c.reduce),
            .peer = c.peer};
  // Any address that is not null: this process may not have mapped the buffers.
  static std::byte present;
  if (c.input.segment != 0) call.operands.input = &present;
  if (c.output.segment != 0) call.operands.output = &present;
  call.operands.input_elements = c.input_elements;
  call.operands.output_elements = c.output_elements;
  call.operands.input_counts = {counts, static_cast<size_t>(c.input_parts)};
  call.operands.output_counts = {counts + ring.ranks(), static_cast<size_t>(c.output_parts)};
  return call;
}

}  // namespace

SharedGroup::SharedGroup(const std::string& name, const std::vector<int64_t>& ranks, int64_t rank,
                         const SharedProcess& process,
                         std::vector<std::shared_ptr<PeerMemory>> peers,
                         std::shared_ptr<std::byte> segment)
    : Group(name, ranks, rank),
      process_(process),
      peers_(std::move(peers)),
      segment_(std::move(segment)),
      layout_(segment_.get(), size()) {
  collectives_.ring = layout_.collectives();
  for (int64_t i = 0; i < size(); ++i) collectives_.positions.push_back(i);
  collectives_.me = index();
}

SharedGroup::Channel& SharedGroup::channel(Kind kind, int64_t peer) {
  if (kind != Kind::send && kind != Kind::receive) return collectives_;
  const bool sends = kind == Kind::send;
  const std::pair pair = sends ? std::pair{index(), peer} : std::pair{peer, index()};
  auto& found = messages_[pair];
  if (found.positions.empty()) {
    found.ring = layout_.messages(pair.first, pair.second);
    found.positions = {pair.first, pair.second};
    found.me = sends ? 0 : 1;
  }
  return found;
}

std::shared_ptr<Work> SharedGroup::transfer(Transfer transfer) {
  if (transfer.pack) transfer.pack();
  auto work = std::make_shared<SharedWork>(*this, std::move(transfer));
  auto& t = work->transfer_;
  auto& memory = *process_.memory;
  const auto place = [&](const at::Tensor& tensor, std::shared_ptr<std::byte>& copy) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (auto found = memory.find(tensor.const_data_ptr(), bytes); found && bytes > 0) return *found;
    copy = memory.borrow(bytes);
    return *memory.find(copy.get(), bytes);
  };
  if (t.input.defined()) {
    work->input_ = place(t.input, work->input_copy_);
    if (work->input_copy_ && t.input.nbytes() > 0) {
      std::memcpy(work->input_copy_.get(), t.input.const_data_ptr(), t.input.nbytes());
    }
  }
  if (t.output.defined()) {
    const bool in_place = t.input.defined() && t.input.nbytes() == t.output.nbytes() &&
                          t.input.const_data_ptr() == t.output.const_data_ptr();
    if (in_place && work->input_copy_) {
      work->output_copy_ = work->input_copy_;
      work->output_ = work->input_;
    } else {
      work->output_ = place(t.output, work->output_copy_);
    }
  }
  std::vector<std::shared_ptr<SharedWork>> complete;
  bool waits = false;
  {
    std::lock_guard lock(mutex_);
    auto& c = channel(t.kind, t.peer);
    work->channel_ = &c;
    c.waiting.push_back(work);
    join_slots(c, complete);
    waits = !c.waiting.empty();
  }
  start(complete);
  // This rank may wait elsewhere for what the transfer's other rank does after it.
  if (waits) process_.call_helper();
  return work;
}

std::shared_ptr<std::byte> SharedGroup::one_memory(int64_t bytes) {
  const bool first = index() == 0;
  std::shared_ptr<std::byte> memory;
  SharedPlace place;
  if (first) {
    memory = process_.memory->allocate(bytes);
    place = *process_.memory->find(memory.get(), bytes);
  }
  auto text = at::empty({sizeof place}, at::kByte);
  std::memcpy(text.mutable_data_ptr(), &place, sizeof place);
  run({.kind = Kind::broadcast, .input = first ? text : at::Tensor(), .output = text});
  std::memcpy(&place, text.const_data_ptr(), sizeof place);
  if (!first) {
    const auto mapping = peers_[0]->at(place);
    memory = {mapping, mapping->begin};
  }
  run({.kind = Kind::barrier});  // the first rank's file is there until all have mapped it
  return counted_frames(std::move(memory), bytes / size(), true);
}

void SharedGroup::join_slots(Channel& c, std::vector<std::shared_ptr<SharedWork>>& complete) {
  while (!c.waiting.empty()) {
    const auto& slot = c.ring.slot(c.next);
    if (slot.round.load(std::memory_order_acquire) + 1 != c.ring.round(c.next)) {
      observe(c);  // this rank may be the last to release the slot
      if (slot.round.load(std::memory_order_acquire) + 1 != c.ring.round(c.next)) return;
    }
    auto work = c.waiting.front();
    c.waiting.pop_front();
    work->number_ = c.next++;
    c.started.push_back(work);
    if (join(c, *work)) complete.push_back(std::move(work));
  }
}

bool SharedGroup::join(Channel& c, SharedWork& work) {
  const auto& t = work.transfer_;
  auto& slot = c.ring.slot(work.number_);
  work.slot_ = &slot;
  auto& call = c.ring.call(work.number_, c.me);
  auto* counts = c.ring.counts(work.number_, c.me);
  call.kind = static_cast<int32_t>(t.kind);
  const auto& typed = t.output.defined() ? t.output : t.input;
  call.type = static_cast<int32_t>(typed.defined() ? typed.scalar_type() : at::kByte);
  call.reduce = static_cast<int32_t>(t.reduce);
  call.peer = t.peer;
  call.input = work.input_;
  call.output = work.output_;
  call.input_elements = t.input.defined() ? t.input.numel() : 0;
  call.output_elements = t.output.defined() ? t.output.numel() : 0;
  call.input_parts = static_cast<int32_t>(t.input_counts.size());
  call.output_parts = static_cast<int32_t>(t.output_counts.size());
  std::copy(t.input_counts.begin(), t.input_counts.end(), counts);
  std::copy(t.output_counts.begin(), t.output_counts.end(), counts + c.ring.ranks());
  call.joined.store(c.ring.round(work.number_), std::memory_order_release);
  if (slot.joined.fetch_add(1, std::memory_order_acq_rel) + 1 != c.ring.ranks()) return false;
  begin(c, work);
  return slot.phase.load() == Slot::running;
}

void SharedGroup::begin(Channel& c, SharedWork& work) {
  auto& slot = *work.slot_;
  std::vector<Call> calls;
  std::vector<Operands> operands;
  for (int64_t i = 0; i < c.ring.ranks(); ++i) {
    calls.push_back(call_at(c.ring, work.number_, i));
    operands.push_back(calls.back().operands);
  }
  slot.began = slot.ended = now();
  if (const auto wrong = mismatch(calls, name()); !wrong.empty()) {
    slot.fail(wrong);
    slot.enter(Slot::failed);
    return;
  }
  const auto& first = calls[0];
  slot.pieces = pieces_of({first.kind, first.type, first.reduce, first.peer, operands});
  if (slot.pieces > kInline) {
    slot.enter(Slot::running);
  } else {
    slot.phase.store(Slot::running);  // ranks that sleep wake at the end
  }
}

// Runs, or has the other ranks' helpers run, works that all ranks have joined.
void SharedGroup::start(const std::vector<std::shared_ptr<SharedWork>>& complete) {
  for (const auto& work : complete) {
    if (process_.helps && work->slot_->pieces > kInline) {
      for (const auto position : work->channel_->positions) {
        const auto& peer = peers_[position];
        auto& board = peer ? peer->board() : process_.memory->board();
        board.bell.fetch_add(1);
        futex_wake(board.bell);
      }
    } else {
      run_pieces(*work);
    }
  }
}

void SharedGroup::resolve(SharedWork& work) {
  if (!work.operands_.empty()) return;
  const auto& c = *work.channel_;
  const auto at = [&](const SharedPlace& place, PeerMemory& peer) -> std::byte* {
    if (place.segment == 0) return nullptr;
    work.mappings_.push_back(peer.at(place));
    return work.mappings_.back()->begin + place.offset;
  };
  std::vector<Operands> operands;
  for (int64_t i = 0; i < c.ring.ranks(); ++i) {
    auto call = call_at(c.ring, work.number_, i);
    auto& o = operands.emplace_back(call.operands);
    if (i == c.me) {
      const auto own = call_of(work.transfer_);
      o.input = work.input_copy_ ? work.input_copy_.get() : own.operands.input;
      o.output = work.output_copy_ ? work.output_copy_.get() : own.operands.output;
    } else {
      const auto& published = c.ring.call(work.number_, i);
      auto& peer = *peers_[c.positions[i]];
      o.input = at(published.input, peer);
      o.output = at(published.output, peer);
    }
  }
  work.operands_ = std::move(operands);
  const auto first = call_at(c.ring, work.number_, 0);
  work.joint_ = {first.kind, first.type, first.reduce, first.peer, work.operands_};
}

bool SharedGroup::enter(SharedWork& work) {
  std::string error;
  {
    std::lock_guard lock(mutex_);
    if (work.ended_ || work.slot_->phase.load() != Slot::running) return false;
    try {
      resolve(work);
      ++work.users_;
      return true;
    } catch (const std::exception& e) {
      work.mappings_.clear();
      // The others have carried it out meanwhile, and one of them has freed its operand.
      if (work.slot_->phase.load() != Slot::running) return false;
      error = first_line(e);
    }
  }
  check_peers(work);
  fail_transfer(work, failure_or(*process_.store, error));
}

void SharedGroup::run_pieces(SharedWork& work) {
  if (!enter(work)) return;
  auto& slot = *work.slot_;
  int64_t mine = 0;
  for (int64_t piece; (piece = slot.next.fetch_add(1)) < slot.pieces; ++mine) {
    try {
      run_piece(work.joint_, piece);
    } catch (const std::exception& error) {
      slot.fail(first_line(error));
    }
  }
  if (mine > 0 && slot.finished.fetch_add(mine) + mine == slot.pieces) {
    slot.ended = now();
    slot.enter(slot.errors.load() == 0 ? Slot::done : Slot::failed);
  }
  std::lock_guard lock(mutex_);
  --work.users_;
}

void SharedGroup::observe(Channel& c) {
  for (auto next = c.started.begin(); next != c.started.end();) {
    auto& work = **next;
    auto& slot = *work.slot_;
    const auto phase = slot.phase.load();
    if ((phase != Slot::done && phase != Slot::failed) || work.users_ > 0) {
      ++next;
      continue;
    }
    work.began = slot.began;
    work.ended = slot.ended;
    if (phase == Slot::failed) work.error_ = slot.error.data();
    if (slot.released.fetch_add(1) + 1 == c.ring.ranks()) {
      slot.joined = 0;
      slot.released = 0;
      slot.next = 0;
      slot.finished = 0;
      slot.errors = 0;
      slot.phase = Slot::open;
      slot.round.store(c.ring.round(work.number_), std::memory_order_release);
    }
    work.mappings_.clear();
    work.ended_ = true;
    next = c.started.erase(next);
  }
}

bool SharedGroup::help() {
  std::vector<std::shared_ptr<SharedWork>> complete, running;
  bool waits = false;
  {
    std::lock_guard lock(mutex_);
    const auto look = [&](Channel& c) {
      join_slots(c, complete);
      waits |= !c.waiting.empty();
      if (!process_.helps) return;
      for (const auto& work : c.started) {
        if (work->slot_->phase.load() == Slot::running) running.push_back(work);
      }
    };
    look(collectives_);
    for (auto& [pair, c] : messages_) look(c);
  }
  start(complete);
  for (const auto& work : running) run_pieces(*work);
  return waits;
}

// Returns after a phase other than `seen`, or a while. Where spinning was in vain, the next wait
// spins for half as long: the peer computes, or another program has its core.
void SharedGroup::rest(Slot& slot, uint32_t seen) {
  const auto limit = spin_.load(std::memory_order_relaxed);
  const auto until = now() + limit;
  for (int i = 1; !process_.crowded && slot.phase.load() == seen; ++i) {
    pause();
    if (i % 64 == 0 && now() > until) break;
  }
  const bool in_vain = slot.phase.load() == seen;
  spin_.store(in_vain ? std::max(limit / 2, kLeastSpin) : std::min(limit * 2, kMostSpin),
              std::memory_order_relaxed);
  if (in_vain) slot.sleep(seen, kLook);
}

void SharedGroup::wait(SharedWork& work) {
  const auto begin = steady_clock::now();
  auto looked = begin;
  std::vector<std::shared_ptr<SharedWork>> complete;
  while (true) {
    Slot* slot = nullptr;
    uint32_t seen = Slot::open;
    {
      std::lock_guard lock(mutex_);
      complete.clear();
      join_slots(collectives_, complete);
      for (auto& [pair, c] : messages_) join_slots(c, complete);
      observe(*work.channel_);
      if (work.ended_) break;
      slot = work.slot_;
      if (slot) seen = slot->phase.load();
    }
    start(complete);
    if (!slot) {
      sched_yield();  // another rank has not released the slot
    } else if (seen == Slot::open) {
      rest(*slot, seen);
    } else if (seen == Slot::running) {
      run_pieces(work);
      rest(*slot, seen);
    }
    const auto time = steady_clock::now();
    if (time - looked < std::chrono::milliseconds(kLook)) continue;
    looked = time;
    check_peers(work);
    check_time(work, time - begin);
  }
  finish(work);
}

void SharedGroup::finish(SharedWork& work) {
  if (!work.error_.empty()) fail_run("communicator", "rank {}: {}", rank(), work.error_);
  auto& t = work.transfer_;
  if (work.output_copy_ && t.output.nbytes() > 0) {
    std::memcpy(t.output.mutable_data_ptr(), work.output_copy_.get(), t.output.nbytes());
  }
  if (t.unpack) t.unpack();
  work.input_copy_.reset();
  work.output_copy_.reset();
  t = {};
}

std::vector<int64_t> SharedGroup::missing(const SharedWork& work) const {
  std::lock_guard lock(mutex_);
  const auto& c = *work.channel_;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < c.ring.ranks(); ++i) {
    const bool joined = work.number_ >= 0 &&
                        c.ring.call(work.number_, i).joined.load() == c.ring.round(work.number_);
    if (!joined) positions.push_back(c.positions[i]);
  }
  return positions;
}

void SharedGroup::check_peers(const SharedWork& work) const {
  for (const auto position : work.channel_->positions) {
    const auto& peer = peers_[position];
    if (!peer) continue;
    // In this order: a peer may join, leave and end meanwhile. The state of one that has ended, and
    // the calls of one that has left, no longer change.
    const bool runs = peer->runs();
    const auto state = peer->board().state.load(std::memory_order_acquire);
    if (state == Board::aborted) {
      fail_transfer(work, failure_or(*process_.store, peer->board().reason.data()));
    }
    const auto is_missing = [&] {
      const auto absent = missing(work);
      return std::ranges::find(absent, position) != absent.end();
    };
    if (state == Board::left ? is_missing() : !runs) {
      fail_transfer(work, failure_or(*process_.store,
                                     fmt::format("rank {} does not answer", ranks()[position])));
    }
  }
}

void SharedGroup::check_time(const SharedWork& work, steady_clock::duration waited) const {
  if (waited < process_.timeout) return;
  std::vector<int64_t> absent;
  for (const auto position : missing(work)) absent.push_back(ranks()[position]);
  const auto seen = absent.empty() ? "no answer"
                                   : fmt::format("rank {} did not join", fmt::join(absent, ", "));
  fail_transfer(work, failure_among(*process_.store, rank(), ranks(), seen));
}

void SharedGroup::fail_transfer(const SharedWork& work, const std::string& cause) const {
  fail_run("communicator",
           "rank {}: {} over {} (ranks {}) must finish within {} s (cluster.timeout), but got: {}",
           rank(), name_of(work.kind_), name(), fmt::join(ranks(), ","),
           std::chrono::duration<double>(process_.timeout).count(), cause);
}

}  // namespace perigee::exec
