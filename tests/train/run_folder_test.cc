#include "train/output/run_folder.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <set>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "exec/comm/threads.h"
#include "tests/checkpoint/support.h"
#include "tests/support/golden.h"
#include "tests/support/s3_server.h"
#include "tests/support/temporary_folder.h"
#include "train/output/shared_folder.h"

namespace fs = std::filesystem;
using namespace perigee;
using namespace perigee::train;
using test::error_of;
using test::Folder;
using test::read_text;

namespace {

job::Job job_of(const Folder& folder, const std::string& more = "") {
  auto job = job::Job::parse("[model]\nkind = \"mlp\"\n" + more, folder.at("job.toml"));
  job.train.output = folder.at("run");
  return job;
}

// Writes a run with checkpoints of steps 1 and 2.
void train_once(const Folder& folder) {
  const auto job = job_of(folder);
  RunFolder run(job, {});
  run.begin();
  run.write_job(job);
  run.write_plan("{}\n");
  folder.add("run/log.txt", "");
  folder.add("run/metrics.jsonl", "{\"step\":1}\n");
  for (const int64_t step : {1, 2}) {
    test::write_checkpoint(run.path(), step, "data=2", {{"w", {4}, "S0"}});
  }
}

struct Lines : log::Sink {
  Lines() { log::set_sink(this); }
  ~Lines() override { log::set_sink(nullptr); }
  void write(log::Level, std::string_view text) override { all.emplace_back(text); }
  std::vector<std::string> all;
};

std::string open(const job::Job& job, const RunOptions& options) {
  return error_of([&] { RunFolder(job, options).begin(); });
}

}  // namespace

TEST_CASE("a new run makes its folder and writes job and plan") {
  Folder folder;
  const auto job = job_of(folder);
  RunFolder run(job, {});
  CHECK(run.path() == folder.at("run"));
  CHECK(run.checkpoint().empty());
  CHECK(run.resumed_plan().empty());
  run.begin();
  run.write_job(job);
  run.write_plan("{\"a\":1}\n");
  CHECK(read_text(folder.at("run/plan.json")) == "{\"a\":1}\n");
  CHECK(job::changed_keys(job::Job::load(folder.at("run/job.toml")), job).empty());
}

TEST_CASE("a folder that holds another run is refused and left unchanged") {
  Folder folder;
  train_once(folder);
  const auto expected = fmt::format(
      "[run] {} must be a new folder, but it holds another run: go on with it (--resume), empty it "
      "(--overwrite), or choose another train.output",
      folder.at("run"));
  CHECK(open(job_of(folder), {}) == expected);
  CHECK(fs::exists(folder.at("run/checkpoints/step-2/COMPLETE")));
  for (const auto* name : {"job.toml", "plan.json", "log.txt"})
    fs::remove(folder.at("run") + "/" + name);
  CHECK(open(job_of(folder), {}) == expected);  // metrics alone make a run
  fs::remove(folder.at("run/metrics.jsonl"));
  CHECK(open(job_of(folder), {}) == expected);  // so do checkpoints
}

TEST_CASE("a run that did not begin leaves no file, and a run without a step may be replaced") {
  Folder folder;
  auto job = job_of(folder);
  job.train.output = folder.at("new/runs/a");
  { const RunFolder run(job, {}); }
  CHECK(!fs::exists(folder.at("new")));
  train_once(folder);
  { const RunFolder run(job_of(folder), {.overwrite = true}); }
  CHECK(fs::exists(folder.at("run/checkpoints/step-2/COMPLETE")));
  fs::create_directories(folder.at("new/runs/a/checkpoints/step-1.partial"));
  for (const auto* name : {".lock", "job.toml", "plan.json", "log.txt", "metrics.jsonl"})
    folder.add(fmt::format("new/runs/a/{}", name), "");
  CHECK(open(job, {}) == "nothing was thrown");
  CHECK(!fs::exists(folder.at("new/runs/a/job.toml")));
}

