// Strategies with sharded parameters, over real processes.

#include <catch2/catch.hpp>
#include <map>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee;
using namespace perigee::test;

namespace {

const std::string kPartsSame =
    "--set model.dtype=float64 --set model.dropout=0.1 --set train.validate_every=4 --overwrite ";

struct Numbers {
  std::vector<double> losses, validations;
};

Numbers numbers(const TrainingJob& job) {
  Numbers numbers{job.losses(), {}};
  for (const auto& line : job.metrics()) {
    if (line.contains("val_loss")) numbers.validations.push_back(line["val_loss"]);
  }
  return numbers;
}

void check_equal(const Numbers& a, const Numbers& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i) {
    CHECK(a.losses[i] == Approx(b.losses[i]).epsilon(1e-10));
  }
  REQUIRE(a.validations.size() == b.validations.size());
  for (size_t i = 0; i < a.validations.size(); ++i) {
    CHECK(a.validations[i] == Approx(b.validations[i]).epsilon(1e-10));
  }
}

}  // namespace

TEST_CASE("sharded states, gradients and parameters train the same model in less memory") {
  const TrainingJob job;
  job.good("train", kPartsSame);
  const auto one = numbers(job);
  REQUIRE(one.losses.size() == 4);
  REQUIRE(one.validations.size() == 1);
  const int64_t whole = job.metrics().back()["summary"]["peak_bytes"][0];
  for (const std::string strategy : {"zero1", "zero2", "fsdp", "hsdp"}) {
    for (const std::string more : {"--nproc 2", "--nproc 4 --set batch.micro=1"}) {
      INFO(strategy << " " << more);
      job.good("train", kPartsSame + more + " --strategy " + strategy);
      check_equal(numbers(job), one);
      const auto summary = job.metrics().back()["summary"];
      CHECK(summary["peak_bytes"] == summary["predicted_peak_bytes"]);
      CHECK(summary["peak_bytes"][0] < whole);
    }
  }
}

TEST_CASE("sharded checkpoints continue under other strategies and numbers of ranks") {
  const TrainingJob whole, parts;
  const std::string same =
      "--set model.dtype=float64 --set model.dropout=0.1 --set batch.global=6 --set train.steps=";
  whole.good("train", same + "7");
  parts.good("train", same + "2 --nproc 3 --strategy fsdp");
  parts.good("train", same + "3 --resume --nproc 2 --strategy zero1");
  parts.good("train", same + "4 --resume --nproc 3 --strategy zero2");
  parts.good("train", same + "5 --resume --nproc 2 --strategy fsdp");
  parts.good("train", same + "6 --resume --nproc 2");
  parts.good("train", same + "7 --resume --nproc 1 --strategy ddp");
  const auto expected = whole.losses(), got = parts.losses();
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-10));
}

TEST_CASE("optimizers of whole parameters and fp8 histories continue from sharded checkpoints") {
  for (const std::string kind :
       {"--set optimizer.name=adafactor",
        "--set optimizer.name=muon --set optimizer.momentum=0.95 --set optimizer.nesterov=true"}) {
    INFO(kind);
    const TrainingJob whole, parts;
    const std::string same = kind +
                             " --set model.dtype=float64 --set batch.global=6 --set train.steps=";
    whole.good("train", same + "5");
    parts.good("train", same + "2 --nproc 3 --strategy fsdp");
    parts.good("train", same + "3 --resume --nproc 2 --strategy zero1");
    parts.good("train",
               same + "4 --resume --nproc 4 --set batch.micro=1 --strategy pipeline_parallel");
    parts.good("train", same + "5 --resume --nproc 1 --strategy ddp");
    const auto expected = whole.losses(), got = parts.losses();
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-10));
  }
  const TrainingJob whole, parts;
  const std::string same = "--set model.dtype=float64 --strategy fp8 --set train.steps=";
  whole.good("train", same + "4");
  parts.good("train", same + "2 --nproc 2");
  parts.good("train", same + "4 --resume --nproc 1");
  const auto expected = whole.losses(), got = parts.losses();
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-10));
}

TEST_CASE("fp8 histories of each rank continue bit-equal, and restart on another mesh") {
  const TrainingJob whole, parts;
  const auto strategy = whole.folder().write(
      "own.lua",
      "return { { 'parallel_mode', { { 'data', 1 } } }, { 'fp8', { fp8_reduce_amax = false, "
      "fp8_interval = 2, fp8_amax_history_len = 3 } } }\n");
  const std::string same = "--strategy " + strategy + " --set train.steps=";
  whole.good("train", same + "4 --nproc 2");
  parts.good("train", same + "2 --nproc 2");
  parts.good("train", same + "4 --nproc 2 --resume");
  CHECK(parts.losses() == whole.losses());
  CHECK(parts.weights() == whole.weights());
  parts.good("train", same + "5 --nproc 1 --resume");
  CHECK(parts.losses().size() == 5);
}

TEST_CASE("a resumed sharded run is bit-equal to an uninterrupted one") {
  const TrainingJob whole, parts;
  const std::string ranks = "--nproc 3 --set batch.global=6 --strategy fsdp --set train.steps=";
  whole.good("train", ranks + "4");
  parts.good("train", ranks + "2");
  parts.good("train", ranks + "4 --resume");
  CHECK(parts.losses() == whole.losses());
  CHECK(parts.weights() == whole.weights());
  const auto one = nlohmann::json::parse(parts.good("evaluate", "--json --nproc 1").out);
  const auto two = nlohmann::json::parse(
      parts.good("evaluate", "--json --nproc 2 --strategy fsdp").out);
  CHECK(one["val_loss"].get<double>() == Approx(two["val_loss"].get<double>()).epsilon(1e-5));
}

TEST_CASE("a trace of fsdp shows a block's gather while the previous block computes") {
  const TrainingJob job;
  const auto file = job.folder() / "trace.json";
  // Microseconds of forward ops that ran during a block's gather, of the rank with fewer. Over shared
  // memory, ranks that have no core to spare carry collectives out between ops.
  const auto beside = [&](const std::string& config) {
    const auto strategy = job.folder().write(
        "s.lua", "return { { 'fsdp', { match = 'blocks.*', " + config + " } } }\n");
    std::filesystem::remove(file);
    job.good("train",
             "--overwrite --nproc 2 --set model.width=128 --set model.layers=4 "
             "--set train.steps=3 --set cluster.communicator=gloo --trace " +
                 file + " --strategy " + strategy);
    const auto events = nlohmann::json::parse(read(file))["traceEvents"];
    std::map<int, double> both{{0, 0}, {1, 0}};
    for (const auto& a : events) {
      if (a["ph"] != "X" || a["name"] != "comm::all_gather") continue;
      if (!a["args"]["scope"].get<std::string>().starts_with("blocks.")) continue;
      const double begin = a["ts"], end = begin + a["dur"].get<double>();
      for (const auto& b : events) {
        if (b["ph"] != "X" || b["pid"] != a["pid"] || b["tid"] != 0) continue;
        if (b["args"]["phase"] != "forward") continue;
        const double first = b["ts"], last = first + b["dur"].get<double>();
        both[a["pid"]] += std::max(0.0, std::min(end, last) - std::max(begin, first));
      }
    }
    return std::min(both[0], both[1]);
  };
  double ahead = 0;  // on a loaded machine, ranks can wait for each other all along
  for (int tries = 0; tries < 5 && ahead == 0; ++tries) ahead = beside("forward_prefetch = true");
  CHECK(ahead > 0);
  CHECK(beside("forward_prefetch = false, backward_prefetch = 'none'") == 0);
}
