#include <catch2/catch.hpp>

#include "shard/loss/classify_loss.h"

namespace perigee::shard {
namespace {

TEST_CASE("a loss over an odd number of samples is classified like one over an even number") {
  for (const char* batch : {"1", "3", "4"}) {
    std::string text = R"(perigee.graph/1
scope "" Net
input data %0: float64[B, 2, 4] = x
input parameter %1: float64[4, 5] = w
%2: float64[MERGED, 4] = perigee::reshape(self=%0)   @ forward
%3: float64[MERGED, 5] = aten::mm(self=%2, mat2=%1)   @ forward
%4: float64[] = aten::mean(self=%3)   @ forward
output loss %4 = loss
)";
    const auto replace = [&](const std::string& what, const std::string& by) {
      for (size_t at; (at = text.find(what)) != std::string::npos;) {
        text.replace(at, what.size(), by);
      }
    };
    replace("MERGED", std::to_string(2 * std::stoi(batch)));
    replace("[B,", std::string("[") + batch + ",");
    CAPTURE(batch);
    CHECK(classify_loss(graph::parse(text)).kind == LossKind::mean);
  }
}

TEST_CASE("a sum over samples is a mean where it is divided by a multiple of their number") {
  const std::string text = R"(perigee.graph/1
scope "" Net
input data %0: float64[4, 6] = x
%1: float64[] = aten::sum(self=%0)   @ forward
%2: float64[] = aten::div.Scalar(self=%1, other=BY)   @ forward
output loss %2 = loss
)";
  const auto kind = [&](const std::string& by) {
    auto divided = text;
    divided.replace(divided.find("BY"), 2, by);
    return classify_loss(graph::parse(divided)).kind;
  };
  for (const char* by : {"4", "24", "4.0", "1e6"}) {
    CAPTURE(by);
    CHECK(kind(by) == LossKind::mean);
  }
  for (const char* by : {"2", "3", "5", "6", "22", "4.001", "1000001", "0.25"}) {
    CAPTURE(by);
    CHECK(kind(by) == LossKind::sum);
  }
}

TEST_CASE("a sum divided by a function of a sum of data is a mean, and nothing else of it is") {
  const auto classify = [](const std::string& number, const std::string& loss) {
    return classify_loss(graph::parse(R"(perigee.graph/1
scope "" Net
input data %0: float64[4, 6] = x
input data %1: bool[4] = kept
input parameter %2: float64[] = w
%3: float64[4, 6] = aten::mul.Tensor(self=%0, other=%2)   @ forward
%4: float64[] = aten::sum(self=%3)   @ forward
%5: int64[] = aten::sum(self=%1)   @ forward
%6: int64[] = )" + number + R"(   @ forward
%7: float64[] = )" + loss + R"(   @ forward
output loss %7 = loss
)"));
  };
  const std::string raised = "aten::clamp_min(self=%5, min=1)";
  const auto proven = classify(raised, "aten::div.Tensor(self=%4, other=%6)");
  CHECK(proven.kind == LossKind::mean);
  CHECK(!proven.declared);
  REQUIRE(proven.divisors.size() == 1);
  CHECK(proven.divisors[0].values == std::vector<graph::ValueId>{{5}, {6}});
  for (const std::string loss :
       {"aten::mul.Tensor(self=%4, other=%6)", "aten::div.Tensor(self=%6, other=%4)",
        "aten::div.Tensor(self=%2, other=%6)", "perigee::cast(self=%6)"}) {
    CAPTURE(loss);
    CHECK(classify(raised, loss).kind == LossKind::mixed);
  }
  const std::string of_two = "aten::mul.Tensor(self=%5, other=%5)";
  CHECK(classify(of_two, "aten::div.Tensor(self=%4, other=%6)").kind == LossKind::mixed);
}

TEST_CASE("a loss may divide by buffers that its graph does not write") {
  const auto kind = [](const std::string& written) {
    return classify_loss(graph::parse(R"(perigee.graph/1
scope "" Net
input data %0: float64[4] = x
input parameter %1: float64[] = w
input buffer %2: float64[] = scale
%3: float64[4] = aten::mul.Tensor(self=%0, other=%1)   @ forward
%4: float64[] = aten::sum(self=%3)   @ forward
%5: float64[4] = aten::mul.Tensor(self=%0, other=%2)   @ forward
%6: float64[] = aten::sum(self=%5)   @ forward
%7: float64[] = aten::div.Tensor(self=%4, other=%6)   @ forward
%8: float64[] = aten::mul.Scalar(self=%2, other=0.5)   @ forward
output loss %7 = loss
)" + written))
        .kind;
  };
  CHECK(kind("") == LossKind::mean);
  CHECK(kind("output buffer %8 = scale\n") == LossKind::mixed);
}

TEST_CASE("a mean of data by which a loss divides couples no samples, unlike its other uses") {
  const auto classify = [](const std::string& loss) {
    return classify_loss(graph::parse(R"(perigee.graph/1
scope "" Net
input data %0: float64[4, 6] = x
input data %1: float64[4] = weight
input parameter %2: float64[] = w
%3: float64[4, 6] = aten::mul.Tensor(self=%0, other=%2)   @ forward
%4: float64[] = aten::mean(self=%3)   @ forward
%5: float64[] = aten::sum(self=%3)   @ forward
%6: float64[] = aten::mean(self=%1)   @ forward
%7: float64[] = aten::sqrt(self=%6)   @ forward
%8: float64[] = )" + loss + R"(   @ forward
output loss %8 = loss
)"));
  };
  const auto divided = [&](const std::string& self, const std::string& other) {
    return classify("aten::div.Tensor(self=" + self + ", other=" + other + ")");
  };
  using Values = std::vector<graph::ValueId>;
  for (const auto& [other, values] : {std::pair{"%6", Values{{6}}}, {"%7", Values{{6}, {7}}}}) {
    CAPTURE(other);
    const auto mean = divided("%4", other), sum = divided("%5", other);
    CHECK(mean.kind == LossKind::mean);
    CHECK(sum.kind == LossKind::sum);
    for (const auto& loss : {mean, sum}) {
      CHECK(loss.coupling == "");
      REQUIRE(loss.divisors.size() == 1);
      CHECK(loss.divisors[0] == Divisor{values, true});
    }
  }
  CHECK(divided("%4", "%4").coupling != "");  // not of data alone
  CHECK(classify("aten::mul.Tensor(self=%4, other=%6)").coupling != "");
  CHECK(divided("%6", "%4").coupling != "");
}

}  // namespace
}  // namespace perigee::shard
