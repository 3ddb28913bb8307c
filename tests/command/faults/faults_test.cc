// Each call of the system that a job makes fails once, or from then on: the job trains on, or ends
// within 10 s with one sentence, and its newest checkpoint is complete. So does a job that is resumed
// from its first checkpoint.
//
// Of a call that fails once, every one is tried; of one that fails from then on, kLasting. A job
// makes some hundreds of calls in all. Allocations ("new") are the exception: the ranks' libraries
// make millions while they load and plan, so that kSampled are tried in either way. In the
// environment of the long case, FAULT_ONLY=CALL restricts it to one call, FAULT_PART=first|resumed
// to one part, and FAULT_PROCESS=launcher|0|1 to one process.
#include "tests/command/faults/faults.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
namespace fs = std::filesystem;

namespace {

constexpr double kTimeOut = 2;                   // seconds: cluster.timeout of runs with a fault
constexpr double kLimit = 10;                    // seconds after the fault in which these end
constexpr int64_t kSampled = 40, kLasting = 20;  // of each call and role

const char* const kRoleNames[kRoles] = {"launcher", "0", "1"};

// The run in which a call fails: the job's first, or one that resumes at the first checkpoint.
enum class Part : uint8_t { first, resumed };

const char* name_of(Part part) { return part == Part::first ? "first" : "resumed"; }

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

// A small job of two ranks with checkpoints of steps 2 and 4, whose calls are counted and may fail.
class FaultyJob {
 public:
  explicit FaultyJob(Part part) : part_(part) {
    const char* build = std::getenv("PERIGEE_BUILD");
    shim_ = fs::absolute(std::string(build ? build : "build") + "/libplugin_faults.so");
    REQUIRE(fs::exists(shim_));
    train(job_.how());
    reference_ = job_.losses();
    REQUIRE(reference_.size() == 4);
    if (part == Part::resumed) {
      fs::remove_all(job_.output());
      train(job_.how(), " --set train.steps=2");
      REQUIRE(job_.checkpoints() == std::vector<int>{2});
      fs::rename(job_.output(), kept());
      // The run was killed while it wrote the next checkpoint.
      const auto unfinished = kept() + "/checkpoints/step-4.partial";
      fs::create_directories(unfinished);
      std::ofstream(unfinished + "/rank-0.safetensors") << "half";
    }
    prepare();
    const auto start = now();
    train(counted(), options());
    seconds_ = now() - start;
    REQUIRE(job_.losses() == reference_);
    counters_ = read_counters();
  }

  // Calls of a run without a fault.
  int64_t calls(size_t call, int role) const { return counters_.calls[role][call]; }

  // Trains with a fault. Returns the first thing that is wrong with its outcome; "" for none.
  std::string try_out(const Fault& fault) {
    prepare();
    auto how = counted();
    how.environment["FAULT_CALL"] = kFaultCalls[fault.call];
    how.environment["FAULT_ROLE"] = std::to_string(fault.role);
    how.environment["FAULT_AT"] = std::to_string(fault.at);
    how.environment["FAULT_ERRNO"] = std::to_string(fault.error);
    how.environment["FAULT_LASTING"] = fault.lasting ? "1" : "0";
    how.seconds = seconds_ + kLimit;
    Ran ran;
    try {
      ran = run(
          "train " + words() + " --set cluster.timeout=" + std::to_string(kTimeOut) + options(),
          how);
    } catch (const std::exception& error) {
      return error.what();
    }
    return outcome(ran);
  }

 private:
  std::string kept() const { return job_.folder() / "kept"; }

  std::string words() const {
    return job_.file() +
           " --nproc 2 --set model.layers=1 --set model.width=16 --set data.sequence=8 "
           "--set batch.global=2 --set train.checkpoint_every=2";
  }

  std::string options() const { return part_ == Part::first ? "" : " --resume"; }

  // Trains without a fault.
  void train(const How& how, const std::string& more = "") const {
    const auto ran = run("train " + words() + more, how);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
  }

  // Makes the folders as they are before the run: all faults meet the same calls.
  void prepare() const {
    fs::remove_all(job_.output());
    fs::remove_all(job_.folder() / "cache");
    if (part_ == Part::resumed) {
      fs::copy(kept(), job_.output(), fs::copy_options::recursive);
    }
  }

  How counted() const {
    std::ofstream(job_.folder() / "calls", std::ios::binary) << std::string(sizeof(Counters), '\0');
    auto how = job_.how();
    how.environment["LD_PRELOAD"] = shim_;
    how.environment["FAULT_FILE"] = job_.folder() / "calls";
    return how;
  }

  Counters read_counters() const {
    Counters counters;
    const auto text = read(job_.folder() / "calls");
    REQUIRE(text.size() == sizeof counters);
    std::memcpy(&counters, text.data(), sizeof counters);
    return counters;
  }

