// Advice on plans that take too much memory or time: the cause, possible changes, and the effect of
// each change.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>

#include "tests/command/planning/planned_job.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

// A mount namespace in which files of the test stand for the limits of control groups, of either
// version. Not ready, with a warning, where the system permits none or has no control groups.
class LimitedMemory {
 public:
  LimitedMemory() {
    const std::string finds_groups =
        "grep -qE ' /sys/fs/cgroup(/memory|/unified)? .* - cgroup2? ' /proc/self/mountinfo";
    ready_ = Process(with_limit(1, {"sh", "-c", finds_groups})).wait().status == 0;
    if (!ready_) WARN("this system permits no mount namespaces: memory limits were not tested");
  }

  bool ready() const { return ready_; }

  // Returns a command of which the processes have so many bytes of memory together.
  static std::vector<std::string> within(int64_t bytes, const std::string& arguments) {
    return with_limit(bytes, perigee_command(arguments));
  }

 private:
  static std::vector<std::string> with_limit(int64_t bytes,
                                             const std::vector<std::string>& command) {
    std::vector<std::string> words = {"unshare", "--mount"};
    if (::geteuid() != 0) words.push_back("--map-root-user");
    const auto limit = std::to_string(bytes);
    words.insert(words.end(),
                 {"sh", "-c",
                  "set -e; groups=/sys/fs/cgroup; mount -t tmpfs none $groups; "
                  "mkdir $groups/memory $groups/unified; "
                  "for file in memory/memory.limit_in_bytes memory.max unified/memory.max; do "
                  "echo " +
                      limit + " > $groups/$file; done; exec \"$@\"",
                  "sh"});
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

  bool ready_ = false;
};

// Writes a cluster of four devices with `bytes` each, and returns its path.
std::string cluster(const Folder& folder, const std::string& bytes) {
  return folder.write("cluster.toml", R"(format = "perigee.cluster/1"
name = "four"
[[device]]
name = "d"
count = 4
memory = )" + bytes + R"(
bandwidth = 1e9
peak = { float32 = 1e9 }
source = "a test"
[[link]]
level = "host"
ranks = 4
latency = 1e-6
bandwidth = 1e9
source = "a test"
)");
}

// Returns the peak memory in MiB and the seconds of a line of advice, "  WHAT: 1.5 MiB (-3.0%) a
// rank, 12 ms (+1.0%) a step"; nothing where there is no such line.
std::vector<double> numbers_of(const std::string& text, const std::string& what) {
  const auto at = text.find("\n  " + what + ": ");
  if (at == std::string::npos) return {};
  static const std::regex line(
      R"(([0-9.]+) (KiB|MiB) \([+-][0-9.]+%\) a rank, ([0-9.]+) (ms|s) \([+-][0-9.]+%\) a step)");
  const auto begin = text.substr(at + what.size() + 5,
                                 text.find('\n', at + 1) - at - what.size() - 5);
  std::smatch found;
  if (!std::regex_match(begin, found, line)) return {};
  return {std::stod(found[1]) / (found[2] == "KiB" ? 1024 : 1),
          std::stod(found[3]) / (found[4] == "ms" ? 1000 : 1)};
}

}  // namespace

TEST_CASE("a plan that does not fit is refused with changes that make it fit, and their cost") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto about = "plan " + job + " --nproc 2 --cluster " + cluster(folder, "5.3e6");
  const auto refused = run(about + " --strategy ddp", own_cache(folder));
  CHECK(refused.status == 2);
  CHECK(is_short(refused.err));
  CHECK_THAT(refused.err, Contains("make one of these changes, with each of which it fits:"));
  const auto parts = numbers_of(refused.err, "fsdp");
  REQUIRE(parts.size() == 2);
  CHECK(parts[0] < 5.06);
  CHECK(!numbers_of(refused.err, "--nproc 4").empty());
  // The change has the stated effect.
  const auto changed = run("simulate " + job + " --nproc 2 --json --cluster " +
                               cluster(folder, "5.3e6") + " --strategy " +
                               folder.write("fsdp.lua", "return { \"fsdp\", \"grad_comm\" }\n"),
                           own_cache(folder));
  INFO(changed.err);
  REQUIRE(changed.status == 0);
  const auto value = json::parse(changed.out);
  CHECK(value["ranks"][0]["peak_bytes"].get<double>() / (1 << 20) ==
        Approx(parts[0]).epsilon(0.02));
  CHECK(value["step_seconds"].get<double>() == Approx(parts[1]).epsilon(0.02));
  // A plan that does not fit is simulated with a warning.
  const auto large = run(
      "simulate " + job + " --nproc 2 --cluster " + cluster(folder, "5.3e6") + " --strategy ddp",
      own_cache(folder));
  CHECK(large.status == 0);
  CHECK_THAT(large.err, Contains("warning: the plan does not fit in memory: "));
  CHECK_THAT(changed.err, !Contains("does not fit"));
  // So is a plan of this machine, which train would refuse.
  const std::string here = "plan " + job + " --explain --strategy ddp --set model.width=200000";
  CHECK_THAT(run(here, own_cache(folder)).err,
             Contains("warning: the plan does not fit in memory: [plan] a plan must fit"));
  // The advice says if no single change is enough.
  const auto small = run(
      "plan " + job + " --nproc 2 --cluster " + cluster(folder, "1e6") + " --strategy ddp",
      own_cache(folder));
  CHECK(small.status == 2);
  CHECK_THAT(small.err, Contains("(none alone is enough):"));
}

