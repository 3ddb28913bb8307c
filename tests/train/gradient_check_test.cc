// train --check-gradients: gradients are equal only if all their bits are.
#include "train/commands/gradient_check.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>

using namespace perigee::train;

namespace {

std::vector<std::vector<ResultPiece>> two_ranks(double last) {
  const auto values = [](double a, double b) { return at::tensor({a, b}, at::kDouble); };
  return {{{"loss", values(1, 1), {}}, {"gradient:fc.weight", values(0.25, 0.5), {{0, 2}}}},
          {{"gradient:fc.weight", values(0.125, last), {{2, 4}}}}};
}

}  // namespace

TEST_CASE("gradients are equal if all bits and ranges of all ranks are equal") {
  const auto a = two_ranks(0.75);
  CHECK_FALSE(differ(a, two_ranks(0.75), "gradient:fc.weight"));
  CHECK(differ(a, two_ranks(std::nextafter(0.75, 1)), "gradient:fc.weight"));
  CHECK(differ(two_ranks(0.0), two_ranks(-0.0), "gradient:fc.weight"));
  CHECK_FALSE(differ(two_ranks(NAN), two_ranks(NAN), "gradient:fc.weight"));
  CHECK_FALSE(differ(a, two_ranks(1.0), "loss"));
  auto moved = two_ranks(0.75);
  moved[1][0].ranges = {{1, 3}};
  CHECK(differ(a, moved, "gradient:fc.weight"));
  auto missing = two_ranks(0.75);
  missing[1].clear();
  CHECK(differ(a, missing, "gradient:fc.weight"));
}

TEST_CASE("a check fails if one parameter differs in a bit, and names its scope") {
  GradientCheck check{.loss = 1, .expected_loss = 1, .tolerance = 1e-3};
  check.parameters = {{"fc.weight", 0, 0}, {"scale", 0, 0}};
  check.recomputes = true;
  CHECK(check.passed());
  CHECK(print(check).find("without activation checkpointing all 2 gradients are bit-equal") !=
        std::string::npos);
  check.unequal = {"fc.weight"};
  CHECK_FALSE(check.passed());
  CHECK(print(check).find("WRONG: 1 gradient is not bit-equal to those without activation "
                          "checkpointing; the first is that of fc.weight in fc\n") !=
        std::string::npos);
  CHECK(scope_of("scale") == "the model");
}

TEST_CASE("elements are close within an absolute tolerance and one relative to one device's") {
  const auto of = [](std::vector<double> values) { return at::tensor(values, at::kDouble); };
  const Closeness close{.relative = 0.01, .absolute = 0.5};
  CHECK(close.excess(of({10, -10}), of({10, -10})) == 0);
  // 0.3 of 0.5 + 0.01 * 10; 1.2 of 0.5 + 0.01 * 100.
  CHECK(close.excess(of({10.3, 100}), of({10, 100})) == Approx(0.5));
  CHECK(close.excess(of({10.3, -101.2}), of({10, -100})) == Approx(0.8));
  CHECK(close.excess(of({0.6}), of({0})) == Approx(1.2));
  const Closeness exact{.relative = 0, .absolute = 0};
  CHECK(exact.excess(of({1, 0}), of({1, 0})) == 0);
  CHECK(std::isinf(exact.excess(of({1, 1e-300}), of({1, 0}))));
  CHECK(std::isinf(close.excess(of({NAN}), of({0}))));

  GradientCheck check{.loss = 1, .expected_loss = 1, .tolerance = 1, .closeness = close};
  check.parameters = {{"fc.weight", 0.3, 0.1, 0.5}, {"fc.bias", 5, 0.1, 0.9}};
  CHECK(check.passed());
  CHECK(print(check).find("all 2 gradients agree to 0.5 + 0.01 |x|") != std::string::npos);
  check.loss = 1.6;
  CHECK_FALSE(check.passed());
  check.loss = 1;
  check.stepped = {{"fc.weight", 0.3, 0, 0.5}};
  CHECK(check.passed());
  CHECK(print(check).find("all 1 parameters after the first step agree to 0.5 + 0.01 |x|") !=
        std::string::npos);
  check.stepped[0].excess = NAN;
  CHECK_FALSE(check.passed());
  CHECK(print(check).find("fc.weight after the first step  0.3  WRONG\n1 of 1 parameters") !=
        std::string::npos);
  CHECK_THROWS_WITH(require_passed(check),
                    Catch::Contains("the elements of the parameters after the first step must be"));
  check.stepped.clear();
  check.loss = 1;
  check.parameters[1].excess = 1.1;
  CHECK_FALSE(check.passed());
  CHECK(print(check).find("1 of 2 gradients differ by more than 0.5 + 0.01 |x|") !=
        std::string::npos);
}
