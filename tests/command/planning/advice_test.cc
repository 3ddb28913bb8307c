// Advice on plans that take too much memory or time: the cause, possible changes, and the effect of
// each change.
#include <catch2/catch.hpp>
#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/command/planning/planned_job.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

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
    CHECK_THAT(ran.err, Contains("--nproc: must be a number above 0, but got "));
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