TEST_CASE("a search that finds no plan reports the memory of a plan without each pin") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto strategy = folder.write("pinned.lua", R"(-- Pins more than fits.
return function()
  return assert(require("perigee.solver").plan { zero = 0, checkpoint = false, pipe = 1, tensor = 1, micro = 4 })
end
)");
  const auto ran = run("plan " + job + " --nproc 2 --cluster " + cluster(folder, "4.5e6") +
                           " --strategy " + strategy,
                       own_cache(folder));
  CHECK(ran.status == 3);
  CHECK_THAT(ran.err, Contains("no plan fits") &&
                          Contains("a plan fits with one of these changes:") &&
                          Contains("\n  without checkpoint = false: ") && Contains(" a rank, "));
  const auto none = run("plan " + job + " --nproc 9 --set batch.global=8 --set model.layers=2",
                        own_cache(folder));
  CHECK(none.status == 3);
  CHECK_THAT(none.err, Contains("a mesh of 9 ranks must be possible"));
}

TEST_CASE("simulate reports the bound of a plan and changes that make it faster") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto given = job + " --strategy pipeline_parallel --nproc 2";
  const auto ran = run("simulate " + given, own_cache(folder));
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.out, Contains("it is bound by waits, ") && Contains("% of a step on rank "));
  CHECK_THAT(ran.out, Contains("shorter with one of:\n") && Contains("%) a step\n"));
  // A change whose plan does not fit in the devices' memory is left out.
  const auto on = [&](const std::string& bytes) {
    const auto described = run("simulate " + given + " --cluster " + cluster(folder, bytes),
                               own_cache(folder));
    INFO(described.err);
    REQUIRE(described.status == 0);
    return described.out;
  };
  const std::string larger = "pipeline_parallel { schedule = \"zb1p\" }: 4.73 MiB (+11.0%) a rank";
  CHECK_THAT(on("1e9"), Contains(larger) && Contains("schedule = \"interleaved\""));
  CHECK_THAT(on("4.6e6"), !Contains("zb1p") && Contains("schedule = \"interleaved\""));
  // JSON is unchanged.
  CHECK(json::parse(run("simulate " + given + " --json", own_cache(folder)).out).contains("mfu"));
  // A plan goes to the file of -o beside its explanation.
  const auto both = run("plan " + given + " --explain -o " + (folder / "plan.json"),
                        own_cache(folder));
  REQUIRE(both.status == 0);
  CHECK_THAT(both.out, Contains("pipeline_parallel: "));
  CHECK(read(folder / "plan.json") == run("plan " + given, own_cache(folder)).out);
}

TEST_CASE("a run's plan is simulated with the job in its folder") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  REQUIRE(run("train " + job + " --strategy ddp --nproc 2 --set train.output=" + (folder / "run"),
              own_cache(folder))
              .status == 0);
  const auto ran = run("simulate " + (folder / "run/plan.json"), own_cache(folder));
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out, Catch::StartsWith("a step on "));
  const auto lonely = folder.write("other/plan.json", read(folder / "run/plan.json"));
  const auto refused = run("simulate " + lonely, own_cache(folder));
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, Contains("perigee simulate JOB --plan "));
}

TEST_CASE("invalid numbers of options are refused with the rule") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  for (const std::string option : {"--nproc 0", "--nproc -1", "--nproc x"}) {
    const auto ran = run("plan " + job + " " + option, own_cache(folder));
    CHECK(ran.status == 2);
    CHECK_THAT(ran.err, Contains("--nproc must be from 1 to 1048576, but got "));
  }
}

TEST_CASE("an interrupted profile reports the discarded measurements") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  auto how = own_cache(folder);
  how.columns = 80;
  Process process(perigee_command("profile " + job + " --nproc 2 --set model.layers=12"), how);
  process.wait_for("profile: 1 of");
  process.signal(SIGINT);
  const auto ran = process.wait();
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, Contains("ended by a signal") && !Contains("checkpoint"));
}

TEST_CASE("plans fit the memory that the process's control group allows") {
  const LimitedMemory limited;
  if (!limited.ready()) return;
  const Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto how = own_cache(folder);
  const auto plan = [&](int64_t bytes) {
    return Process(limited.within(bytes, "plan " + job + " --nproc 2 --strategy auto"), how).wait();
  };
  const auto bytes_of_plan = [&](int64_t bytes) {
    const auto ran = plan(bytes);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    const std::vector<int64_t> peaks = json::parse(ran.out)["prediction"]["peak_bytes"];
    return std::accumulate(peaks.begin(), peaks.end(), int64_t{0});
  };
  // The ranks share the limit; a tight one makes the plan a smaller one.
  constexpr int64_t kTight = 8'000'000, kAmple = int64_t{1} << 30;
  CHECK(bytes_of_plan(kTight) <= kTight);
  CHECK(bytes_of_plan(kAmple) > kTight);
  const auto none = plan(1'000'000);
  CHECK(none.status == 3);
  CHECK_THAT(none.err, Contains("no plan fits") && Contains("more than the limit of"));
  // A given plan is checked before a job trains by it.
  const auto train = "train " + job +
                     " --nproc 2 --strategy ddp --set train.output=" + (folder / "run");
  const auto refused = Process(limited.within(kTight, train), how).wait();
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, Contains("a plan must fit the available memory, but 2 ranks") &&
                              Contains("7.63 MiB of their host"));
}
