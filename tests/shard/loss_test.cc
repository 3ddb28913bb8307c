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

}  // namespace
}  // namespace perigee::shard
