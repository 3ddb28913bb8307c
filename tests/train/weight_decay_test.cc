#include "train/step/weight_decay.h"

#include <catch2/catch.hpp>

using namespace perigee;
using train::weight_decay;

namespace {

job::Job of(std::optional<double> start, double end, const std::string& shape = "linear") {
  job::Job job;
  job.train.steps = 8;
  job.optimizer.weight_decay = end;
  job.weight_decay_schedule = {start, 0, shape};
  return job;
}

}  // namespace

TEST_CASE("the weight decay is annealed from its start to the optimizer's value, and stays there") {
  const auto job = of(0.0, 0.5);
  CHECK(train::weight_decay_varies(job));
  CHECK(weight_decay(job, 0.5, 2) == 0.125);
  CHECK(weight_decay(job, 0.5, 8) == 0.5);
  CHECK(weight_decay(job, 0.5, 9) == 0.5);
  auto soon = job;
  soon.weight_decay_schedule.steps = 4;
  CHECK(weight_decay(soon, 0.5, 2) == 0.25);
  CHECK(weight_decay(soon, 0.5, 5) == 0.5);
  // Megatron's cosine, flat at both ends: 0.5 (cos(pi (1 - share)) + 1).
  const auto cosine = of(1.0, 0.0, "cosine");
  CHECK(weight_decay(cosine, 0.0, 4) == Approx(0.5));
  CHECK(weight_decay(cosine, 0.0, 2) == Approx(1 - 0.1464466094));
  CHECK(weight_decay(cosine, 0.0, 8) == Approx(0).margin(1e-15));
}

TEST_CASE("a group's weight decay is annealed in proportion, and zero stays zero") {
  const auto job = of(0.25, 0.5);
  CHECK(weight_decay(job, 0.1, 4) == Approx(0.1 * 0.375 / 0.5));
  CHECK(weight_decay(job, 0.0, 4) == 0);
  const auto falls = of(0.5, 0.0);
  CHECK(weight_decay(falls, 0.0, 4) == 0.25);
  CHECK(weight_decay(falls, 0.1, 4) == 0.1);
}

TEST_CASE("without a start, or with start equal to the end, the weight decay is constant") {
  CHECK_FALSE(train::weight_decay_varies(of({}, 0.5)));
  CHECK_FALSE(train::weight_decay_varies(of(0.5, 0.5)));
  CHECK(weight_decay(of({}, 0.5), 0.1, 3) == 0.1);
}
