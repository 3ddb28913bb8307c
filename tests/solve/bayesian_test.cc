// Bayesian optimisation finds better points than random search, and evaluates no point twice.
#include "solve/bayesian/bayesian.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <set>

#include "base/error.h"
#include "base/infinity.h"
#include "solve/bayesian/gaussian_process.h"

using namespace perigee::solve;
using perigee::kInfinity;

namespace {

// Step times of plans by options: precision (3), ZeRO (4), tensor ranks (4), checkpoint (2),
// microbatches (5). Options have different weights, some interact, and the points that need the
// most memory fail.
const std::vector<int> kOptions{3, 4, 4, 2, 5};

double step_seconds(const Point& p) {
  const double precision[] = {1.9, 1.0, 1.05}, zero[] = {1.0, 1.01, 1.04, 1.12};
  const double tensor[] = {1.0, 0.93, 1.02, 1.35}, micro[] = {1.4, 1.12, 1.0, 1.03, 1.1};
  const double memory = (p[0] == 0 ? 2.0 : 1.2) * (4.0 - 0.8 * p[1]) / (1 + p[2]) *
                        (p[3] == 1 ? 0.5 : 1.0) * (1 + 0.4 * p[4]);
  if (memory > 4.5) return kInfinity;
  double seconds = precision[p[0]] * zero[p[1]] * tensor[p[2]] * micro[p[4]];
  if (p[3] == 1) seconds *= 1.3;
  if (p[1] == 3 && p[2] > 0) seconds *= 1.1;
  return seconds;
}

double least_seconds() {
  double best = kInfinity;
  for (int k = 0; k < 3 * 4 * 4 * 2 * 5; ++k) {
    Point point;
    int rest = k;
    for (const int count : kOptions) {
      point.push_back(rest % count);
      rest /= count;
    }
    best = std::min(best, step_seconds(point));
  }
  return best;
}

double bayesian_best(uint64_t seed, int trials) {
  Bayesian search(kOptions, seed);
  double best = kInfinity;
  for (int k = 0; k < trials; ++k) {
    const auto point = *search.ask();
    const double value = step_seconds(point);
    search.tell(point, value);
    best = std::min(best, value);
  }
  return best;
}

// Returns the least time of `trials` different random points.
double random_best(uint64_t seed, int trials) {
  std::mt19937_64 random(seed);
  std::set<Point> seen;
  double best = kInfinity;
  while (static_cast<int>(seen.size()) < trials) {
    Point point;
    for (const int count : kOptions) {
      point.push_back(static_cast<int>(random() % static_cast<uint64_t>(count)));
    }
    if (seen.insert(point).second) best = std::min(best, step_seconds(point));
  }
  return best;
}

}  // namespace

TEST_CASE("the Bayesian search beats random search at equal trials on a fixed table") {
  constexpr int kSeeds = 20;
  const double optimum = least_seconds();
  for (const int trials : {20, 40}) {
    double ours = 0, others = 0;
    int better = 0, worse = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      const double a = bayesian_best(seed, trials), b = random_best(seed, trials);
      ours += a / optimum - 1;
      others += b / optimum - 1;
      better += a < b;
      worse += a > b;
    }
    INFO(trials << " trials: above the optimum by " << ours / kSeeds << " and " << others / kSeeds
                << ", better " << better << " times, worse " << worse << " times");
    CHECK(ours < 0.5 * others);
    CHECK(better > 2 * worse);
  }
}

TEST_CASE(
    "the Bayesian search evaluates each point once, also if some fail, in an order that a seed "
    "seed") {
  for (const uint64_t seed : {0, 1}) {
    Bayesian search({2, 1, 3}, seed), again({2, 1, 3}, seed);
    std::set<Point> seen;
    while (const auto point = search.ask()) {
      CHECK(again.ask() == point);
      CHECK(seen.insert(*point).second);
      const double value = (*point)[2] == 1 ? kInfinity : 1.0 + (*point)[0];
      search.tell(*point, value);
      again.tell(*point, value);
    }
    CHECK(seen.size() == 6);
  }
  Bayesian none({}, 0);
  CHECK(none.ask() == Point{});
  CHECK_THROWS_WITH(Bayesian({2, 0}, 0), Catch::Contains("at least one option"));
}

TEST_CASE("the Bayesian search works with more points than it can compare") {
  Bayesian search(std::vector<int>(12, 5), 3);
  double best = kInfinity;
  for (int k = 0; k < 40; ++k) {
    const auto point = *search.ask();
    double value = 1;
    for (const int option : point) value += option;
    search.tell(point, value);
    best = std::min(best, value);
  }
  CHECK(best <= 13);  // values are 1 to 49, 25 on average
}

TEST_CASE("a Gaussian process is certain at known points and uncertain far from them") {
  const GaussianProcess process({{0, 0}, {1, 0}, {0, 1}}, {-1, 0.2, 0.8});
  CHECK(process.at({0, 0}).mean == Approx(-1).margin(0.05));
  CHECK(process.at({0, 1}).mean == Approx(0.8).margin(0.05));
  CHECK(process.at({0, 0}).deviation < 0.1 * process.at({2, 2}).deviation);
}