TEST_CASE("a folder with files of others that a run would replace is refused, and left as it is") {
  Folder folder;
  auto job = job_of(folder);
  job.train.output = folder.at("mine");
  for (const auto* name : {"job.toml", "samples.jsonl", "plan.json"}) {
    folder.add(fmt::format("mine/{}", name), "of the user");
    for (const bool overwrite : {false, true, false}) {
      CHECK_THAT(open(job, {.overwrite = overwrite}), Catch::Contains("that no run wrote"));
    }
    CHECK(read_text(folder.at(fmt::format("mine/{}", name))) == "of the user");
    CHECK(!fs::exists(folder.at("mine/.lock")));
    fs::remove(folder.at(fmt::format("mine/{}", name)));
  }
  folder.add("mine/notes.txt", "of the user");
  CHECK(open(job, {}) == "nothing was thrown");
  CHECK(fs::exists(folder.at("mine/notes.txt")));
}

TEST_CASE("overwriting removes exactly the files of a run") {
  Folder folder;
  train_once(folder);
  folder.add("run/notes.txt", "mine");
  folder.add("run/checkpoints/step-1/mine.txt", "mine");
  folder.add("run/checkpoints/best/w.txt", "mine");
  CHECK(open(job_of(folder), {.overwrite = true}) == "nothing was thrown");
  std::vector<std::string> left;
  for (const auto& entry : fs::recursive_directory_iterator(folder.at("run"))) {
    if (entry.is_regular_file()) left.push_back(fs::relative(entry.path(), folder.at("run")));
  }
  std::sort(left.begin(), left.end());
  CHECK(left == std::vector<std::string>{".lock", "checkpoints/best/w.txt",
                                         "checkpoints/step-1/mine.txt", "notes.txt"});
}

TEST_CASE("a folder without files of a run is accepted with its other files") {
  Folder folder;
  folder.add("run/notes.txt", "mine");
  CHECK(open(job_of(folder), {}) == "nothing was thrown");
  CHECK(read_text(folder.at("run/notes.txt")) == "mine");
}

TEST_CASE("a run is resumed from its newest checkpoint or from a given one") {
  Folder folder;
  train_once(folder);
  {
    const RunFolder run(job_of(folder), {.resume = true});
    CHECK(run.checkpoint() == folder.at("run/checkpoints/step-2"));
    CHECK(run.resumed_plan() == folder.at("run/plan.json"));
  }
  const RunFolder run(job_of(folder),
                      {.resume = true, .resume_from = folder.at("run/checkpoints/step-1")});
  CHECK(run.checkpoint() == folder.at("run/checkpoints/step-1"));
  CHECK(fs::exists(folder.at("run/metrics.jsonl")));
}

TEST_CASE("a run that goes back keeps later checkpoints and metrics under other names") {
  Folder folder;
  train_once(folder);
  test::write_checkpoint(folder.at("run"), 3, "data=2", {{"w", {4}, "S0"}});
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder.at("run/checkpoints"))) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  };
  const RunOptions back{.resume = true, .resume_from = folder.at("run/checkpoints/step-1")};
  { const RunFolder run(job_of(folder), back); }
  CHECK(names() == std::vector<std::string>{"step-1", "step-2", "step-3"});  // not yet begun
  Lines lines;
  CHECK(open(job_of(folder), back) == "nothing was thrown");
  CHECK(names() == std::vector<std::string>{"step-1", "step-2.aside-1", "step-3.aside-1"});
  CHECK(lines.all == std::vector<std::string>{
                         fmt::format("checkpoints of steps 2, 3, later than step 1: renamed to "
                                     "step-N.aside-1 in {}, and kept",
                                     folder.at("run/checkpoints"))});
  CHECK(read_text(folder.at("run/metrics.aside-1.jsonl")) == "{\"step\":1}\n");
  // The second time under new names; they never count as the run's newest, and no run removes them.
  test::write_checkpoint(folder.at("run"), 2, "data=2", {{"w", {4}, "S0"}}, 1);
  CHECK(names() == std::vector<std::string>{"step-2", "step-2.aside-1", "step-3.aside-1"});
  test::write_checkpoint(folder.at("run"), 1, "data=2", {{"w", {4}, "S0"}}, 1);
  CHECK(names() ==
        std::vector<std::string>{"step-1", "step-2.aside-1", "step-2.aside-2", "step-3.aside-1"});
  CHECK(lines.all.size() == 2);
  {
    const RunFolder run(job_of(folder), {.resume = true});
    CHECK(run.checkpoint() == folder.at("run/checkpoints/step-1"));
  }
  const RunOptions aside{.resume = true,
                         .resume_from = folder.at("run/checkpoints/step-3.aside-1")};
  CHECK(open(job_of(folder), aside) == "nothing was thrown");
  checkpoint::Checkpoint(aside.resume_from).verify();
  CHECK(open(job_of(folder), {.overwrite = true}) == "nothing was thrown");
  CHECK(!fs::exists(folder.at("run/checkpoints")));
  CHECK(!fs::exists(folder.at("run/metrics.aside-1.jsonl")));
}

