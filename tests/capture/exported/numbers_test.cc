// Arithmetic on sizes follows Python.
#include "capture/exported/numbers.h"

#include "base/error.h"
#include "tests/support/torch_test.h"

namespace perigee::exported {
namespace {

c10::IValue call(const std::string& name, std::vector<c10::IValue> arguments) {
  const auto function = find_number_function(name);
  INFO(name);
  REQUIRE(function);
  return function(arguments);
}

}  // namespace

TEST_CASE("sums of integers are integers, division and remainder round down") {
  CHECK(call("_operator.add", {3, 4}).toInt() == 7);
  CHECK(call("_operator.mul", {3, -4}).toInt() == -12);
  CHECK(call("_operator.floordiv", {-7, 2}).toInt() == -4);
  CHECK(call("_operator.floordiv", {7, 2}).toInt() == 3);
  CHECK(call("_operator.floordiv", {-8, 2}).toInt() == -4);
  CHECK(call("_operator.mod", {-8, 2}).toInt() == 0);
  CHECK(call("_operator.mod", {-7, 2}).toInt() == 1);
  CHECK(call("_operator.mod", {7, -2}).toInt() == -1);
  CHECK(call("_operator.pow", {2, 10}).toInt() == 1024);
  CHECK(call("_operator.truediv", {7, 2}).toDouble() == 3.5);
  CHECK(call("_operator.floordiv", {7.5, 2}).toDouble() == 3);
  CHECK(call("torch.sym_max", {7, 2}).toInt() == 7);
  CHECK(call("torch.sym_min", {7, 2.5}).toDouble() == 2.5);
  CHECK(call("torch.sym_int", {-7.5}).toInt() == -7);
  CHECK(call("torch.sym_float", {7}).toDouble() == 7);
  CHECK(call("math.trunc", {7.9}).toInt() == 7);
  CHECK(call("_operator.neg", {7}).toInt() == -7);
}

TEST_CASE("comparisons and choices are of numbers and truth values") {
  CHECK(call("_operator.eq", {7, 7.0}).toBool());
  CHECK_FALSE(call("_operator.lt", {7, 7}).toBool());
  CHECK(call("_operator.le", {7, 7}).toBool());
  CHECK(call("_operator.and_", {true, false}).toBool() == false);
  CHECK(call("_operator.or_", {6, 1}).toInt() == 7);
  CHECK(call("torch.sym_not", {false}).toBool());
  CHECK(call("torch.sym_ite", {true, 3, 4}).toInt() == 3);
}

TEST_CASE("arithmetic on sizes refuses division by zero and operands that are no numbers") {
  CHECK_THROWS_WITH(call("_operator.floordiv", {7, 0}), Catch::Contains("but got 0"));
  CHECK_THROWS_WITH(call("_operator.add", {7, "a"}), Catch::Contains("numbers as operands"));
  CHECK_THROWS_WITH(call("_operator.add", {7}), Catch::Contains("1 is missing"));
  CHECK(find_number_function("_operator.setitem") == nullptr);
}

}  // namespace perigee::exported
