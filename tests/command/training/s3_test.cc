// Runs whose checkpoints are in an S3 service on the loopback interface.
#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>

#include "tests/command/job.h"
#include "tests/command/support.h"
#include "tests/support/s3_server.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kSmall =
    "--nproc 2 --set model.layers=1 --set model.width=32 --set data.sequence=8 --set "
    "batch.global=2 --set train.checkpoint_every=1 --set train.keep_checkpoints=2 ";
const std::string kRun = "s3://bucket/runs/a";
const std::string kTo = kSmall + "--set train.checkpoint_target=" + kRun + " ";

// A server and the variables for it.
struct Service {
  S3Server server;
  std::unique_ptr<Environment> environment;

  Service() {
    if (server.is_there()) {
      environment = std::make_unique<Environment>(server.environment());
    } else {
      WARN("not tested: no S3 server, " << server.why());
    }
  }
  explicit operator bool() const { return server.is_there(); }
};

std::string exported(const TrainingJob& job, const std::string& checkpoint) {
  const auto file = job.folder() / "exported.safetensors";
  const auto ran = run("export " + checkpoint + " -o " + file, job.how());
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  return read(file);
}

}  // namespace

TEST_CASE("a run that is killed during an upload to S3 resumes bit-equal") {
  Service service;
  if (!service) return;
  auto& server = service.server;
  const TrainingJob whole, job;
  whole.good("train", kSmall);
  // The third checkpoint is never whole: a part of rank 1's file is not taken.
  server.set_faults(
      R"([{"match": "PUT .*step-3/rank-1.safetensors.*partNumber=2", "stall": true}])");
  {
    Process process(job.words("train", kTo), job.how());
    server.wait_for_stall();
    auto victims = children(process.pid());
    victims.push_back(process.pid());
    for (const auto victim : victims) ::kill(victim, SIGKILL);
    CHECK(process.wait().status == -SIGKILL);
  }
  server.set_faults("[]");
  CHECK_FALSE(fs::exists(job.output() + "/checkpoints"));
  CHECK_THAT(job.refused("train", kTo), Contains("it holds another run: go on with it (--resume)"));
  // It goes on, here in a folder of another host, from the last complete one.
  const auto other = job.folder() / "other";
  const auto resumed = job.good("train", kTo + "--resume-if-any --set train.output=" + other);
  CHECK_THAT(resumed.err, Contains("step 3/4") && !Contains("step 2/4"));
  CHECK_THAT(resumed.err, Contains(kRun + "/checkpoints/step-3 is incomplete"));
  CHECK(exported(job, kRun) == whole.weights());
  CHECK(exported(job, kRun + "/checkpoints/step-4") == whole.weights());
  const auto losses = [](const std::string& metrics) {
    return metrics.substr(metrics.find("\"loss\""), 40);
  };
  const auto all = read(whole.output() + "/metrics.jsonl"), last = read(other + "/metrics.jsonl");
  CHECK(losses(last) == losses(all.substr(all.find("{\"step\":3,"))));
  // The others of its commands.
  CHECK_THAT(job.good("train", kTo + "--resume --set train.output=" + other).err,
             Contains("all 4 steps are done, in " + kRun + "/checkpoints/step-4"));
  CHECK_THAT(job.good("evaluate", kTo).out,
             Contains("\"checkpoint\":\"" + kRun + "/checkpoints/step-4\""));
  // No file and no line has the secret.
  for (const auto& entry : fs::recursive_directory_iterator(job.folder().path())) {
    if (entry.is_regular_file()) {
      CHECK_THAT(read(entry.path().string()), !Contains(server.secret()));
    }
  }
  CHECK_THAT(resumed.err, !Contains(server.secret()));
}

TEST_CASE("a service that fails is one sentence, and training goes on or ends as with a disk",
          "[.long]") {
  Service service;
  if (!service) return;
  auto& server = service.server;
  const TrainingJob job;
  SECTION("wrong credentials") {
    const Environment wrong(
        std::map<std::string, std::string>{{"AWS_SECRET_ACCESS_KEY", "not-the-key"}});
    CHECK_THAT(job.refused("train", kTo), Contains("answered 403 SignatureDoesNotMatch") &&
                                              Contains("check AWS_ACCESS_KEY_ID"));
  }
  SECTION("no credentials") {
    const Environment wrong(std::map<std::string, std::string>{{"AWS_SECRET_ACCESS_KEY", ""}});
    CHECK_THAT(job.refused("train", kTo),
               Contains("need AWS_SECRET_ACCESS_KEY in the environment"));
  }
  SECTION("a bucket that does not exist") {
    CHECK_THAT(job.refused("train", kSmall + "--set train.checkpoint_target=s3://none/run"),
               Contains("answered 404 NoSuchBucket") && Contains("make the bucket"));
  }
  SECTION("a service that is busy twice") {
    server.set_faults(R"([{"match": "PUT .*step-2", "status": 503, "count": 2}])");
    const TrainingJob whole;
    whole.good("train", kSmall);
    job.good("train", kTo);
    CHECK(exported(job, kRun) == whole.weights());
  }
  SECTION("a service that goes away") {
    Process process(job.words("train", kTo + kLong), job.how());
    process.wait_for("step 3/");
    server.stop();
    const auto ran = process.wait();
    INFO(ran.err);
    CHECK(ran.status == 1);
    CHECK_THAT(ran.err, Contains("[s3] s3://bucket/runs/a/checkpoints/") &&
                            Contains("must be reached, but " + server.endpoint() + " failed"));
  }
  SECTION("a run that goes back keeps later checkpoints, and --overwrite removes all") {
    job.good("train", kTo);
    const auto back = job.good("train", kTo + "--resume " + kRun + "/checkpoints/step-3");
    CHECK_THAT(back.err,
               Contains("renamed to step-N.aside-1 in " + kRun + "/checkpoints, and kept"));
    exported(job, kRun + "/checkpoints/step-4.aside-1");
    job.good("train", kTo + "--overwrite");
    CHECK(
        run("export " + kRun + "/checkpoints/step-4.aside-1 -o " + (job.folder() / "x"), job.how())
            .status == 2);
  }
}

TEST_CASE("a job names an S3 service by train.checkpoint_target alone") {
  const TrainingJob job;
  CHECK_THAT(job.refused("train", "--set train.output=s3://bucket/run"),
             Contains("train.output is a folder, but got \"s3://bucket/run\""));
  for (const std::string target : {"runs/a", "s3://", "s3:///run"}) {
    CHECK_THAT(job.refused("train", "--set train.checkpoint_target=" + target),
               Contains("train.checkpoint_target is s3://BUCKET/PREFIX, but got"));
  }
}
