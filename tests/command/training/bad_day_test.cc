// Bad days of a run: slow disks, removed and damaged files, caches that cannot be written.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kSmall =
    "--set model.layers=1 --set model.width=16 --set data.sequence=8 --set batch.global=2 ";

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++found;
  return found;
}

}  // namespace

TEST_CASE("a run without a folder for caches trains, and says so once") {
  const TrainingJob job;
  const bool existed = fs::exists("/tmp/perigee");
  for (const std::string home : {"", "/proc/nowhere"}) {
    auto how = job.how();
    how.environment = {{"XDG_CACHE_HOME", ""}, {"HOME", home}};
    const auto ran = run(
        "train " + job.file() + " --nproc 2 --overwrite --set train.steps=2 " + kSmall, how);
    INFO(ran.err);
    CHECK(ran.status == 0);
    CHECK(count(ran.err, "measurements are kept in memory only") == 1);
    CHECK_THAT(ran.err, Contains(home.empty() ? "neither XDG_CACHE_HOME nor HOME" : home));
    // A command that exists to keep measurements is refused at once.
    const auto refused = run("profile " + job.file() + " --seconds 1 " + kSmall, how);
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, Contains("measurements must be kept in a file"));
  }
  CHECK(fs::exists("/tmp/perigee") == existed);
}

TEST_CASE("a run that goes back keeps the checkpoints and metrics that it leaves") {
  const TrainingJob job;
  job.good("train", kSmall + "--set train.checkpoint_every=1 --set train.keep_checkpoints=9");
  const auto before = read(job.output() + "/metrics.jsonl");
  const auto ran = job.good("train", kSmall +
                                         "--set train.checkpoint_every=1 --set "
                                         "train.keep_checkpoints=9 --resume " +
                                         job.output() + "/checkpoints/step-2");
  CHECK_THAT(ran.err, Contains("checkpoints of steps 3, 4, later than step 2: renamed to "
                               "step-N.aside-1"));
  CHECK(names_in(job.output() + "/checkpoints") ==
        std::vector<std::string>{"step-1", "step-2", "step-3", "step-3.aside-1", "step-4",
                                 "step-4.aside-1"});
  CHECK(read(job.output() + "/metrics.aside-1.jsonl") == before);
  CHECK(job.losses().size() == 4);
  // They can be read and resumed from.
  CHECK(run("export " + job.output() + "/checkpoints/step-4.aside-1 -o " + (job.folder() / "w"),
            job.how())
            .status == 0);
}

TEST_CASE("metrics that were damaged are kept where they are good, and the rest is named") {
  const TrainingJob job;
  job.good("train", kSmall);
  const auto file = job.output() + "/metrics.jsonl";
  auto text = read(file);
  const auto losses = job.losses();
  const auto second = text.find('\n') + 1;
  std::fill(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(second), '\0');
  std::ofstream(file, std::ios::binary) << text;
  const auto ran = job.good("train", kSmall + "--resume --set train.steps=5");
  CHECK_THAT(ran.err, Contains("metrics.jsonl is damaged or was cut short: the metrics of steps 1 "
                               "are lost, all others kept"));
  const auto kept = job.losses();
  REQUIRE(kept.size() == 4);
  CHECK(std::vector(kept.begin(), kept.end() - 1) == std::vector(losses.begin() + 1, losses.end()));
}

TEST_CASE("an output folder that is removed while a run writes it is an error at the end") {
  const TrainingJob job;
  Process process(job.words("train", kSmall + "--set train.checkpoint_every=0 --set "
                                              "train.log_every=1 --set train.steps=400"),
                  job.how());
  process.wait_for("step 3/");
  fs::remove_all(job.output());
  const auto ran = process.wait();
  INFO(ran.err);
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, Contains("[run] " + job.output() +
                               " must stay while a run writes it, but job.toml and metrics.jsonl "
                               "of it were removed"));
}

TEST_CASE("metrics say how long a checkpoint kept the run from going on") {
  const TrainingJob job;
  job.good("train", kSmall + "--nproc 2 --set train.checkpoint_every=2 --set train.steps=5");
  for (const auto& line : job.metrics()) {
    if (!line.contains("step")) {
      CHECK(line["summary"]["checkpoint_bytes"] > 0);
      continue;
    }
    INFO(line.dump());
    const int step = line["step"];
    CHECK(line.contains("checkpoint_s") == (step % 2 == 0 || step == 5));
    if (line.contains("checkpoint_s")) CHECK(line["checkpoint_s"] > 0);
  }
}

TEST_CASE("an fsync that takes three time-outs ends no job") {
  const char* build = std::getenv("PERIGEE_BUILD");
  const auto shim = std::string(build ? build : "build") + "/libplugin_disk.so";
  REQUIRE(fs::exists(shim));
  const TrainingJob job;
  auto how = job.how();
  how.environment["LD_PRELOAD"] = fs::absolute(shim).string();
  how.environment["ASAN_OPTIONS"] = "verify_asan_link_order=0";
  how.environment["SLOW_FSYNC"] = "job.toml rank-1.safetensors COMPLETE";
  how.environment["SLOW_FSYNC_SECONDS"] = "4.6";
  how.environment["SLOW_FSYNC_SAYS"] = job.folder() / "slow.txt";
  const auto ran = run("train " + job.file() + " --nproc 2 " + kSmall +
                           "--set cluster.timeout=1.5 --set train.checkpoint_every=2",
                       how);
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK(job.checkpoints() == std::vector<int>{2, 4});
  const auto slow = read(job.folder() / "slow.txt");
  for (const std::string name : {"job.toml", "rank-1.safetensors", "COMPLETE"}) {
    CHECK(count(slow, name) == 1);  // of the first such file
  }
}
