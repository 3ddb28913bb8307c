#include "train/step/learning_rate.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/temporary_folder.h"

using namespace perigee;
using train::learning_rate;

namespace {

// 100 steps, the first 20 of them warm-up; the rate is annealed from 1 to 0.125.
job::Job job_of(const std::string& kind) {
  job::Job job;
  job.train.steps = 100;
  job.optimizer.lr = 1;
  job.lr_schedule = {.kind = kind, .warmup = 20, .min_lr = 0.125, .decay = 10};
  return job;
}

}  // namespace

TEST_CASE("every learning rate rises linearly to its peak") {
  for (const auto* kind : {"constant", "linear", "cosine", "inverse_sqrt", "wsd"}) {
    const auto job = job_of(kind);
    INFO(kind);
    CHECK(learning_rate(job, 1, 1) == 0.05);
    CHECK(learning_rate(job, 1, 10) == 0.5);
    CHECK(learning_rate(job, 1, 20) == 1);
    auto direct = job;
    direct.lr_schedule.warmup = 0;
    CHECK(learning_rate(direct, 1, 1) <= 1);
    CHECK(learning_rate(direct, 1, 1) > 0.8);
  }
}

TEST_CASE("each schedule anneals the learning rate by its formula") {
  CHECK(learning_rate(job_of("constant"), 1, 21) == 1);
  CHECK(learning_rate(job_of("constant"), 1, 100) == 1);

  CHECK(learning_rate(job_of("linear"), 1, 60) == 0.5625);
  CHECK(learning_rate(job_of("linear"), 1, 100) == 0.125);

  CHECK(learning_rate(job_of("cosine"), 1, 60) == Approx(0.5625).epsilon(1e-15));
  CHECK(learning_rate(job_of("cosine"), 1, 40) ==
        Approx(0.125 + 0.875 * 0.5 * (1 + std::sqrt(0.5))).epsilon(1e-15));
  CHECK(learning_rate(job_of("cosine"), 1, 100) == Approx(0.125).epsilon(1e-15));

  CHECK(learning_rate(job_of("inverse_sqrt"), 1, 80) == 0.5);
  auto falls = job_of("inverse_sqrt");
  falls.lr_schedule.min_lr = 0.75;
  CHECK(learning_rate(falls, 1, 80) == 0.75);

  CHECK(learning_rate(job_of("wsd"), 1, 90) == 1);
  CHECK(learning_rate(job_of("wsd"), 1, 95) == 0.5625);
  CHECK(learning_rate(job_of("wsd"), 1, 100) == 0.125);
}

TEST_CASE("init_lr, steps and shape set the start, end and curve of a learning rate") {
  auto job = job_of("linear");
  job.lr_schedule.init_lr = 0.5;
  job.lr_schedule.steps = 60;
  CHECK(learning_rate(job, 1, 10) == 0.75);
  CHECK(learning_rate(job, 0.5, 10) == 0.375);  // peak of a parameter group
  CHECK(learning_rate(job, 1, 40) == 0.5625);
  CHECK(learning_rate(job, 1, 60) == 0.125);
  CHECK(learning_rate(job, 1, 61) == 0.125);
  const auto halfway = [](const std::string& shape) {
    auto job = job_of("wsd");
    job.lr_schedule.shape = shape;
    CHECK(learning_rate(job, 1, 90) == 1);
    CHECK(learning_rate(job, 1, 100) == Approx(0.125).epsilon(1e-15));
    return (learning_rate(job, 1, 95) - 0.125) / 0.875;
  };
  CHECK(halfway("linear") == Approx(0.5));
  CHECK(halfway("cosine") == Approx(0.5));
  CHECK(halfway("exponential") == Approx(std::sqrt(2.0) - 1));
  CHECK(halfway("minus_sqrt") == Approx(1 - std::sqrt(0.5)));
}

TEST_CASE("every step of every schedule equals its closed form") {
  constexpr double peak = 3e-4, least = 0.125;
  constexpr int64_t steps = 100, warmup = 20, decay = 10;
  for (const std::string kind : {"constant", "linear", "cosine", "inverse_sqrt", "wsd"}) {
    auto job = job_of(kind);
    job.optimizer.lr = peak;
    job.lr_schedule.min_lr = least * peak;
    for (int64_t step = 1; step <= steps; ++step) {
      const double t = double(step), past = (t - warmup) / (steps - warmup);
      double share = 1;
      if (step <= warmup) {
        share = t / warmup;
      } else if (kind == "linear") {
        share = 1 - (1 - least) * past;
      } else if (kind == "cosine") {
        share = least + (1 - least) * (1 + std::cos(M_PI * past)) / 2;
      } else if (kind == "inverse_sqrt") {
        share = std::max(least, std::sqrt(warmup / t));
      } else if (kind == "wsd" && step > steps - decay) {
        share = 1 - (1 - least) * (t - (steps - decay)) / decay;
      }
      INFO(kind << " " << step);
      CHECK(learning_rate(job, peak, step) == Approx(peak * share).epsilon(1e-14));
    }
  }
}

TEST_CASE("a group with another peak has the same curve, scaled") {
  for (const auto* kind : {"constant", "linear", "cosine", "inverse_sqrt", "wsd"}) {
    for (const int64_t step : {1, 20, 50, 95, 100}) {
      INFO(kind << " " << step);
      CHECK(learning_rate(job_of(kind), 0.25, step) ==
            Approx(0.25 * learning_rate(job_of(kind), 1, step)).epsilon(1e-15));
    }
  }
  auto frozen = job_of("cosine");
  frozen.optimizer.lr = 0;
  CHECK(learning_rate(frozen, 0, 50) == 0);
}

TEST_CASE("the learning rate stays at its last value after the schedule ends") {
  for (const auto* kind : {"constant", "linear", "cosine", "wsd"}) {
    INFO(kind);
    CHECK(learning_rate(job_of(kind), 1, 150) == learning_rate(job_of(kind), 1, 100));
  }
}