TEST_CASE(
    "a run that goes on from a checkpoint aside leaves the other branch aside, with its metrics") {
  Folder folder;
  train_once(folder);  // steps 1 and 2
  const auto line = [](int step, const std::string& branch) {
    return fmt::format("{{\"step\":{},\"loss\":{}}}\n", step, branch);
  };
  const auto first = line(1, "1") + line(2, "2") + line(3, "2"),
             second = line(1, "1") + line(2, "3") + line(3, "3");
  const auto write = [&](int64_t step) {
    test::write_checkpoint(folder.at("run"), step, "data=2", {{"w", {4}, "S0"}});
  };
  write(3);
  folder.add("run/metrics.jsonl", first);
  const auto resume = [&](const std::string& name) {
    CHECK(open(job_of(folder),
               {.resume = true, .resume_from = folder.at("run/checkpoints/" + name)}) ==
          "nothing was thrown");
  };
  resume("step-1");
  folder.add("run/metrics.jsonl", second);
  write(2);
  write(3);
  Lines lines;
  resume("step-3.aside-1");
  CHECK(read_text(folder.at("run/metrics.jsonl")) == first);
  CHECK(read_text(folder.at("run/metrics.aside-2.jsonl")) == second);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.at("run/checkpoints"))) {
    names.insert(entry.path().filename());
  }
  CHECK(names == std::set<std::string>{"step-1", "step-2.aside-1", "step-2.aside-2",
                                       "step-3.aside-1", "step-3.aside-2"});
}

TEST_CASE("a folder knows the command that began its run") {
  Folder folder;
  const auto job = job_of(folder);
  CHECK(!has_begun(job, "a"));
  {
    RunFolder run(job, {});
    CHECK(!has_begun(job, "a"));
    run.begin("a");
    CHECK(has_begun(job, "a"));
    CHECK(!has_begun(job, "b"));
  }
  folder.add("run/metrics.jsonl", "{\"step\":1}\n");
  RunFolder run(job, {.overwrite = true});
  CHECK(!has_begun(job, "b"));
  run.begin();
  CHECK(!has_begun(job, ""));
}

TEST_CASE("a folder that is removed while a run writes it is an error at the end") {
  Folder folder;
  const auto job = job_of(folder);
  RunFolder run(job, {});
  run.begin();
  run.write_job(job);
  folder.add("run/metrics.jsonl", "{\"step\":1}\n");
  CHECK(error_of([&] { run.require_resumable(); }) == "nothing was thrown");
  const auto removed = [&](const std::string& what) {
    return fmt::format(
        "[run] {0} must stay while a run writes it, but {1} removed: the run cannot be resumed; "
        "its last checkpoint is in {0}/checkpoints",
        folder.at("run"), what);
  };
  fs::remove(folder.at("run/metrics.jsonl"));
  CHECK(error_of([&] { run.require_resumable(); }) == removed("metrics.jsonl of it was"));
  fs::remove_all(folder.at("run"));
  CHECK(error_of([&] { run.require_own(); }) == "nothing was thrown");
  CHECK(error_of([&] { run.require_resumable(); }) ==
        removed("job.toml and metrics.jsonl of it were"));
  RunFolder other(job, {});
  CHECK(error_of([&] { run.require_own(); }) ==
        fmt::format("[run] {} must stay while a run writes it, but it was removed, and another run "
                    "has it",
                    folder.at("run")));
}

