#include "cuda/nccl/group.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/fail.h"
#include "cuda/nccl/transfer.h"

namespace perigee::cuda {

using Kind = exec::Collective::Kind;

NcclWork::NcclWork(NcclGroup& group, exec::Transfer transfer)
    : group_(group),
      transfer_(std::move(transfer)),
      begin_(/*timed=*/true),
      end_(/*timed=*/true),
      submitted_(exec::now()) {}

void NcclWork::wait() {
  if (transfer_.kind == Kind::barrier) {
    // The host waits, too.
    end_.block(group_.device().stream());
    group_.device().synchronize([this] { group_.check(); });
    return;
  }
  end_.block(c10::cuda::getCurrentCUDAStream());
}

void NcclWork::settle() {
  began = group_.device().clock().time(begin_);
  ended = group_.device().clock().time(end_);
}

NcclGroup::NcclGroup(const std::string& name, const std::vector<int64_t>& ranks,
                     const exec::RendezvousOptions& options, exec::Store store,
                     std::shared_ptr<CudaDevice> device)
    : Group(name, ranks, options.rank),
      options_(options),
      store_(std::move(store)),
      device_(std::move(device)) {
  if (size() > 1)
    main_.push_back(connect("all", static_cast<int>(index()), static_cast<int>(size())));
}

NcclGroup::~NcclGroup() {
  const auto end = [this](NcclLane& lane) {
    try {
      if (!aborted_) lane.nccl->shutdown();
    } catch (const std::exception&) {
      // The group ends in any case.
    }
  };
  for (auto& lane : main_) end(lane);
  for (auto& [pair, lane] : messages_) end(lane);
}

NcclLane NcclGroup::connect(const std::string& name, int rank, int size) {
  const auto prefix = fmt::format("perigee/{}/{}/{}", Group::name(), fmt::join(ranks(), ","), name);
  auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
  // check() applies Perigee's time-out and names the cause. NCCL's own is longer and ends the
  // process only if check() does not run.
  nccl_options->timeout = 2 * options_.timeout + std::chrono::minutes(1);
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>(prefix, store_), rank, size, nccl_options);
  const c10::cuda::CUDAGuard guard(device_->place());
  // Connect now and not in the first collective, which ranks may reach in different orders.
  nccl->eagerConnectSingleDevice(device_->place());
  return {nccl, c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device_->place().index())};
}

void NcclGroup::connect_pair(int64_t low, int64_t high) {
  if (messages_.contains({low, high})) return;
  const int rank = index() == low ? 0 : 1;
  messages_.emplace(std::pair(low, high), connect(fmt::format("{}-{}", low, high), rank, 2));
  messages_.emplace(std::pair(high, low), connect(fmt::format("{}-{}", high, low), rank, 2));
}

// Connecting waits for the other rank, so all ranks connect pairs in one order: all neighbours
// (which pipelines need) at a rank's first message, other pairs at their first message.
NcclLane& NcclGroup::lane(int64_t from, int64_t to) {
  if (!neighbours_connected_) {
    neighbours_connected_ = true;
    for (int64_t i = 0; i < size(); ++i) {
      const auto [low, high] = std::minmax(i, (i + 1) % size());
      if (low == index() || high == index()) connect_pair(low, high);
    }
  }
  connect_pair(std::min(from, to), std::max(from, to));
  return messages_.at({from, to});
}

std::shared_ptr<exec::Work> NcclGroup::transfer(exec::Transfer transfer) {
  const bool sends = transfer.kind == Kind::send, receives = transfer.kind == Kind::receive;
  if (transfer.kind == Kind::barrier) {
    transfer.output = at::zeros({1},
                                at::TensorOptions().dtype(at::kFloat).device(device_->place()));
  }
  auto work = std::make_shared<NcclWork>(*this, std::move(transfer));
  auto& t = work->transfer_;
  try {
    auto& on = sends ? lane(index(), t.peer) : receives ? lane(t.peer, index()) : main_.front();
    Event ready;
    ready.record(c10::cuda::getCurrentCUDAStream());
    ready.block(on.stream);
    const c10::cuda::CUDAStreamGuard guard(on.stream);
    work->begin_.record(on.stream);
    if (t.pack) t.pack();
    if (sends || receives) {
      std::vector<at::Tensor> tensors = {sends ? t.input : t.output};
      // The peer's rank in the pair's communicator.
      const int peer = index() < t.peer ? 1 : 0;
      const auto message = sends ? on.nccl->send(tensors, peer, 0)
                                 : on.nccl->recv(tensors, peer, 0);
      if (message) message->wait();
    } else {
      carry_out(*on.nccl, t, size(), index());
    }
    if (t.unpack) t.unpack();
    work->end_.record(on.stream);
  } catch (const std::exception& error) {
    fail_transfer(t, exec::first_line(error));
  }
  while (!running_.empty() && running_.front()->passed()) running_.pop_front();
  running_.push_back(work);
  return work;
}

void NcclGroup::check() {
  std::erase_if(running_, [](const auto& work) { return work->passed(); });
  if (running_.empty()) return;
  const auto failed = [](const NcclLane& lane) {
    return lane.nccl->getError() != c10d::ErrorType::SUCCESS;
  };
  const auto& oldest = *running_.front();
  for (const auto& lane : main_) {
    if (failed(lane)) fail_transfer(oldest.transfer(), "NCCL lost a rank");
  }
  for (const auto& [pair, lane] : messages_) {
    if (failed(lane)) fail_transfer(oldest.transfer(), "NCCL lost a rank");
  }
  const auto late = std::chrono::duration_cast<std::chrono::nanoseconds>(options_.timeout).count();
  if (exec::now() - oldest.submitted() > late) fail_transfer(oldest.transfer(), "no answer");
}

void NcclGroup::abort() {
  if (aborted_) return;
  aborted_ = true;
  const auto end = [](NcclLane& lane) {
    try {
      lane.nccl->abort();
    } catch (const std::exception&) {
      // The caller is already reporting a failure.
    }
  };
  for (auto& lane : main_) end(lane);
  for (auto& [pair, lane] : messages_) end(lane);
}

void NcclGroup::fail_transfer(const exec::Transfer& transfer, const std::string& seen) {
  const auto reason = exec::failure_or(*store_, seen);
  // Kernels that wait for the other rank would occupy the GPU forever.
  abort();
  fail_run("communicator", "rank {}: {} over {} (ranks {}) must finish within {} s, but got: {}",
           rank(), name_of(transfer.kind), name(), fmt::join(ranks(), ","), options_.seconds(),
           reason);
}

}  // namespace perigee::cuda
