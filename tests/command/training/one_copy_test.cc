// Ranks of one host that hold one copy of the weights, over real processes.

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee;
using namespace perigee::test;

namespace {

const std::string kSame = "--set model.dropout=0.1 --set train.validate_every=2 --overwrite ";

int64_t peak(const TrainingJob& job, bool processes) {
  const auto summary = job.metrics().back()["summary"];
  // A process counts the memory of all its threads.
  if (processes) CHECK(summary["peak_bytes"] == summary["predicted_peak_bytes"]);
  return summary["peak_bytes"][0];
}

}  // namespace

TEST_CASE("ranks of a host hold one copy of the weights by default, bit-equal to a copy each") {
  const TrainingJob job;
  const auto with = [&](const std::string& fields) {
    return job.folder().write("s.lua", "return { { 'zero1', { " + fields + " } } }\n");
  };
  for (const bool processes : {true, false}) {
    const std::string ranks = fmt::format("--nproc 2 --set cluster.in_process={} ", !processes);
    INFO(ranks);
    job.good("train", kSame + ranks + "--strategy " + with("one_copy = false"));
    const auto losses = job.losses();
    const auto weights = job.weights();
    const auto each = peak(job, processes);
    job.good("train", kSame + ranks + "--strategy " + with(""));
    CHECK(job.losses() == losses);
    CHECK(job.weights() == weights);
    CHECK(peak(job, processes) < each);
  }
  const auto explained = job.good("plan", "--nproc 2 --explain --strategy zero1").out;
  CHECK_THAT(explained, Catch::Contains("one copy in memory"));
}

TEST_CASE("ranks that cannot map each other's memory have a copy each, or say why not") {
  const TrainingJob job;
  const std::string gloo = kSame + "--nproc 2 --set cluster.communicator=gloo --strategy ";
  job.good("train", gloo + "zero1");
  const auto losses = job.losses();
  const auto forced = job.folder().write("s.lua", "return { { 'zero1', { one_copy = true } } }\n");
  const auto refused = job("train", gloo + forced);
  CHECK(refused.status != 0);
  CHECK_THAT(refused.err,
             Catch::Contains("one copy of the weights") && Catch::Contains("one_copy = false"));
  job.good("train", kSame + "--nproc 2 --strategy " + forced);
  CHECK(job.losses() == losses);
}

TEST_CASE("a run with one copy of the weights continues as any other, and others continue it") {
  const TrainingJob whole, parts;
  const std::string same = "--set batch.global=6 --nproc 2 --set train.steps=";
  whole.good("train", same + "5 --strategy zero1");
  parts.good("train", same + "2 --strategy zero1");
  parts.good("train", same + "3 --resume --strategy zero1");
  parts.good("train", same + "4 --resume --strategy ddp");
  parts.good("train", same + "5 --resume --strategy zero2");
  CHECK(parts.losses() == whole.losses());
  CHECK(parts.weights() == whole.weights());
}
