// Stragglers, found in recorded times.
#include "train/run/stragglers.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <random>
#include <sstream>

using namespace perigee;
using namespace perigee::train;
using Catch::Matchers::Contains;

namespace {

constexpr double kStep = 0.04;  // seconds that a rank computes

// Steps of ranks that compute `factors` times kStep, with 5% of noise, from `first` on.
struct Recorded {
  explicit Recorded(std::vector<int64_t> peers) : stragglers(std::move(peers)) {}

  Stragglers stragglers;
  int64_t step = 0;
  std::mt19937 random{1};

  std::vector<std::string> run(int64_t steps, const std::vector<double>& factors,
                               const std::vector<double>& paused = {}) {
    std::vector<std::string> sentences;
    std::uniform_real_distribution<double> noise(0.95, 1.05);
    for (int64_t i = 0; i < steps; ++i) {
      RankTimes times;
      times.paused = paused.empty() ? std::vector<double>(factors.size()) : paused;
      for (size_t r = 0; r < factors.size(); ++r) {
        times.computed.push_back(kStep * factors[r] * noise(random) + times.paused[r]);
      }
      times.step = std::ranges::max(times.computed);
      for (auto& sentence : stragglers.add(++step, times)) sentences.push_back(sentence);
    }
    return sentences;
  }
};

constexpr double kAt65 = 1 / 0.65;  // a rank that has 65% of its processor

}  // namespace

TEST_CASE("the page on runs has the numbers by which a straggler is named") {
  std::ifstream file("runtime/runs.md");
  std::ostringstream text;
  text << file.rdbuf();
  const auto page = text.str();
  const auto section = page.substr(page.find("## Stragglers"));
  CHECK_THAT(section, Contains(fmt::format("over {} times", Stragglers::kSlower)));
  CHECK_THAT(section, Contains(fmt::format("the last {} steps", Stragglers::kWindow)));
  CHECK_THAT(section, Contains(fmt::format("less than {} s", Stragglers::kSeconds)));
}

TEST_CASE("ranks that are equally fast are no stragglers") {
  Recorded recorded({0, 0, 0, 0});
  CHECK(recorded.run(500, {1, 1, 1, 1}).empty());
}

TEST_CASE("a rank at 65% of its processor is named within 20 steps, once, until it recovers") {
  for (const auto& peers : std::vector<std::vector<int64_t>>{{0, 0}, {0, 0, 0, 0}}) {
    Recorded recorded(peers);
    std::vector<double> factors(peers.size(), 1.0);
    recorded.run(100, factors);
    factors[1] = kAt65;
    const auto named = recorded.run(20, factors);
    REQUIRE(named.size() == 1);
    CHECK_THAT(named[0], Contains("rank 1 computes") && Contains("times its peers"));
    CHECK(recorded.run(200, factors).empty());
    factors[1] = 1;
    const auto recovered = recorded.run(20, factors);
    REQUIRE(recovered.size() == 1);
    CHECK_THAT(recovered[0], Contains("rank 1 is as fast as its peers again"));
  }
  Recorded from_the_start({0, 0, 0});
  CHECK(from_the_start.run(20, {1, 1, kAt65}).size() == 1);
}

TEST_CASE("stages with unequal work are not compared with each other") {
  Recorded recorded({0, 1, 0, 1});
  CHECK(recorded.run(100, {1, 3, 1, 3}).empty());
  const auto named = recorded.run(20, {1, 3, 1, 3 * kAt65});
  REQUIRE(named.size() == 1);
  CHECK_THAT(named[0], Contains("rank 3 computes"));
}

TEST_CASE("a rank that is alone on its stage is compared with its own best") {
  Recorded recorded({0, 1});
  CHECK(recorded.run(100, {1, 3}).empty());
  const auto named = recorded.run(20, {1, 3 * kAt65});
  REQUIRE(named.size() == 1);
  CHECK_THAT(named[0], Contains("rank 1 computes") && Contains("times its own best"));
}

TEST_CASE("a rank that stood still for seconds is named with its step, and is no straggler") {
  Recorded recorded({0, 0});
  recorded.run(30, {1, 1});
  const auto named = recorded.run(1, {1, 1}, {0, 5});
  REQUIRE(named.size() == 1);
  CHECK_THAT(named[0], Contains("rank 1 stood still for 5.0 s in step 31"));
  CHECK(recorded.run(30, {1, 1}).empty());
  CHECK(recorded.run(1, {1, 1}, {0.4, 0.9}).empty());
}

TEST_CASE("a rank whose delay is a small part of the step is no straggler") {
  Stragglers stragglers({0, 0});
  const auto at = [&](double step) {
    std::vector<std::string> sentences;
    for (int64_t i = 0; i < 20; ++i) {
      for (auto& s : stragglers.add(i, {step, {2 * kStep, kStep}, {0, 0}})) sentences.push_back(s);
    }
    return sentences.size();
  };
  CHECK(at(20 * kStep) == 0);
  CHECK(at(2 * kStep) == 1);
}

TEST_CASE("short steps are looked at over a third of a second") {
  Stragglers stragglers({0, 0});
  const auto named = [&](int64_t steps, double slow) {
    size_t count = 0;
    for (int64_t i = 0; i < steps; ++i) {
      count += stragglers.add(i, {0.002 * slow, {0.002 * slow, 0.002}, {0, 0}}).size();
    }
    return count;
  };
  // 40 steps of 2 ms in which one rank is slow, as when a process has a time slice.
  CHECK(named(200, 1) == 0);
  CHECK(named(40, 1.5) == 0);
  CHECK(named(200, 1) == 0);
  CHECK(named(200, 1.5) == 1);
}

TEST_CASE("one slow step makes no straggler") {
  Recorded recorded({0, 0});
  recorded.run(30, {1, 1});
  CHECK(recorded.run(1, {1, 40}).empty());
  CHECK(recorded.run(30, {1, 1}).empty());
}

TEST_CASE("the seconds that ranks computed add up") {
  Stragglers stragglers({0, 0});
  for (int64_t step = 1; step <= 3; ++step) stragglers.add(step, {0.5, {0.5, 0.25}, {0, 0}});
  CHECK(stragglers.total_computed() == std::vector<double>{1.5, 0.75});
}
