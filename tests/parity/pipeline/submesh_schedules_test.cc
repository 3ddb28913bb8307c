// Stages of unequal submeshes that have several parts each.
#include <fmt/format.h>

#include <random>

#include "schedule/schedule.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/submeshes.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

constexpr int64_t kScheduleRows = 48, kScheduleMicrobatches = 8;

const char* const kScheduleDeep =
    "kind = 'gpt'\nlayers = 8\nwidth = 24\nheads = 6\nhidden = 48\nvocab = 12\ndropout = 0.1\n";
const char* const kWide = "kind = 'mlp'\ninputs = 9\nwidth = 12\nlayers = 9\noutputs = 5\n";

const char* const kSchedules[] = {"interleaved", "looped_bfs", "zbv",  "v_half", "v_min",
                                  "dualpipe_v",  "zb1p",       "zb2p", "gpipe",  "eager_1f1b"};

void check(const Given& given, const Outcome& one, const Submeshes& submeshes,
           const std::string& schedule, const std::string& methods) {
  const auto stages = static_cast<int>(submeshes.size());
  if (!schedule_exists(schedule, stages, kScheduleMicrobatches, default_chunks(schedule))) return;
  const auto strategy = staged(submeshes, R"({"schedule": ")" + schedule + R"("})", methods,
                               kScheduleMicrobatches);
  INFO(strategy);
  const auto plan = plan_of(given, strategy, kScheduleRows);
  const auto ranks = train(given, plan);
  CHECK(compare(one, ranks) == "");
  CHECK(compare_memory(given, plan, ranks) == "");
}

TEST_CASE("stages of several parts on unequal submeshes train as one device does") {
  torch::manual_seed(5);
  const auto given = built_in("kind = 'mlp'\ninputs = 9\nwidth = 12\nlayers = 8\noutputs = 5\n",
                              kScheduleRows, kScheduleMicrobatches);
  const auto one = train_on_one_device(given, kScheduleMicrobatches, kScheduleRows);
  for (const auto& submeshes : std::vector<Submeshes>{{{}, {{"tensor", 2}}},
                                                      {{{"tensor", 2}}, {}},
                                                      {{{"data", 2}}, {{"tensor", 2}}},
                                                      {{}, {{"data", 2}, {"tensor", 2}}}}) {
    for (const std::string schedule : kSchedules) {
      check(given, one, submeshes, schedule, R"("tensor_parallel")");
    }
  }
}

TEST_CASE("random stages of several parts on unequal submeshes train as one device does") {
  const auto seed = Catch::rngSeed() == 0 ? 7u : Catch::rngSeed();
  std::mt19937 random(seed);
  for (int k = 0; k < 24; ++k) {
    const auto* model = k % 2 == 0 ? kScheduleDeep : kWide;
    const auto submeshes = random_submeshes(random, 2 + static_cast<int64_t>(random() % 3), 7,
                                            true);
    const std::string schedule = kSchedules[random() % 7];
    std::string methods = has_axis(submeshes, "tensor") ? R"("tensor_parallel")" : "";
    const std::vector<std::string> units = {"", "zero1", "zero2", "fsdp"};
    const auto& unit = units[random() % units.size()];
    if (has_axis(submeshes, "data") && !unit.empty()) {
      methods += (methods.empty() ? "\"" : ", \"") + unit + "\"";
    }
    INFO("seed " << seed << ", " << k << ": " << model);
    torch::manual_seed(5);
    const auto given = built_in(model, kScheduleRows, kScheduleMicrobatches);
    check(given, train_on_one_device(given, kScheduleMicrobatches, kScheduleRows), submeshes,
          schedule, methods);
  }
}

}  // namespace
}  // namespace perigee::parity
