#include "cuda/nccl/nccl.h"

#include <fmt/ranges.h>

#include <chrono>
#include <cstdlib>
#include <map>

#include "base/fail.h"
#include "cuda/graphs/recorded_collectives.h"
#include "cuda/graphs/step_graph.h"
#include "cuda/nccl/group.h"

namespace perigee::cuda {
namespace {

class NcclCommunicator : public exec::Communicator {
 public:
  NcclCommunicator(const exec::RendezvousOptions& options, std::shared_ptr<CudaDevice> device)
      : options_(options), device_(std::move(device)), store_(exec::meet(options).store) {
    // A group's kernels and another's may wait for each other, unless all ranks launch them in one
    // order: NCCL then keeps the order of the calls.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
    // NCCL would register the buffers of recorded collectives, which it allows only where they have
    // the same offset in the memory of every rank; plans with parts of several sizes do not.
    setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  }

  int64_t rank() const override { return options_.rank; }
  int64_t world() const override { return options_.world; }

  std::shared_ptr<exec::Group> group(const std::string& name,
                                     const std::vector<int64_t>& ranks) override {
    auto& group = groups_[{name, ranks}];
    if (!group) {
      try {
        group = std::make_shared<NcclGroup>(name, ranks, options_, store_, device_,
                                            [this] { end_groups(); });
      } catch (const Error&) {
        throw;
      } catch (const std::exception& error) {
        fail_run("communicator",
                 "rank {} must connect to the group {} (ranks {}) by NCCL on GPU {} within {} s, "
                 "but got: {}; NCCL_DEBUG=INFO tells more",
                 options_.rank, name, fmt::join(ranks, ","), device_->index(), options_.seconds(),
                 exec::failure_or(*store_, exec::first_line(error)));
      }
    }
    return group;
  }

  void check() override {
    std::string failure;
    try {
      failure = exec::left_failure(*store_);
    } catch (const std::exception& error) {
      failure = "rank 0's store is gone: " + exec::first_line(error);
    }
    if (!failure.empty()) {
      end_groups();
      fail_run("communicator", "rank {} must go on with all ranks, but got: {}", options_.rank,
               failure);
    }
    for (auto& [key, group] : groups_) {
      if (group) group->check();
    }
    check_graph();
  }

  void abort(const std::string& reason) override {
    exec::leave_failure(*store_, options_.rank, reason);
    end_groups();
  }

 private:
  // A graph's collectives have no time-outs of their own (exec/recorder.h), but names.
  void check_graph() {
    const auto& graph = device_->graph_state();
    if (graph.launched == 0) return;
    const std::chrono::nanoseconds most = options_.timeout +
                                          std::chrono::nanoseconds(graph.usual_nanoseconds);
    if (exec::now() - graph.launched <= most.count()) return;
    const auto reason = exec::failure_or(*store_, "no answer");
    // Before the groups end, with which their collectives do.
    const auto waits = graph.running ? graph.running->unfinished() : "";
    end_groups();
    fail_run("communicator",
             "rank {}: a recorded step must finish within {:.1f} s (cluster.timeout after the time "
             "that a step takes), but got: {}{}",
             options_.rank, std::chrono::duration<double>(most).count(), reason,
             waits.empty() ? "" : "; the first collective that has not ended is " + waits);
  }

  // Before a communicator ends, NCCL waits for the graphs that have its collectives, and sometimes
  // for kernels of other communicators: within a group, NCCL 2.22 or later first stops them all.
  void end_groups() {
    destroy_graphs(*device_);
    calls().ncclGroupStart();
    for (auto& [key, group] : groups_) {
      if (group) group->abort();
    }
    calls().ncclGroupEnd();
  }

  exec::RendezvousOptions options_;
  std::shared_ptr<CudaDevice> device_;
  exec::Store store_;
  std::map<std::pair<std::string, std::vector<int64_t>>, std::shared_ptr<NcclGroup>> groups_;
};

}  // namespace

std::unique_ptr<exec::Communicator> nccl_communicator(const exec::RendezvousOptions& options,
                                                      std::shared_ptr<CudaDevice> device) {
  return std::make_unique<NcclCommunicator>(options, std::move(device));
}

}  // namespace perigee::cuda
