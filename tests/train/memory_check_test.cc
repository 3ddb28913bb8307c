#include "train/plan/memory_check.h"

#include <catch2/catch.hpp>
#include <functional>

#include "base/error.h"

using namespace perigee;
using train::check_memory;

namespace {

constexpr int64_t kMiB = 1 << 20;

// Returns a plan on these axes whose ranks have these predicted peaks, in MiB.
plan::Plan plan_with_peaks(std::vector<mesh::Axis> axes, const std::vector<int64_t>& megabytes) {
  plan::Plan plan;
  plan.mesh.axes = std::move(axes);
  for (const auto bytes : megabytes) plan.prediction.peak_bytes.push_back(bytes * kMiB);
  return plan;
}

std::string refusal(const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a plan that exceeds a device's memory is refused with stage, size and remedy") {
  auto plan = plan_with_peaks({{"data", 2}, {"pipe", 2}}, {64, 64, 100, 70});
  plan.pipeline.axis = "pipe";
  plan.pipeline.starts = {"blocks.1"};
  const auto with = [](double megabytes) {
    return cost::Cluster{"test", {{.count = 4, .memory = megabytes * kMiB}}, {}};
  };
  CHECK(refusal([&] { check_memory(plan, with(100)); }) == "");
  CHECK(refusal([&] { check_memory(plan, with(80)); }) ==
        "[plan] a plan must fit the available memory, but rank 2 (stage 1) needs 100 MiB, 20 MiB "
        "more than the 80 MiB of its device: use more ranks or a smaller batch.micro, or add "
        "zero1, zero2, fsdp, checkpoint or offload");
  plan.mesh.order = {3, 2, 0, 1};
  CHECK_THAT(refusal([&] { check_memory(plan, with(80)); }),
             Catch::Contains("rank 0 (stage 1) needs"));
}

TEST_CASE("ranks of a host share its memory, for values offloaded from the device too") {
  auto plan = plan_with_peaks({{"data", 4}}, {30, 30, 30, 40});
  const auto host = [&](int64_t ranks, double megabytes) {
    return refusal([&] { check_memory(plan, {.ranks = ranks, .bytes = megabytes * kMiB}); });
  };
  CHECK(host(4, 130) == "");
  CHECK_THAT(host(4, 120), Catch::Contains("4 ranks, of which rank 3 needs the most (40 MiB), "
                                           "need together 130 MiB, 10 MiB more than the 120 MiB "
                                           "of their host"));
  CHECK(host(2, 70) == "");
  CHECK_THAT(host(2, 60), Catch::Contains("2 ranks, of which rank 3"));
  CHECK_THAT(host(1, 35), Catch::Contains("rank 3 needs 40 MiB, 5 MiB more"));
  plan.prediction.host_bytes = {0, 0, 20 * kMiB, 0};
  CHECK_THAT(host(4, 130), Catch::Contains("of which rank 2 needs the most (50 MiB)"));
}

TEST_CASE("the ranks of a host are those of its numbers, wherever the mesh has them") {
  auto plan = plan_with_peaks({{"data", 4}}, {40, 10, 40, 10});
  plan.mesh.order = {0, 2, 1, 3};
  const auto host = [&](double megabytes) {
    return refusal([&] { check_memory(plan, {.ranks = 2, .bytes = megabytes * kMiB}); });
  };
  CHECK(host(80) == "");
  CHECK_THAT(host(60), Catch::Contains("2 ranks, of which rank 0 needs the most (40 MiB), need "
                                       "together 80 MiB, 20 MiB more"));
}

TEST_CASE("the copies of a checkpoint count in the memory of their host") {
  auto plan = plan_with_peaks({{"data", 2}}, {30, 40});
  plan.mesh.order = {1, 0};  // rank 1 has the first position
  const auto host = [&](double megabytes, std::vector<int64_t> copies) {
    for (auto& bytes : copies) bytes *= kMiB;
    return refusal([&] {
      check_memory(plan, {.ranks = 2, .bytes = megabytes * kMiB, .checkpoint_bytes = copies});
    });
  };
  CHECK(host(70, {}) == "");
  CHECK(host(120, {20, 30}) == "");
  CHECK_THAT(host(115, {20, 30}), Catch::Contains("need together 120 MiB, 5 MiB more"));
  CHECK_THAT(host(100, {0, 50}), Catch::Contains("of which rank 1 needs the most (80 MiB)"));
}
