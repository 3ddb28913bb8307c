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

}  // namespace
}  // namespace perigee::shard
