#include "cuda/nccl/group.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/fail.h"
#include "cuda/graphs/recorded_collectives.h"
#include "cuda/nccl/transfer.h"
#include "cuda/torch_side.h"

namespace perigee::cuda {

using Kind = exec::Collective::Kind;

NcclWork::NcclWork(NcclGroup& group, exec::Transfer transfer)
    : group_(group),
      transfer_(std::move(transfer)),
      begin_(group.device().index(), /*timed=*/true),
      end_(group.device().index(), /*timed=*/true) {}

void NcclWork::wait() {
  auto& device = group_.device();
  device.follow(end_);
  if (auto* recorded = device.graph_state().recording) {
    recorded->add(fmt::format("{} over {} (ranks {})", name_of(transfer_.kind), group_.name(),
                              fmt::join(group_.ranks(), ",")),
                  end_);
  }
  if (transfer_.kind == Kind::barrier) {
    // The host waits, too.
    device.synchronize([this] { group_.check(); });
  }
}

void NcclWork::settle() {
  began = group_.device().clock().time(begin_);
  ended = group_.device().clock().time(end_);
}

int64_t NcclWork::waited() {
  const auto now = exec::now();
  if (seen_ == 0 && begin_.passed()) seen_ = now;
  return seen_ == 0 ? 0 : now - seen_;
}

NcclGroup::NcclGroup(const std::string& name, const std::vector<int64_t>& ranks,
                     const exec::RendezvousOptions& options, exec::Store store,
                     std::shared_ptr<CudaDevice> device, std::function<void()> end_groups)
    : Group(name, ranks, options.rank),
      options_(options),
      store_(std::move(store)),
      device_(std::move(device)),
      end_groups_(std::move(end_groups)) {
  if (size() == 1) return;
  scratch_ = device_->allocate(sizeof(float), /*communicates=*/false);
  main_.emplace(lane_options("all", index(), size()));
}

LaneOptions NcclGroup::lane_options(const std::string& name, int64_t index, int64_t size) const {
  return {.device = device_->index(),
          .store = store_,
          .key = fmt::format("perigee/nccl/{}/{}/{}", Group::name(), fmt::join(ranks(), ","), name),
          .index = static_cast<int>(index),
          .size = static_cast<int>(size),
          .timeout = options_.timeout,
          .check = [store = store_] {
            const auto failure = exec::left_failure(*store);
            if (!failure.empty()) throw std::runtime_error(failure);
          }};
}

// A pair has a lane for each direction, since each of two ranks may wait for the other's message.
Lane& NcclGroup::lane(Pair pair) {
  if (const auto known = messages_.find(pair); known != messages_.end()) return known->second;
  const auto name = fmt::format("{}-{}", pair.from, pair.to);
  return messages_.try_emplace(pair, lane_options(name, index() == pair.from ? 0 : 1, 2))
      .first->second;
}

// Connecting waits for the other rank: making a lane does, and so does NCCL's first message on it.
// All ranks connect in one order of all pairs, so that the first pair that is not connected always
// has both ranks.
void NcclGroup::connect_pairs(const std::vector<Pair>& pairs) {
  auto sorted = pairs;
  std::sort(sorted.begin(), sorted.end());
  const auto byte = device_->allocate(1, /*communicates=*/false);
  for (const auto& pair : sorted) {
    if (messages_.contains(pair)) continue;
    try {
      auto& on = lane(pair);
      submit_byte(on, byte.get(), /*sends=*/index() == pair.from);
      Event done(device_->index());
      done.record(on.stream());
      on.wait(done);
    } catch (const std::exception& error) {
      fail_work(fmt::format("the first message of rank {} to rank {}", ranks()[pair.from],
                            ranks()[pair.to]),
                exec::first_line(error));
    }
  }
}

std::shared_ptr<void> NcclGroup::register_memory(exec::CollectiveMemory memory) {
  if (!main_) return nullptr;
  const bool possible = calls().ncclCommWindowRegister && device_->registrable();
  const auto text = possible && !memory.layout.empty()
                        ? fmt::format("{} {}", memory.bytes, memory.layout)
                        : "";
  const char* remedy = "";
  try {
    if (!main_->agree(text) || text.empty()) return nullptr;
    remedy = "; NCCL_WIN_ENABLE=0 turns NCCL's windows off";
    // A copy: where it fails, NCCL may use the memory until it is aborted.
    return main_->make_window(memory.memory, memory.bytes);
  } catch (const std::exception& error) {
    fail_work("the registration of memory", exec::first_line(error) + remedy);
  }
}

std::shared_ptr<exec::Work> NcclGroup::transfer(exec::Transfer transfer) {
  auto work = std::make_shared<NcclWork>(*this, std::move(transfer));
  auto& t = work->transfer_;
  const bool sends = t.kind == Kind::send, message = sends || t.kind == Kind::receive;
  try {
    auto& on = !message ? *main_ : lane(sends ? Pair{index(), t.peer} : Pair{t.peer, index()});
    Event ready(device_->index());
    ready.record(current_stream(device_->index()));
    ready.block(on.stream());
    const auto directed = direct_to(device_->index(), on.stream());
    work->begin_.record(on.stream());
    if (t.pack) t.pack();
    if (message) {
      submit_message(on, t, sends ? 1 : 0);
    } else {
      submit_collective(on, t, index(), reinterpret_cast<float*>(scratch_.get()));
    }
    if (t.unpack) t.unpack();
    work->end_.record(on.stream());
  } catch (const std::exception& error) {
    fail_work(name_of(t.kind), exec::first_line(error));
  }
  // Within a graph, the work's events have no state that the host may ask for.
  if (device_->graph_state().recording) return work;
  while (!running_.empty() && running_.front()->passed()) running_.pop_front();
  running_.push_back(work);
  return work;
}

void NcclGroup::check() {
  std::erase_if(running_, [](const auto& work) { return work->passed(); });
  const bool in_graph = device_->graph_state().launched > 0;
  if (running_.empty() && !in_graph) return;
  const auto check_lane = [&](const Lane& lane) {
    const auto failure = lane.failure();
    if (failure.empty()) return;
    fail_work(in_graph ? "a recorded step" : name_of(running_.front()->transfer().kind),
              "NCCL lost a rank: " + failure);
  };
  if (main_) check_lane(*main_);
  for (const auto& [pair, lane] : messages_) check_lane(lane);
  const auto most = std::chrono::duration_cast<std::chrono::nanoseconds>(options_.timeout).count();
  for (const auto& work : running_) {
    if (work->waited() > most) fail_work(name_of(work->transfer().kind), "no answer");
  }
}

void NcclGroup::abort() {
  if (main_) main_->abort();
  for (auto& [pair, lane] : messages_) lane.abort();
}

void NcclGroup::fail_work(std::string_view work, const std::string& seen) {
  const auto reason = exec::failure_or(*store_, seen);
  // Kernels that wait for the other rank would occupy the GPU forever. A step that is recorded has
  // none, and NCCL would wait for the graph that is being made.
  if (!device_->graph_state().recording) end_groups_();
  fail_run("communicator", "rank {}: {} over {} (ranks {}) must finish within {} s, but got: {}",
           rank(), work, name(), fmt::join(ranks(), ","), options_.seconds(), reason);
}

}  // namespace perigee::cuda
