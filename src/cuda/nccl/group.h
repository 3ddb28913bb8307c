// Groups of ranks with a GPU each, and their collectives.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "cuda/nccl/lane.h"
#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"

namespace perigee::cuda {

class NcclGroup;

// A collective on its lane.
class NcclWork : public exec::Work {
 public:
  NcclWork(NcclGroup& group, exec::Transfer transfer);
  void wait() override;
  void settle() override;

  bool passed() const { return end_.passed(); }
  const exec::Transfer& transfer() const { return transfer_; }
  // Returns for how many nanoseconds the GPU has been at it, as far as the host has looked: work
  // that waits for earlier work is not late.
  int64_t waited();

 private:
  friend class NcclGroup;
  NcclGroup& group_;
  exec::Transfer transfer_;  // keeps the tensors until the work is dropped, after wait()
  Event begin_, end_;
  int64_t seen_ = 0;  // exec::now() when the host saw that it had begun
};

// Each group, and each pair of ranks with messages, has an NCCL communicator of its own, which its
// ranks connect by the store. Communicators that are split from one (ncclCommSplit) need all ranks
// of that one at each split, which have programs with different groups; if they share resources,
// their kernels wait for each other.
class NcclGroup : public exec::Group {
 public:
  // Connects to the other ranks. `end_groups`: aborts all groups of this rank; called when work of
  // this group has failed. Throws std::exception where the ranks do not connect.
  NcclGroup(const std::string& name, const std::vector<int64_t>& ranks,
            const exec::RendezvousOptions& options, exec::Store store,
            std::shared_ptr<CudaDevice> device, std::function<void()> end_groups);

  std::shared_ptr<exec::Work> transfer(exec::Transfer transfer) override;
  void connect_pairs(const std::vector<Pair>& pairs) override;
  std::shared_ptr<void> register_memory(exec::CollectiveMemory memory) override;
  bool recordable(exec::Collective::Kind) const override { return true; }

  // Throws Error when a collective has failed or exceeded the time-out. Of collectives in a graph,
  // failures only are known here: the communicator counts the graph's time.
  void check();
  // Ends this group's work on the GPU; called between ncclGroupStart and ncclGroupEnd. The group
  // cannot be used after it.
  void abort();

  CudaDevice& device() { return *device_; }

 private:
  friend class NcclWork;
  LaneOptions lane_options(const std::string& name, int64_t index, int64_t size) const;
  Lane& lane(Pair pair);
  // `work`: a collective's name.
  [[noreturn]] void fail_work(std::string_view work, const std::string& seen);

  exec::RendezvousOptions options_;
  exec::Store store_;
  std::shared_ptr<CudaDevice> device_;
  std::function<void()> end_groups_;
  std::shared_ptr<std::byte> scratch_;  // of barriers
  std::optional<Lane> main_;            // none in a group of one rank
  std::map<Pair, Lane> messages_;
  std::list<std::shared_ptr<NcclWork>> running_;
};

}  // namespace perigee::cuda
