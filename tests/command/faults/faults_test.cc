// Each call of the system that a job makes fails once, or from then on: the job trains on, or ends
// with one sentence, and its newest checkpoint is complete. FAULT_ONLY=CALL in the environment
// restricts the long case to one call.
#include "tests/command/faults/faults.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

constexpr double kTimeOut = 5;  // seconds: cluster.timeout

const char* const kRoleNames[kRoles] = {"launcher", "rank 0", "rank 1"};

// A call that fails.
struct Fault {
  size_t call = 0;
  int role = 0;
  int64_t at = 0;  // from 1
  int error = EIO;
  bool lasting = false;  // all later calls fail, too
};

// Returns an error that the call may end with.
int error_of(std::string_view call) {
  if (call == "write" || call == "pwrite") return ENOSPC;
  if (call == "writev") return ECONNRESET;  // of messages between ranks
  if (call == "fsync" || call == "read") return EIO;
  if (call == "rename" || call == "mkdir" || call == "unlink") return EACCES;
  if (call == "connect") return ECONNREFUSED;
  if (call == "mmap" || call == "fork" || call == "pthread_create") return ENOMEM;
  return EMFILE;
}

// A small job of two ranks with two checkpoints, whose calls are counted and may fail.
class FaultyJob {
 public:
  FaultyJob() {
    const char* build = std::getenv("PERIGEE_BUILD");
    shim_ = fs::absolute(std::string(build ? build : "build") + "/libplugin_faults.so");
    REQUIRE(fs::exists(shim_));
    REQUIRE(fault_free().status == 0);
    reference_ = job_.losses();
    REQUIRE(reference_.size() == 4);
    counters_ = read_counters();
  }

  // Calls of a run without a fault.
  int64_t calls(size_t call, int role) const { return counters_.calls[role][call]; }

  // Trains with a fault. Returns the first thing that is wrong with its outcome; "" for none.
  std::string try_out(const Fault& fault) {
    fs::remove_all(job_.output());
    auto how = this->how();
    how.environment["FAULT_CALL"] = kFaultCalls[fault.call];
    how.environment["FAULT_ROLE"] = std::to_string(fault.role);
    how.environment["FAULT_AT"] = std::to_string(fault.at);
    how.environment["FAULT_ERRNO"] = std::to_string(fault.error);
    how.environment["FAULT_LASTING"] = fault.lasting ? "1" : "0";
    how.seconds = 1.5 * kTimeOut + 10;
    Ran ran;
    try {
      ran = run("train " + words(), how);
    } catch (const std::exception& error) {
      return error.what();
    }
    return outcome(ran);
  }

 private:
  std::string words() const {
    return job_.file() +
           " --nproc 2 --set model.layers=1 --set model.width=16 --set data.sequence=8 "
           "--set batch.global=2 --set train.checkpoint_every=2 --set cluster.timeout=" +
           std::to_string(kTimeOut);
  }

  How how() const {
    std::ofstream(job_.folder() / "calls", std::ios::binary) << std::string(sizeof(Counters), '\0');
    auto how = job_.how();
    how.environment["LD_PRELOAD"] = shim_;
    how.environment["FAULT_FILE"] = job_.folder() / "calls";
    return how;
  }

  Ran fault_free() const { return run("train " + words(), how()); }

  Counters read_counters() const {
    Counters counters;
    const auto text = read(job_.folder() / "calls");
    REQUIRE(text.size() == sizeof counters);
    std::memcpy(&counters, text.data(), sizeof counters);
    return counters;
  }

  std::string outcome(const Ran& ran) const {
    if (ran.status < 0) return "a signal ended the command: " + std::to_string(-ran.status);
    const bool says = ran.err.find("perigee: ") != ran.err.npos ||
                      ran.err.find("error: [launch] ") != ran.err.npos;
    if (ran.status != 0 && !says) return "no sentence: " + ran.err;
    if (ran.err.find("terminate called") != ran.err.npos) return "an abort: " + ran.err;
    if (ran.status == 0) {
      if (job_.checkpoints() != std::vector<int>{2, 4}) return "success, but checkpoints miss";
      // LibTorch chooses other kernels where it cannot read the processor's features, and says so.
      const bool said = ran.err.find("Error in cpuinfo") != ran.err.npos;
      if (job_.losses() != reference_ && !said) return "success, but other losses";
      return "";
    }
    // The rest is trained from the newest checkpoint, if there is one.
    const auto rest = run("train " + words() + " --resume-if-any", job_.how());
    if (rest.status != 0) return "resuming fails: " + rest.err;
    if (job_.checkpoints().empty() || job_.checkpoints().back() != 4) return "nothing to resume";
    const auto losses = job_.losses();
    if (losses.empty() || losses.back() != reference_.back()) return "resumed to other losses";
    return "";
  }

  TrainingJob job_;
  std::string shim_;
  std::vector<double> reference_;
  Counters counters_;
};

std::string to_string(const Fault& fault) {
  return std::string(kFaultCalls[fault.call]) + " number " + std::to_string(fault.at) + " of " +
         kRoleNames[fault.role] + (fault.lasting ? " and all later ones" : "");
}

}  // namespace

TEST_CASE("calls of the system that fail in the middle of a job") {
  FaultyJob job;
  for (size_t call = 0; call < kFaultCalls.size(); ++call) {
    const int role = static_cast<int>(call) % kRoles;
    const auto all = job.calls(call, role);
    if (all == 0 || kFaultCalls[call] == "new") continue;
    const Fault fault{.call = call,
                      .role = role,
                      .at = (all + 1) / 2,
                      .error = error_of(kFaultCalls[call]),
                      .lasting = call % 2 == 0};
    const auto wrong = job.try_out(fault);
    INFO(to_string(fault) << ": " << wrong);
    CHECK(wrong.empty());
  }
}

TEST_CASE("each call of the system may fail", "[.long]") {
  FaultyJob job;
  const char* only = std::getenv("FAULT_ONLY");
  for (size_t call = 0; call < kFaultCalls.size(); ++call) {
    if (only && kFaultCalls[call] != only) continue;
    for (int role = 0; role < kRoles; ++role) {
      const auto all = job.calls(call, role);
      constexpr int64_t kMost = 60;  // runs
      const auto runs = std::min(all, kMost);
      for (int64_t k = 0; k < runs; ++k) {
        // The first allocations precede main(), which decides what a failed one does.
        const int64_t before = kFaultCalls[call] == "new" ? all / 20 : 0;
        Fault fault{.call = call, .role = role, .at = 1 + before + k * (all - before) / runs};
        fault.error = error_of(kFaultCalls[call]);
        for (const bool lasting : {false, true}) {
          fault.lasting = lasting;
          const auto wrong = job.try_out(fault);
          INFO(to_string(fault) << ": " << wrong);
          CHECK(wrong.empty());
        }
      }
    }
  }
}