TEST_CASE("a checkpoint of another run starts a new run, which requires its own folder") {
  Folder folder;
  train_once(folder);
  auto job = job_of(folder);
  job.train.output = folder.at("second");
  {
    RunFolder run(job, {.resume = true, .resume_from = folder.at("run")});
    CHECK(run.checkpoint() == folder.at("run/checkpoints/step-2"));
    CHECK(run.resumed_plan() == folder.at("run/plan.json"));
    run.begin();
    run.write_job(job);
    folder.add("second/metrics.jsonl", "{\"step\":3}\n");
  }
  CHECK_THAT(open(job, {.resume = true, .resume_from = folder.at("run")}),
             Catch::Contains("holds another run"));
  CHECK(open(job, {.resume = true, .resume_from = folder.at("run"), .overwrite = true}) ==
        "nothing was thrown");
  CHECK(fs::exists(folder.at("run/checkpoints/step-2/COMPLETE")));
}

TEST_CASE("resuming requires a run with a checkpoint") {
  Folder folder;
  CHECK(open(job_of(folder), {.resume = true}) ==
        fmt::format("[checkpoint] a run or a checkpoint is a folder, but there is no folder {}",
                    folder.at("run")));
  CHECK(!fs::exists(folder.at("run")));
  train_once(folder);
  CHECK(
      open(job_of(folder), {.resume = true, .overwrite = true}) ==
      fmt::format("[run] a run is resumed or overwritten, but got --resume and --overwrite for {}",
                  folder.at("run")));
  fs::remove(folder.at("run/job.toml"));
  CHECK(open(job_of(folder), {.resume = true}) ==
        fmt::format("[run] a run that is resumed holds job.toml, but there is no {}",
                    folder.at("run/job.toml")));
  fs::remove_all(folder.at("run/checkpoints"));
  CHECK_THAT(open(job_of(folder), {.resume = true}), Catch::Contains("it holds none"));
}

TEST_CASE("a resumed run keeps its model, data, batch, optimizer and seed") {
  Folder folder;
  train_once(folder);
  CHECK(open(job_of(folder, "[train]\nsteps = 7\n[cluster]\nranks = 3\n"), {.resume = true}) ==
        "nothing was thrown");
  CHECK(
      open(job_of(folder, "width = 8\n[optimizer]\nlr = 1.0\napart = true\n"), {.resume = true}) ==
      fmt::format(
          "[run] a resumed run keeps its model, data, batch, optimizer and seed (batch.micro, "
          "learning rates, weight decays, clip_norm and schedules may change), but in {}:\n  "
          "model.width: 256 became 8\n  optimizer.apart: false became true\nSet them "
          "back, or start a new run with another train.output",
          folder.at("run/job.toml")));
}

TEST_CASE("a resumed run may change its rates and schedules, and says which") {
  Folder folder;
  train_once(folder);
  const auto job = job_of(folder,
                          "[optimizer]\nlr = 1e-4\n[lr_schedule]\nkind = \"constant\"\n"
                          "[train]\nsteps = 400\n");
  CHECK(RunFolder(job, {.resume = true}).changes() ==
        std::vector<std::string>{"optimizer.lr: 0.0003 became 0.0001",
                                 "lr_schedule.kind: \"cosine\" became \"constant\"",
                                 "train.steps: 200 became 400"});
  CHECK(RunFolder(job_of(folder), {.resume = true}).changes().empty());
}

