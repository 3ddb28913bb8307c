// NCCL among the threads of this process. A call runs when it is at the head of its stream on all
// ranks that take part.
#include <algorithm>
#include <cstring>
#include <set>

#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/nccl/nccl_call.h"
#include "tests/cuda/simulated/nccl/windows.h"
#include "tests/cuda/simulated/state.h"

namespace perigee::cuda::simulated {
namespace {

using Call = NcclCall;
using Kind = Call::Kind;

struct State;

// Calls of several ranks that belong together.
struct Exchange {
  size_t needed = 0;
  std::vector<Call> calls;
  std::vector<const State*> submitted;  // by whom, in any order
  std::vector<const State*> members;
  bool done = false;
};

struct Clique {
  int size = 0;
  int joined = 0;
  ncclResult_t failure = ncclSuccess;
  std::vector<State*> members;                            // by rank
  std::map<std::string, std::shared_ptr<Exchange>> open;  // not all members have submitted
};

struct State {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  bool aborted = false;
  StreamState* stream = nullptr;  // of its last call
  int64_t collectives = 0;
  std::map<int, int64_t> sent, received;  // by peer
  int64_t running = 0;                    // pieces of work that were submitted and have not ended
  std::shared_ptr<void> uses = std::make_shared<char>();  // each call of a graph has a copy
};

std::map<uint64_t, std::shared_ptr<Clique>> cliques;
std::vector<std::unique_ptr<State>> states;
uint64_t next_id = 1;

struct Launch {
  State* state;
  StreamState* stream;
  Call call;
  std::string name;            // of the call, in a race
  std::shared_ptr<void> uses;  // the communicator's
};
thread_local int depth = 0;
thread_local std::vector<Launch> group;
thread_local std::set<int> aborting;  // the group's GPUs with an abort

State& state_of(ncclComm_t communicator) { return *reinterpret_cast<State*>(communicator); }

Member member_of(const State& state) {
  return {state.clique.get(), state.clique->size, state.rank, state.device};
}

// Returns a call's places as others rely on them. In place, a rank's own part of the other buffer is
// at another offset on each rank, and only that rank uses it.
std::pair<WindowPlace, WindowPlace> shared_places(const Call& c) {
  auto from = c.from_place, to = c.to_place;
  const auto skipped = static_cast<int64_t>(c.bytes()) * c.rank;
  const auto is_part = [&](WindowPlace part, WindowPlace whole) {
    return part == WindowPlace{whole.window, whole.offset + skipped};
  };
  if (c.kind == Kind::all_gather && is_part(from, to)) from = to;
  if (c.kind == Kind::reduce_scatter && is_part(to, from)) to = from;
  if (c.kind == Kind::broadcast) from = {};
  if (c.kind == Kind::reduce) to = {};
  return {from, to};
}

// NCCL finds the buffers of the other ranks in windows by its own ones' offsets.
void check_windows(const std::vector<Call>& calls) {
  const auto& first = calls[0];
  if (first.kind == Kind::send || first.kind == Kind::receive) return;
  const auto places = shared_places(first);
  const bool equal = std::all_of(calls.begin(), calls.end(),
                                 [&](const Call& c) { return shared_places(c) == places; });
  if (!equal) {
    machine().broken.emplace_back(
        "a collective's buffers lie at one offset of a window on all ranks");
  } else if (places.first.window >= 0 && places.second.window >= 0) {
    count_in_windows();
  }
}

// Adds a call to its exchange, and performs the exchange if it was the last.
void arrive(Clique& clique, Exchange& exchange, const Call& call) {
  exchange.calls.push_back(call);
  if (exchange.calls.size() < exchange.needed) return;
  if (fit(exchange.calls)) {
    check_windows(exchange.calls);
    perform(exchange.calls);
  } else {
    clique.failure = ncclInvalidUsage;
    machine().broken.push_back("all ranks make the same collective call");
  }
  exchange.done = true;
}

// Returns the exchange of a call that a rank submits now.
std::shared_ptr<Exchange> join(State& state, const Call& call) {
  auto& clique = *state.clique;
  const auto peer = call.root;
  const bool sends = call.kind == Kind::send, receives = call.kind == Kind::receive;
  const auto message = [](int from, int to, int64_t number) {
    return "message " + std::to_string(from) + "-" + std::to_string(to) + " " +
           std::to_string(number);
  };
  const auto key = sends      ? message(state.rank, peer, state.sent[peer]++)
                   : receives ? message(peer, state.rank, state.received[peer]++)
                              : "collective " + std::to_string(state.collectives++);
  auto& open = clique.open[key];
  if (!open) {
    open = std::make_shared<Exchange>();
    open->needed = sends || receives ? 2 : static_cast<size_t>(clique.size);
    open->members.assign(clique.members.begin(), clique.members.end());
    if (sends || receives) open->members = {&state, clique.members[peer]};
  }
  const auto exchange = open;
  exchange->submitted.push_back(&state);
  if (exchange->submitted.size() == exchange->needed) clique.open.erase(key);
  return exchange;
}

// Returns the ranks and streams that an exchange waits for.
void add_missing(Wait& wait, const Exchange& exchange) {
  for (const auto* member : exchange.members) {
    const auto arrived = std::any_of(exchange.calls.begin(), exchange.calls.end(),
                                     [&](const Call& call) { return call.rank == member->rank; });
    if (arrived) continue;
    const auto& by = exchange.submitted;
    if (std::find(by.begin(), by.end(), member) == by.end()) {
      wait.ranks.push_back(member->device);  // a rank has the GPU of its number
      wait.what += " rank " + std::to_string(member->device) + " to start it,";
    } else {
      wait.streams.push_back(member->stream);
      wait.what += " rank " + std::to_string(member->device) + " to reach it,";
    }
  }
}

// Submits a stream's calls of one communicator.
void start(const std::vector<Launch>& launches, StreamState& stream) {
  auto& m = machine();
  auto* state = launches.front().state;
  using Joined = std::vector<std::pair<std::shared_ptr<Exchange>, Call>>;
  const auto calls = std::make_shared<Joined>();
  for (const auto& l : launches) {
    m.clocks.submitted(stream, l.name, accesses_of(l.call, state->clique->size));
    auto call = l.call;
    call.from_place = place_in_window(member_of(*state), call.from);
    call.to_place = place_in_window(member_of(*state), call.to);
    calls->emplace_back(join(*state, call), call);
  }
  state->stream = &stream;
  ++state->running;
  name_by_label(stream);
  m.push(stream, {[state, calls, there = std::make_shared<bool>(false)] {
                    if (state->aborted) return true;
                    if (!*there) {
                      *there = true;
                      for (const auto& [exchange, call] : *calls) {
                        arrive(*state->clique, *exchange, call);
                      }
                    }
                    return std::all_of(calls->begin(), calls->end(),
                                       [](const auto& call) { return call.first->done; });
                  },
                  [state] { --state->running; },
                  [calls] {
                    Wait wait;
                    for (const auto& [exchange, call] : *calls) add_missing(wait, *exchange);
                    if (!wait.what.empty()) wait.what = wait.what.substr(1, wait.what.size() - 2);
                    return wait;
                  }});
}

// Submits the group's calls: a stream's calls of one communicator are one piece of work.
void launch(std::vector<Launch> launches) {
  auto& m = machine();
  while (!launches.empty()) {
    auto* state = launches.front().state;
    auto* stream = launches.front().stream;
    std::vector<Launch> own;
    std::erase_if(launches, [&](const Launch& l) {
      if (l.state != state || l.stream != stream) return false;
      own.push_back(l);
      return true;
    });
    m.submit(*stream, [own](StreamState& on) { start(own, on); });
  }
}

ncclResult_t enqueue(ncclComm_t communicator, cudaStream_t handle, Call call) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& state = state_of(communicator);
  auto& stream = m.stream(handle);
  if (stream.device != state.device) {
    return m.refuse("a communicator's stream is of its device", ncclInvalidArgument);
  }
  call.rank = state.rank;
  group.push_back({&state, &stream, call, label_or("NCCL"), state.uses});
  if (depth > 0) return ncclSuccess;
  launch(std::exchange(group, {}));
  m.submitted(lock);
  return ncclSuccess;
}

ncclResult_t init(ncclComm_t* communicator, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  auto& m = machine();
  const Lock lock(m.mutex);
  uint64_t number = 0;
  std::memcpy(&number, &id, sizeof number);
  auto& clique = cliques[number];
  if (!clique) clique = std::make_shared<Clique>();
  clique->size = size;
  ++clique->joined;
  states.push_back(std::make_unique<State>());
  auto& state = *states.back();
  state.clique = clique;
  state.rank = rank;
  state.device = current_device();
  clique->members.resize(size);
  clique->members[rank] = &state;
  *communicator = reinterpret_cast<ncclComm_t>(&state);
  m.changed.notify_all();
  return ncclInProgress;
}

ncclResult_t async_error(ncclComm_t communicator, ncclResult_t* result) {
  auto& m = machine();
  Lock lock(m.mutex);
  const auto& clique = *state_of(communicator).clique;
  const auto state = [&] {
    if (clique.failure != ncclSuccess) return clique.failure;
    if (clique.joined < clique.size) return ncclInProgress;
    return state_of_windows(member_of(state_of(communicator)));
  };
  // A rank that polls leaves the processor to the others.
  if (state() == ncclInProgress) m.changed.wait_for(lock, std::chrono::milliseconds(1));
  *result = state();
  return ncclSuccess;
}

// NCCL may wait for all kernels of a GPU while it aborts a communicator of it.
void finish_aborts() {
  for (const int device : std::exchange(aborting, {})) {
    const bool waits = std::any_of(states.begin(), states.end(), [&](const auto& state) {
      return state->device == device && !state->aborted && state->running > 0;
    });
    if (!waits) continue;
    machine().broken.emplace_back("a GPU's communicators that have work are aborted in one group");
  }
}

ncclResult_t end(ncclComm_t communicator, bool aborted) {
  auto& m = machine();
  const Lock lock(m.mutex);
  auto& state = state_of(communicator);
  // NCCL would wait for them.
  if (state.uses.use_count() > 1) {
    m.broken.emplace_back("graphs are destroyed before the communicators that they call");
  }
  state.aborted = true;
  if (aborted) aborting.insert(state.device);
  if (depth == 0) finish_aborts();
  end_windows(member_of(state), aborted);
  m.changed.notify_all();
  return ncclSuccess;
}

// Calls `call` for the communicator's member.
template <class F>
ncclResult_t on_member(ncclComm_t communicator, F call) {
  auto& m = machine();
  const Lock lock(m.mutex);
  const auto& state = state_of(communicator);
  if (state.aborted) {
    return m.refuse("a communicator that has ended is not called", ncclInvalidUsage);
  }
  return call(member_of(state));
}

}  // namespace

