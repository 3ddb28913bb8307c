// Which dim of random numbers has the samples.
#include "compile/graph/random.h"

#include <catch2/catch.hpp>

namespace perigee::compile {
namespace {

// Returns batch_dim of the drawn numbers.
int64_t batch_dim(const std::string& text) {
  const auto whole = graph::parse("perigee.graph/1\nscope \"\" Net\n" + text);
  auto local = whole;
  set_batch_dims(local, whole);
  for (const auto& node : local.nodes) {
    if (node.op == "perigee::random") return node.get<int64_t>("batch_dim", 0);
  }
  FAIL("nothing is drawn");
  return -2;
}

TEST_CASE("numbers without an operand are of samples where an op combines them with data") {
  // Numbers for each of 4 tokens of one sample.
  CHECK(batch_dim(R"(input data %0: float64[1, 4, 3] = x
input parameter %1: float64[3, 2] = w
input parameter %2: float64[2] = scale
%3: float64[4, 3] = perigee::reshape(self=%0)   @ forward
%4: float64[4, 2] = aten::mm(self=%3, mat2=%1)   @ forward
%5: float64[4, 2] = perigee::random(kind="normal", key=1)   @ forward
%6: float64[4, 2] = aten::mul.Tensor(self=%5, other=%2)   @ forward
%7: float64[4, 2] = aten::add.Tensor(self=%4, other=%6)   @ forward
%8: float64[] = aten::mean(self=%7)   @ forward
output loss %8 = loss
)") == 0);
  // Noise that a product reads as its rows, as a generator does.
  CHECK(batch_dim(R"(input data %0: float64[1, 4, 3] = x
input parameter %1: float64[2, 3] = w
%2: float64[4, 3] = perigee::reshape(self=%0)   @ forward
%3: float64[4, 2] = perigee::random(kind="normal", key=1)   @ forward
%4: float64[4, 3] = aten::mm(self=%3, mat2=%1)   @ forward
%5: float64[4, 3] = aten::sub.Tensor(self=%4, other=%2)   @ forward
%6: float64[] = aten::mean(self=%5)   @ forward
output loss %6 = loss
)") == 0);
}

TEST_CASE("numbers of weights are the same for every microbatch, whatever their sizes are") {
  for (const std::string samples : {"1", "3"}) {  // the weight has 3 rows
    CAPTURE(samples);
    CHECK(batch_dim("input data %0: float64[" + samples + R"(, 3] = x
input parameter %1: float64[3, 2] = w
%2: float64[3, 2] = perigee::random(kind="normal", key=1)   @ forward
%3: float64[3, 2] = aten::mul.Tensor(self=%1, other=%2)   @ forward
%4: float64[)" + samples +
                    R"(, 2] = aten::mm(self=%0, mat2=%3)   @ forward
%5: float64[] = aten::mean(self=%4)   @ forward
output loss %5 = loss
)") == -1);
  }
}

}  // namespace
}  // namespace perigee::compile