  std::string outcome(const Ran& ran) const {
    if (ran.status < 0) return "a signal ended the command: " + std::to_string(-ran.status);
    if (ran.err.find("terminate called") != ran.err.npos) return "an abort: " + ran.err;
    if (ran.status == 0) {
      if (job_.checkpoints() != std::vector<int>{2, 4}) return "success, but checkpoints miss";
      // LibTorch chooses other kernels where it cannot read the processor's features, and says so.
      const bool said = ran.err.find("Error in cpuinfo") != ran.err.npos;
      if (job_.losses() != reference_ && !said) return "success, but other losses";
      return "";
    }
    if (sentences(ran.err) != 1) return "not one sentence: " + ran.err;
    if (part_ == Part::resumed && job_.newest_checkpoint() < 2) return "a checkpoint is lost";
    // The rest is trained from the newest checkpoint, if there is one.
    const auto rest = run("train " + words() + " --resume-if-any", job_.how());
    if (rest.status != 0) return "resuming fails: " + rest.err;
    if (job_.checkpoints().empty() || job_.checkpoints().back() != 4) return "nothing to resume";
    const auto losses = job_.losses();
    if (losses.empty() || losses.back() != reference_.back()) return "resumed to other losses";
    return "";
  }

  // Returns the number of sentences about a failure: the error that ends the command, or the
  // launcher's about a rank that could not tell its own.
  static size_t sentences(const std::string& err) {
    const auto lines = "\n" + err;
    return count(lines, "\nperigee: ") + count(lines, "\nerror: ");
  }

  Part part_;
  TrainingJob job_;
  std::string shim_;
  std::vector<double> reference_;
  Counters counters_;
  double seconds_ = 0;  // of a run without a fault: a fault happens within them
};

std::string to_string(const Fault& fault) {
  return std::string(kFaultCalls[fault.call]) + " number " + std::to_string(fault.at) + " of " +
         (fault.role == 0 ? "the " : "rank ") + kRoleNames[fault.role] +
         (fault.lasting ? " and all later ones" : "");
}

void check(FaultyJob& job, const Fault& fault) {
  const auto wrong = job.try_out(fault);
  INFO(to_string(fault) << ": " << wrong);
  CHECK(wrong.empty());
}

// Returns whether the variable is not set, or is the name.
bool is_chosen(const char* variable, std::string_view name) {
  const char* value = std::getenv(variable);
  return !value || name == value;
}

// Tries the faults of a call in a role, of which there are `all`.
void try_all(FaultyJob& job, size_t call, int role, int64_t all) {
  const bool is_new = kFaultCalls[call] == "new";
  // The first allocations precede main(), which decides what a failed one does.
  const int64_t before = is_new ? all / 20 : 0;
  for (const bool lasting : {false, true}) {
    const auto runs = std::min(all, is_new ? kSampled : lasting ? kLasting : all);
    for (int64_t k = 0; k < runs; ++k) {
      check(job, {.call = call,
                  .role = role,
                  .at = 1 + before + k * (all - before) / runs,
                  .error = error_of(kFaultCalls[call]),
                  .lasting = lasting});
    }
  }
}

}  // namespace

TEST_CASE("calls of the system that fail in the middle of a job") {
  FaultyJob job(Part::first);
  for (size_t call = 0; call < kFaultCalls.size(); ++call) {
    // A rank without memory must have its sentence, too; a launcher would fail before it forks.
    const int role = kFaultCalls[call] == "new" ? 2 : static_cast<int>(call) % kRoles;
    const auto all = job.calls(call, role);
    if (all == 0) continue;
    check(job, {.call = call,
                .role = role,
                .at = (all + 1) / 2,
                .error = error_of(kFaultCalls[call]),
                .lasting = call % 2 == 0});
  }
}

TEST_CASE("calls of the system that fail while a job is resumed") {
  FaultyJob job(Part::resumed);
  for (const std::string_view name : {"read", "mmap", "write", "fsync", "rename", "openat"}) {
    const auto found = std::find(kFaultCalls.begin(), kFaultCalls.end(), name);
    const auto call = static_cast<size_t>(found - kFaultCalls.begin());
    const auto all = job.calls(call, 1);
    INFO(name);
    REQUIRE(all > 0);
    check(job, {.call = call,
                .role = 1,
                .at = (2 * all + 2) / 3,
                .error = error_of(name),
                .lasting = call % 2 == 0});
  }
}

TEST_CASE("each call of the system may fail", "[.long]") {
  for (const auto part : {Part::first, Part::resumed}) {
    if (!is_chosen("FAULT_PART", name_of(part))) continue;
    FaultyJob job(part);
    for (size_t call = 0; call < kFaultCalls.size(); ++call) {
      if (!is_chosen("FAULT_ONLY", kFaultCalls[call])) continue;
      for (int role = 0; role < kRoles; ++role) {
        if (!is_chosen("FAULT_PROCESS", kRoleNames[role])) continue;
        INFO("part " << name_of(part));
        try_all(job, call, role, job.calls(call, role));
      }
    }
  }
}