TEST_CASE("ranks that do not see the run's folder are named before the first step") {
  Folder folder, other;
  const auto check = [&](const std::string& of_rank_1) {
    return test::error_of([&] {
      exec::run_ranks(3, [&](exec::Communicator& rank) {
        job::Job job;
        job.cluster.timeout = 2;
        job.train.output = rank.rank() == 1 ? of_rank_1 : folder.path();
        train::require_shared_folder(job, rank);
      });
    });
  };
  CHECK(check(folder.path()) == "nothing was thrown");
  CHECK(check(other.path()) ==
        fmt::format("[checkpoint] train.output must be on a file system that all ranks share, but "
                    "rank 1 does not see in {} what rank 0 writes there: share the folder, or set "
                    "train.checkpoint_target = \"s3://BUCKET/PREFIX\"",
                    other.path()));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a folder is locked by one run at a time, and a killed run releases it") {
  Folder folder;
  const auto job = job_of(folder);
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const RunFolder run(job, {});
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    ::pause();
  }
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK(open(job, {}) ==
        fmt::format("[run] one run at a time writes a folder, but another process is writing {}: "
                    "wait for it, end it, or choose another train.output",
                    folder.at("run")));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(open(job, {}) == "nothing was thrown");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a lock that is a link is refused, and the link's target is not made") {
  Folder folder;
  folder.add("run/.lock", "");
  fs::remove(folder.at("run/.lock"));
  fs::create_symlink(folder.at("target"), folder.at("run/.lock"));
  CHECK(
      open(job_of(folder), {}) ==
      fmt::format("[run] {} must be a file, but it is a link: remove it", folder.at("run/.lock")));
  CHECK(!fs::exists(folder.at("target")));
}

TEST_CASE("an output that cannot be made a folder is an error") {
  Folder folder;
  folder.add("run", "a file");
  CHECK_THAT(open(job_of(folder), {}),
             Catch::StartsWith(fmt::format("[file] {} must be a folder that can be written, but: ",
                                           folder.at("run"))));
}

TEST_CASE("a run whose checkpoints are in S3 is resumed from there, on any host") {
  test::S3Server server;
  if (!server.is_there()) {
    WARN("not tested: no S3 server, " << server.why());
    return;
  }
  const test::Environment environment(server.environment());
  const std::string target = "s3://bucket/runs/a";
  Folder folder, other;
  auto job = job_of(folder);
  job.train.checkpoint_target = target;
  {
    RunFolder run(job, {});
    run.begin("a");
    run.write_job(job);
    run.write_plan("{}\n");
    folder.add("run/metrics.jsonl", "{\"step\":1}\n");
    for (const int64_t step : {1, 2}) {
      test::write_checkpoint(checkpoint_run(job), step, "data=2", {{"w", {4}, "S0"}});
    }
  }
  CHECK_FALSE(fs::exists(folder.at("run/checkpoints")));
  // The run's folder and its target are both taken.
  CHECK_THAT(open(job, {}), Catch::Contains(folder.at("run") + " must be a new folder"));
  auto elsewhere = job;
  elsewhere.train.output = other.at("run");
  CHECK(has_begun(elsewhere, "a"));  // as rank 0 of another host sees it
  CHECK(
      open(elsewhere, {}) ==
      fmt::format("[run] {} must be new, but it holds checkpoints of another run: go on with them "
                  "(--resume), remove them (--overwrite), or choose another "
                  "train.checkpoint_target",
                  target));
  CHECK_FALSE(fs::exists(other.at("run")));
  {
    RunFolder run(job, {.resume = true});
    CHECK(run.resumes());
    CHECK(run.checkpoint() == target + "/checkpoints/step-2");
    CHECK(run.resumed_plan() == target + "/plan.json");
  }
  {
    RunFolder run(elsewhere, {.resume = true, .resume_from = target + "/checkpoints/step-1"});
    CHECK_FALSE(run.resumes());  // no metrics are there
    run.begin();
    CHECK(checkpoint::newest_checkpoint(target) == target + "/checkpoints/step-1");
    checkpoint::Checkpoint(target + "/checkpoints/step-2.aside-1").verify();
    run.write_job(elsewhere);
  }
  // Another model, or the folder of another run, is refused.
  auto wrong = elsewhere;
  wrong.seed = 7;
  CHECK_THAT(open(wrong, {.resume = true}), Catch::Contains("seed") && Catch::Contains(target));
  Folder third;
  train_once(third);
  auto taken = job;
  taken.train.output = third.at("run");
  CHECK_THAT(open(taken, {.resume = true}), Catch::Contains("it holds another run"));
  CHECK(open(elsewhere, {.overwrite = true}) == "nothing was thrown");
  CHECK(checkpoint::newest_checkpoint(target).empty());
}
