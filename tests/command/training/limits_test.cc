// Limits of the system: one sentence that names the limit, and no hang.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

// Runs the job under a limit of the shell, at most 5 s.
Ran limited(const TrainingJob& job, const std::string& limit, const std::string& more) {
  auto words = job.words("train", "--overwrite --set train.steps=1 " + more);
  words.insert(words.begin(), {"sh", "-c", "ulimit " + limit + " && exec \"$@\"", "sh"});
  auto how = job.how();
  how.seconds = 5;
  return Process(words, how).wait();
}

// Checks that the job trains, or ends with one error, which holds one of the words. Libraries may
// add lines of their own.
void check_limit(const TrainingJob& job, const std::string& limit, const std::string& more,
                 const std::vector<std::string>& names) {
  const auto ran = limited(job, limit, more);
  INFO(limit << ", status " << ran.status << "\n" << ran.err);
  if (ran.status == 0) return;
  CHECK(ran.status >= 1);
  const auto error = ran.err.find("perigee: ");
  CHECK((error == std::string::npos || ran.err.find("\nperigee: ", error) == std::string::npos));
  CHECK(std::ranges::any_of(
      names, [&](const std::string& name) { return ran.err.find(name) != std::string::npos; }));
}

const std::vector<std::string> kDescriptors = {"ulimit -n", "Error 24"};  // the loader's words
const std::vector<std::string> kMemory = {"out of memory", "annot allocate memory",
                                          "failed to map segment"};  // the loader's words

}  // namespace

TEST_CASE("too few descriptors end the job with one sentence that names the limit") {
  const TrainingJob job;
  for (int count = 3; count < 28; ++count) {
    check_limit(job, "-n " + std::to_string(count), "--nproc 2", kDescriptors);
    CHECK_FALSE(std::filesystem::exists(job.output()));
  }
  check_limit(job, "-n 40", "--nproc 3", kDescriptors);
  CHECK(limited(job, "-n 64", "--nproc 2").status == 0);
}

TEST_CASE("a soft limit of descriptors is raised to the hard one") {
  const TrainingJob job;
  CHECK(limited(job, "-n 20", "--nproc 2").status == 1);
  for (const auto* ranks : {"--nproc 1", "--nproc 2"}) {
    const auto ran = limited(job, "-Sn 20", ranks);
    INFO(ran.err);
    CHECK(ran.status == 0);
  }
}

TEST_CASE("each number of descriptors suffices, or its limit is named", "[.long]") {
  const TrainingJob job;
  for (int count = 3; count <= 64; ++count) {
    for (const auto* ranks : {"--nproc 1", "--nproc 2", "--nproc 3"}) {
      check_limit(job, "-n " + std::to_string(count), ranks, kDescriptors);
    }
  }
}

// The command's own libraries need about 50 MB; with less they end the process before it begins.
TEST_CASE("a process that gets no memory says so in one sentence") {
  const TrainingJob job;
  for (const int megabytes : {100, 400, 560, 640, 700, 760, 800}) {
    check_limit(job, "-v " + std::to_string(megabytes * 1024), "--nproc 2", kMemory);
  }
}

TEST_CASE("each amount of memory suffices, or its lack is named", "[.long]") {
  const TrainingJob job;
  for (int megabytes = 60; megabytes <= 1100; megabytes += 5) {
    check_limit(job, "-v " + std::to_string(megabytes * 1024), "--nproc 2", kMemory);
  }
}

TEST_CASE("a job trains with 2,000 inherited descriptors") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_max < 2200) {
    WARN("this system permits no 2,000 descriptors: inheriting them was not tested");
    return;
  }
  const TrainingJob job;
  const auto ran = Process(
                       {"bash", "-c",
                        "ulimit -n 2200; for i in $(seq 10 2010); do eval \"exec $i</dev/null\"; "
                        "done; exec \"$@\"",
                        "sh", command_path(), "train", job.file(), "--nproc", "2"},
                       job.how())
                       .wait();
  INFO(ran.err);
  CHECK(ran.status == 0);
}

TEST_CASE("a run goes on when the reader of its log ends") {
  const TrainingJob job;
  const auto ran = Process({"bash", "-c", "\"$@\" 2>&1 | head -1; exit ${PIPESTATUS[0]}", "sh",
                            command_path(), "train", job.file(), "--nproc", "2"},
                           job.how())
                       .wait();
  INFO(ran.out);
  CHECK(ran.status == 0);
  CHECK(job.metrics().back().contains("summary"));
}

TEST_CASE("a data file that is truncated while it is read is named") {
  const TrainingJob job;
  std::string ids;
  for (int i = 0; i < 200'000; ++i) ids += std::string("\x07\x00", 2);
  const auto file = job.folder().write("ids.bin", ids);
  Process process(job.words("train", "--nproc 2 --set data.text=[] --set data.tokens=['" + file +
                                         "'] --set model.vocab=256" + kLong),
                  job.how());
  process.wait_for("step 3/");
  REQUIRE(::truncate(file.c_str(), 0) == 0);
  const auto ran = process.wait();
  INFO(ran.err);
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, Contains("[file] " + file + " must keep its size"));
  CHECK_THAT(ran.err, !Contains("crashed"));
  CHECK(ran.err.find("ids.bin must keep") == ran.err.rfind("ids.bin must keep"));
}
