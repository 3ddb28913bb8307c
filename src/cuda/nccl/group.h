// NCCL process groups and their collectives.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "exec/comm/communicator.h"
#include "exec/comm/rendezvous.h"

namespace perigee::cuda {

// A process group and the stream that its work is on.
struct NcclLane {
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl;
  c10::cuda::CUDAStream stream;
};

class NcclGroup;

// A collective on its lane.
class NcclWork : public exec::Work {
 public:
  NcclWork(NcclGroup& group, exec::Transfer transfer);
  void wait() override;
  void settle() override;

  bool passed() const { return end_.passed(); }
  const exec::Transfer& transfer() const { return transfer_; }
  int64_t submitted() const { return submitted_; }  // exec::now() of the host

 private:
  friend class NcclGroup;
  NcclGroup& group_;
  exec::Transfer transfer_;  // keeps the tensors until the work is dropped, after wait()
  Event begin_, end_;
  int64_t submitted_;
};

class NcclGroup : public exec::Group {
 public:
  // Connects to the other ranks. Throws c10d's errors.
  NcclGroup(const std::string& name, const std::vector<int64_t>& ranks,
            const exec::RendezvousOptions& options, exec::Store store,
            std::shared_ptr<CudaDevice> device);
  ~NcclGroup() override;

  std::shared_ptr<exec::Work> transfer(exec::Transfer transfer) override;

  // Throws Error when a collective has failed or exceeded the time-out.
  void check();
  // Ends this group's work on the GPU. The group cannot be used after it.
  void abort();

  CudaDevice& device() { return *device_; }

 private:
  friend class NcclWork;
  NcclLane connect(const std::string& name, int rank, int size);
  void connect_pair(int64_t low, int64_t high);
  NcclLane& lane(int64_t from, int64_t to);
  [[noreturn]] void fail_transfer(const exec::Transfer& transfer, const std::string& seen);

  exec::RendezvousOptions options_;
  exec::Store store_;
  std::shared_ptr<CudaDevice> device_;
  std::vector<NcclLane> main_;                                // none in a group of one rank
  std::map<std::pair<int64_t, int64_t>, NcclLane> messages_;  // by sender and receiver
  bool neighbours_connected_ = false;
  bool aborted_ = false;
  std::deque<std::shared_ptr<NcclWork>> running_;
};

}  // namespace perigee::cuda
