// The text form: golden text, exact round trip, errors.
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "base/text/base64.h"
#include "graph/text/json.h"
#include "tests/graph/support.h"

using namespace perigee;
using namespace perigee::graph;

namespace {

std::string message(std::string_view text) {
  try {
    parse(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a small graph prints as the golden text") {
  CHECK(print(two_layers()) == R"(perigee.graph/1
scope "" Net
scope fc1 Linear
scope fc2 Linear
input parameter %0: float32[16, 8] = fc1.weight
input parameter %1: float32[4, 16] = fc2.weight
input data %2: float32[2, 8] = x
%3: float32[8, 16] = aten::t(self=%0)   @fc1 forward
%4: float32[2, 16] = aten::mm(self=%2, mat2=%3)   @fc1 forward
%5: float32[2, 16] = aten::relu(self=%4)   @ forward
%6: float32[16, 4] = aten::t(self=%1)   @fc2 forward
%7: float32[2, 4] = aten::mm(self=%5, mat2=%6)   @fc2 forward
%8: float32[] = aten::sum(self=%7)   @ forward
%9: float32[2, 4] = perigee::full(value=1.0)   @ backward of %8
%10: float32[4, 2] = aten::t(self=%9)   @fc2 backward of %7
%11: float32[4, 16] = aten::mm(self=%10, mat2=%5)   @fc2 backward of %7
%12: float32[2, 16] = aten::mm(self=%9, mat2=%1)   @fc2 backward of %7
%13: float32[2, 16] = aten::threshold_backward(grad_output=%12, self=%5, threshold=0)   @ backward of %5
%14: float32[16, 2] = aten::t(self=%13)   @fc1 backward of %4
%15: float32[16, 8] = aten::mm(self=%14, mat2=%2)   @fc1 backward of %4
output loss %8 = loss
output gradient %15 = fc1.weight
output gradient %11 = fc2.weight
)");
}

TEST_CASE("each kind of argument has a text of its own") {
  Graph g;
  g.scopes = {{"", "Net"}};
  const auto c = g.add_input(Input::Kind::constant, "c", {DType::int16, {2}});
  g.inputs[0].data = std::string("\1\0\2\0", 4);
  g.inputs[0].trainable = false;
  g.add_node("perigee::example",
             {{"list", std::vector<ValueId>{c, {}}},
              {"none", std::monostate{}},
              {"absent", ValueId{}},
              {"text", std::string("a\"b\n\x02")},
              {"scale", 2.0},
              {"low", -1.0 / 0.0},
              {"dims", std::vector<int64_t>{-1, 0}},
              {"mask", std::vector<bool>{true, false}},
              {"ratios", std::vector<double>{0.1, 1e-7}},
              {"empty", std::vector<int64_t>{}},
              {"no_values", std::vector<ValueId>{}},
              {"dtype", DType::bfloat16}},
             {{DType::boolean, {}}, {DType::float64, {3}}});
  g.add_value({DType::float8_e4m3, {7}});
  g.nodes[0].outputs.push_back({});
  CHECK(print(g) == R"(perigee.graph/1
scope "" Net
input constant %0: int16[2] = c frozen base64:AQACAA==
value %3: float8_e4m3[7]
%1: bool[], %2: float64[3], %_ = perigee::example(list=[%0, %_], none=None, absent=%_, text="a\"b\n\x02", scale=2.0, low=-inf, dims=[-1, 0], mask=[true, false], ratios=[0.1, 1e-07], empty=[], no_values=[]:value, dtype=bfloat16)   @ forward
)");
  CHECK(parse(print(g)) == g);
}

TEST_CASE("parse(print(g)) equals g for random graphs") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    const Graph g = random_graph(seed, static_cast<int>(seed % 40));
    verify(g);
    REQUIRE(parse(print(g)) == g);
    const Graph shuffled = shuffle_values(g, seed);
    REQUIRE(parse(print(shuffled)) == shuffled);
  }
}

TEST_CASE("a not-a-number argument survives the round trip") {
  Graph g;
  g.scopes = {{"", "Net"}};
  g.add_node("aten::full", {{"value", std::nan("")}}, {{DType::float32, {}}});
  CHECK(print(g).find("value=nan)") != std::string::npos);
  CHECK(print(parse(print(g))) == print(g));
}

TEST_CASE("invalid text is an error with its line") {
  CHECK(message("") == "[graph] line 0: the first line is \"perigee.graph/1\", but got \"\"");
  CHECK(message("perigee.graph/2\n") ==
        "[graph] line 1: the first line is \"perigee.graph/1\", but got \"perigee.graph/2\"");
  const std::string head = "perigee.graph/1\nscope \"\" Net\n";
  const auto after = [&](std::string line) { return message(head + line); };
  CHECK(after("input weight %0: float32[] = w") ==
        "[graph] line 3: a kind of input or output is expected, but got \"weight %0: float32[] = "
        "w\"");
  CHECK(after("input data %0: float31[] = w") ==
        "[graph] line 3: an element type and a shape are expected, but got \"[] = w\"");
  CHECK(after("input data %0: float32[2 3] = w") ==
        "[graph] line 3: \", \" is expected, but got \" 3] = w\"");
  CHECK(after("input data %0: float32[] = w\ninput data %0: float32[] = v") ==
        "[graph] line 4: %0 is defined once, but got \" = v\"");
  CHECK(after("input data %1: float32[] = w") ==
        "[graph] every value is defined, but nothing defines %0");
  CHECK(after("%0: float32[] = aten::relu(self=%7)   @ forward") ==
        "[graph] line 3: every value is defined, but nothing defines %7");
  CHECK(after("input data %2000000000: float32[] = w") ==
        "[graph] line 3: no value has this number, but got \": float32[] = w\"");
  CHECK(after("%0: float32[] = aten::relu(self=1.0, 2)   @ forward") ==
        "[graph] line 3: \"=\" is expected, but got \")   @ forward\"");
  CHECK(after("%0: float32[] = aten::relu(self=[1, 2.0])   @ forward") ==
        "[graph] line 3: a list holds one type, but got \"])   @ forward\"");
  CHECK(after("%0: float32[] = aten::relu(self=\"a\\q\")   @ forward") ==
        "[graph] line 3: an escape is one of \\n \\t \\\" \\\\ \\x, but got \"q\")   @ forward\"");
  CHECK(after("%0: float32[] = aten::relu()   @ sideways") ==
        "[graph] line 3: \"backward\" is expected, but got \"sideways\"");
  CHECK(after("%0: float32[] = aten::relu()   @ forward!") ==
        "[graph] line 3: nothing more belongs on this line, but got \"!\"");
  CHECK(after("input constant %0: float32[] = c base64:AA=A") ==
        "[graph] line 3: bytes in base64 are expected, but got \"AA=A\"");
}

TEST_CASE("nested lists of any depth are an error") {
  const std::string head = "perigee.graph/1\n%0: float32[] = aten::relu(self=";
  CHECK(message(head + "[[1]])   @ forward") ==
        "[graph] line 2: a number is expected, but got \"[1]])   @ forward\"");
  CHECK(message(head + std::string(1000000, '[')).find("a number is expected") !=
        std::string::npos);
}

TEST_CASE("every truncation of a text is an error or a shorter graph, never a crash") {
  const auto text = print(random_graph(7, 12));
  for (size_t n = 0; n < text.size(); ++n) {
    try {
      parse(text.substr(0, n));
    } catch (const Error&) {
    }
  }
}

TEST_CASE("base64 round trips and refuses other text") {
  CHECK(base64_encode("") == "");
  CHECK(base64_encode("f") == "Zg==");
  CHECK(base64_encode("fo") == "Zm8=");
  CHECK(base64_encode("foobar") == "Zm9vYmFy");
  CHECK(base64_decode("Zm8=") == std::string("fo"));
  CHECK(!base64_decode("Zm8"));
  CHECK(!base64_decode("Zm9="));
  CHECK(!base64_decode("Z*8="));
}

TEST_CASE("the summary lists inputs, scopes with sums and nodes with shapes and operations") {
  const auto text = summary(two_layers());
  const auto has = [&](std::string_view part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(R"("format": "perigee.graph/1")");
  has(R"({"kind":"parameter","name":"fc1.weight","dtype":"float32","shape":[16,8],"bytes":512})");
  has(R"({"path":"","type":"Net","parameters":192,"parameter_bytes":768,"nodes":13,)");
  has(R"({"path":"fc1","type":"Linear","parameters":128,"parameter_bytes":512,"nodes":4,"flops":1024.0})");
  has(R"({"op":"aten::mm","scope":"fc1","phase":"forward","args":{"self":"x","mat2":"fc1/t.0"},)");
  has(R"("results":[{"name":"fc1/mm.0","dtype":"float32","shape":[2,16]}],"flops":512.0})");
  has(R"({"kind":"gradient","name":"fc2.weight","value":"fc2/'mm.0"})");
}
