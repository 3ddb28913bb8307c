#include "cuda/nccl/lane.h"

#include <cstring>
#include <exception>
#include <list>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/fail.h"
#include "cuda/check.h"
#include "cuda/nccl/agreement.h"

namespace perigee::cuda {
namespace {

using Time = std::chrono::steady_clock;

// Returns the remedy for a call of CUDA that failed within NCCL. `text`: NCCL's description.
std::string nccl_remedy(const std::string& text) {
  if (text.find("peer access") != std::string::npos) return remedy(cudaErrorPeerAccessUnsupported);
  int driver = 0;
  calls().cudaDriverGetVersion(&driver);
  return fmt::format(
      "; NCCL {} may be built for another CUDA than the driver's {}: install LibTorch's NCCL, and "
      "put it first in LD_LIBRARY_PATH",
      nccl_version(), version_text(driver));
}

// Throws std::runtime_error for a library that lacks functions of calls.h.
void check_nccl_version() {
  int version = 0;
  calls().ncclGetVersion(&version);
  if (version >= 21900) return;  // ncclMemAlloc
  throw std::runtime_error(
      fmt::format("NCCL {} is loaded, but 2.19 or later is needed; put LibTorch's NCCL first in "
                  "LD_LIBRARY_PATH",
                  nccl_version()));
}

// Returns the id that the first member made, through the store.
ncclUniqueId shared_id(const LaneOptions& options) {
  ncclUniqueId id{};
  if (options.index == 0) {
    check_nccl(calls().ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    if (options.size == 1) return id;
    const auto* bytes = reinterpret_cast<const uint8_t*>(&id);
    options.store->set(options.key, std::vector<uint8_t>(bytes, bytes + sizeof id));
    return id;
  }
  const auto bytes = wait_for(options, options.key);
  if (bytes.size() != sizeof id) {
    throw std::runtime_error(
        fmt::format("the store has {} bytes for an id of {}", bytes.size(), sizeof id));
  }
  std::memcpy(&id, bytes.data(), sizeof id);
  return id;
}

}  // namespace

std::string nccl_version() {
  int nccl = 0;
  calls().ncclGetVersion(&nccl);
  return fmt::format("{}.{}.{}", nccl / 10000, nccl % 10000 / 100, nccl % 100);
}

void check_nccl(ncclResult_t result, const char* call, ncclComm_t communicator) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* detail = calls().ncclGetLastError(communicator);
  const std::string text = detail ? detail : "";
  throw std::runtime_error(fmt::format("{}: {}{}{}{}", call, calls().ncclGetErrorString(result),
                                       text.empty() ? "" : ": ", text,
                                       result == ncclUnhandledCudaError ? nccl_remedy(text) : ""));
}

// The windows of a communicator that is neither aborted nor destroyed.
struct Lane::Windows {
  Lane& lane;
  std::list<ncclWindow_t> open = {};  // NCCL fills them in the background

  void close(std::list<ncclWindow_t>::iterator window) {
    try {
      const DeviceGuard guard(lane.options_.device);
      const auto result = calls().ncclCommWindowDeregister(lane.communicator_, *window);
      check_nccl(result, "ncclCommWindowDeregister", lane.communicator_);
      lane.settle("ncclCommWindowDeregister");
    } catch (const std::exception&) {
      // The communicator has failed, which its next call reports.
    }
    open.erase(window);
  }
};

Lane::Lane(LaneOptions options)
    : options_(std::move(options)),
      stream_(options_.device, Stream::Priority::high),
      windows_(std::make_shared<Windows>(*this)) {
  check_nccl_version();
  const auto id = shared_id(options_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // so that the time-out holds
  const DeviceGuard guard(options_.device);
  try {
    check_nccl(
        calls().ncclCommInitRankConfig(&communicator_, options_.size, id, options_.index, &config),
        "ncclCommInitRankConfig", nullptr);
    settle("ncclCommInitRankConfig");
  } catch (...) {
    abort();
    throw;
  }
}

Lane::~Lane() {
  if (!communicator_) return;
  while (!windows_->open.empty()) windows_->close(windows_->open.begin());
  try {
    const DeviceGuard guard(options_.device);
    calls().ncclCommDestroy(communicator_);
  } catch (const std::exception&) {
    // The GPU has failed.
  }
}

void Lane::submit(const std::function<void()>& calls_nccl) {
  const DeviceGuard guard(options_.device);
  check_nccl(calls().ncclGroupStart(), "ncclGroupStart", communicator_);
  try {
    calls_nccl();
  } catch (...) {
    calls().ncclGroupEnd();
    throw;
  }
  check_nccl(calls().ncclGroupEnd(), "ncclGroupEnd", communicator_);
  settle("ncclGroupEnd");
}

bool Lane::agree(const std::string& text) { return all_equal(options_, agreements_++, text); }

std::shared_ptr<void> Lane::make_window(std::shared_ptr<std::byte> memory, int64_t bytes) {
  const DeviceGuard guard(options_.device);
  auto& open = windows_->open;
  const auto window = open.insert(open.end(), nullptr);
  check_nccl(calls().ncclCommWindowRegister(communicator_, memory.get(), static_cast<size_t>(bytes),
                                            &*window, NCCL_WIN_COLL_SYMMETRIC),
             "ncclCommWindowRegister", communicator_);
  settle("ncclCommWindowRegister");
  if (!*window) {
    open.erase(window);
    return nullptr;
  }
  auto* address = memory.get();
  return {address, [memory = std::move(memory), windows = std::weak_ptr(windows_),
                    window](std::byte*) mutable {
            if (const auto own = windows.lock()) own->close(window);
            memory.reset();
          }};
}

// Waits for a call that goes on in the background: the first transfer to a peer connects to it.
void Lane::settle(const char* call) {
  poll([&] {
    ncclResult_t state = ncclSuccess;
    check_nccl(calls().ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError",
               communicator_);
    check_nccl(state, call, communicator_);
    return state != ncclInProgress;
  });
}

void Lane::wait(const Event& event) {
  poll([&] {
    const auto seen = failure();
    if (!seen.empty()) throw std::runtime_error("NCCL lost a rank: " + seen);
    return event.passed();
  });
}

void Lane::poll(const std::function<bool()>& ended) const {
  const auto begin = Time::now();
  auto checked = begin;
  while (!ended()) {
    const auto now = Time::now();
    if (now - begin > options_.timeout) throw std::runtime_error("no answer");
    if (options_.check && now - checked > std::chrono::milliseconds(200)) {
      options_.check();
      checked = now;
    }
    // Most calls end at once.
    if (now - begin > std::chrono::milliseconds(1)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

std::string Lane::failure() const {
  ncclResult_t state = ncclSuccess;
  const auto result = calls().ncclCommGetAsyncError(communicator_, &state);
  for (const auto seen : {result, state}) {
    if (seen != ncclSuccess && seen != ncclInProgress) return calls().ncclGetErrorString(seen);
  }
  return "";
}

void Lane::abort() {
  if (!communicator_) return;
  try {
    const DeviceGuard guard(options_.device);
    calls().ncclCommAbort(communicator_);
  } catch (const std::exception&) {
    // The caller is already reporting a failure.
  }
  communicator_ = nullptr;
  windows_.reset();  // aborting ends the windows, and calls that fill them
}

}  // namespace perigee::cuda