void restart_nccl() {
  cliques.clear();
  restart_windows();
}

void add_nccl(Calls& t) {
  t.ncclGetVersion = [](int* version) { return *version = 22809, ncclSuccess; };
  t.ncclGetErrorString = [](ncclResult_t) { return "the simulated NCCL refuses the call"; };
  t.ncclGetLastError = [](ncclComm_t) { return ""; };
  t.ncclGetUniqueId = [](ncclUniqueId* id) {
    const Lock lock(machine().mutex);
    *id = {};
    std::memcpy(id, &next_id, sizeof next_id);
    ++next_id;
    return ncclSuccess;
  };
  t.ncclCommInitRankConfig = init;
  t.ncclCommGetAsyncError = async_error;
  t.ncclCommAbort = [](ncclComm_t c) { return end(c, true); };
  t.ncclCommDestroy = [](ncclComm_t c) { return end(c, false); };
  t.ncclCommWindowRegister = [](ncclComm_t c, void* memory, size_t bytes, ncclWindow_t* window,
                                int flags) {
    return on_member(c, [&](const Member& member) {
      return register_window(member, memory, bytes, window, flags);
    });
  };
  t.ncclCommWindowDeregister = [](ncclComm_t c, ncclWindow_t window) {
    return on_member(c, [&](const Member& member) { return deregister_window(member, window); });
  };
  t.ncclGroupStart = [] { return ++depth, ncclSuccess; };
  t.ncclGroupEnd = [] {
    if (--depth > 0) return ncclSuccess;
    auto& m = machine();
    Lock lock(m.mutex);
    finish_aborts();
    launch(std::exchange(group, {}));
    m.submitted(lock);
    return ncclSuccess;
  };
  t.ncclAllReduce = [](const void* from, void* to, size_t n, ncclDataType_t type, ncclRedOp_t op,
                       ncclComm_t c, cudaStream_t s) {
    return enqueue(c, s, {Kind::all_reduce, 0, from, to, n, type, op, 0});
  };
  t.ncclReduce = [](const void* from, void* to, size_t n, ncclDataType_t type, ncclRedOp_t op,
                    int root, ncclComm_t c, cudaStream_t s) {
    return enqueue(c, s, {Kind::reduce, 0, from, to, n, type, op, root});
  };
  t.ncclReduceScatter = [](const void* from, void* to, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
    return enqueue(c, s, {Kind::reduce_scatter, 0, from, to, n, type, op, 0});
  };
  t.ncclAllGather = [](const void* from, void* to, size_t n, ncclDataType_t type, ncclComm_t c,
                       cudaStream_t s) {
    return enqueue(c, s, {Kind::all_gather, 0, from, to, n, type, ncclSum, 0});
  };
  t.ncclBroadcast = [](const void* from, void* to, size_t n, ncclDataType_t type, int root,
                       ncclComm_t c, cudaStream_t s) {
    return enqueue(c, s, {Kind::broadcast, 0, from, to, n, type, ncclSum, root});
  };
  t.ncclSend = [](const void* from, size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                  cudaStream_t s) {
    return enqueue(c, s, {Kind::send, 0, from, nullptr, n, type, ncclSum, peer});
  };
  t.ncclRecv = [](void* to, size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s) {
    return enqueue(c, s, {Kind::receive, 0, nullptr, to, n, type, ncclSum, peer});
  };
}

}  // namespace perigee::cuda::simulated
