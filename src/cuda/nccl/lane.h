// An NCCL communicator with the stream that its work is on.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cuda/handles.h"
#include "exec/comm/rendezvous.h"

namespace perigee::cuda {

// Returns the version of the library, "2.28.9".
std::string nccl_version();

// Throws std::runtime_error with NCCL's own text, and a remedy where there is one, unless the call
// succeeded or goes on in the background. `call`: its name.
void check_nccl(ncclResult_t result, const char* call, ncclComm_t communicator);

struct LaneOptions {
  int device = 0;     // GPU of this process
  exec::Store store;  // not used by a lane of one member
  std::string key;    // of the store; the same for all members, and of no other lane
  int index = 0;      // this member's
  int size = 1;       // members
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Called while a call goes on in the background; ends it by an exception.
  std::function<void()> check;
};

class Lane {
 public:
  // Connects to the other members; each of them does so. Throws std::exception where they do not
  // connect within the time-out.
  explicit Lane(LaneOptions options);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  cudaStream_t stream() const { return stream_.get(); }
  ncclComm_t communicator() const { return communicator_; }

  // Calls `calls_nccl`, whose calls of NCCL become one launch, and returns when it is submitted to
  // the stream. Throws std::exception where NCCL fails or the time-out passes.
  void submit(const std::function<void()>& calls_nccl);

  // Returns when the GPU has reached an event on the stream. Throws as submit().
  void wait(const Event& event);

  // Returns whether all members call it with the same text; each of them calls it. Throws
  // std::exception where one does not within the time-out.
  bool agree(const std::string& text);

  // Makes a symmetric window of memory from ncclMemAlloc; each member does so, with as many bytes. A
  // collective's buffer then lies in it at one offset on all members, or outside on all. Returns
  // the window, or nullptr where NCCL has no use for one. It ends when the pointer is dropped,
  // before the memory is freed, or with the communicator. Throws as submit().
  std::shared_ptr<void> make_window(std::shared_ptr<std::byte> memory, int64_t bytes);

  // Returns the failure of work that was submitted, or "".
  std::string failure() const;

  // Ends the work on the GPU; the lane cannot be used after it. Throws nothing.
  void abort();

 private:
  struct Windows;
  void settle(const char* call);
  // Asks `ended` again and again until it returns true. Throws std::exception where the time-out
  // passes, or options_.check throws.
  void poll(const std::function<bool()>& ended) const;

  LaneOptions options_;
  Stream stream_;
  ncclComm_t communicator_ = nullptr;
  std::shared_ptr<Windows> windows_;  // of the communicator
  int64_t agreements_ = 0;
};

}  // namespace perigee::cuda
