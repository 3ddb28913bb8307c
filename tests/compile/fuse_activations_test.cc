// Products that compute GELU and its gradient, in hand-made sections.
#include "compile/products/fuse_activations.h"

#include <catch2/catch.hpp>

#include "compile/compile.h"

using namespace perigee;
using namespace perigee::compile;
using graph::Arg;
using graph::DType;
using Args = std::vector<std::pair<std::string, Arg>>;
using Ops = std::vector<std::string>;

namespace {

const std::pair<std::string, Arg> kTanh = {"approximate", std::string("tanh")};

// A section of products [16, 24] x [24, 40].
struct Products {
  Draft draft;
  Products() { draft.sections.emplace_back(); }

  ValueId value(std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
    return draft.add({DType::bfloat16, std::move(shape)}, {}, {}, std::move(strides));
  }
  ValueId left() { return value({16, 24}); }
  ValueId right() { return value({24, 40}); }
  ValueId hidden() { return value({16, 40}); }

  void add(std::string op, Args args, std::vector<ValueId> outputs, uint8_t when = kAlways) {
    auto part = plain(draft, std::move(op), std::move(args), std::move(outputs));
    part.when = when;
    draft.sections[0].instructions.push_back(std::move(part));
  }
  ValueId product() { return product_of(left(), right()); }
  ValueId product_of(ValueId a, ValueId b) {
    const auto made = hidden();
    add("aten::mm", {{"self", a}, {"mat2", b}}, {made});
    return made;
  }
  ValueId gelu(ValueId x) {
    const auto made = hidden();
    add("aten::gelu", {{"self", x}, kTanh}, {made});
    return made;
  }
  void gradient(ValueId upstream, ValueId pre, uint8_t when = kAlways) {
    add("perigee::gelu_backward_sum", {{"grad_output", upstream}, {"self", pre}, kTanh},
        {hidden(), value({40})}, when);
  }
  void read(ValueId v) { add("aten::neg", {{"self", v}}, {hidden()}); }

  Ops fused() {
    NoTraces traces;
    fuse_activations(draft, traces);
    Ops ops;
    for (const auto& part : draft.sections[0].instructions) ops.push_back(part.instruction.op);
    return ops;
  }
  const Instruction& first() const { return draft.sections[0].instructions[0].instruction; }
};

}  // namespace

TEST_CASE("a product computes GELU, and keeps its own result only where it is read") {
  Products s;
  const auto pre = s.product(), y = s.gelu(pre);
  const bool kept = GENERATE(false, true);
  const bool bound = GENERATE(false, true);
  if (kept) s.read(pre);
  if (bound) s.draft.bind({Binding::Kind::result, "pre", pre});
  REQUIRE(s.fused() == (kept ? Ops{"perigee::mm_gelu", "aten::neg"} : Ops{"perigee::mm_gelu"}));
  CHECK(s.first().outputs == std::vector{y, kept || bound ? pre : ValueId{}});
}

TEST_CASE("a product computes GELU's gradient of each run that reads it") {
  Products s;
  const auto pre = s.hidden(), upstream = s.product();
  s.gradient(upstream, pre, kFirst);
  s.gradient(upstream, pre, kMiddle | kLast);
  REQUIRE(s.fused() == Ops{"perigee::mm_gelu_backward", "perigee::mm_gelu_backward"});
  CHECK(s.draft.sections[0].instructions[0].when == kFirst);
  CHECK(s.draft.sections[0].instructions[1].when == (kMiddle | kLast));
}

TEST_CASE("products and GELU stay apart where the product cannot compute it") {
  const auto stay = [](auto make) {
    Products s;
    make(s);
    Ops before;
    for (const auto& part : s.draft.sections[0].instructions) before.push_back(part.instruction.op);
    CHECK(s.fused() == before);
  };
  stay([](Products& s) {  // another reader before
    const auto pre = s.product();
    s.read(pre);
    s.gelu(pre);
  });
  stay([](Products& s) {  // another reader of the upstream gradient
    const auto upstream = s.product();
    s.gradient(upstream, s.hidden());
    s.read(upstream);
  });
  stay([](Products& s) { s.gradient(s.product(), s.hidden(), kFirst); });  // in some runs only
  stay([](Products& s) {  // GELU's argument is made after the product
    const auto upstream = s.product(), pre = s.hidden();
    s.add("aten::neg", {{"self", s.hidden()}}, {pre});
    s.gradient(upstream, pre);
  });
  stay([](Products& s) {  // rows that are not whole pieces, between which are gaps
    const auto left = s.value({16, 20}, {24, 1});
    s.gelu(s.product_of(left, s.value({20, 40})));
  });
  stay([](Products& s) {  // a factor that begins between multiples of 16 bytes
    const auto all = s.value({24 * 40 + 1});
    const auto right = s.draft.add_view(all, 2, {DType::bfloat16, {24, 40}}, {40, 1}, {});
    s.gelu(s.product_of(s.left(), right));
  });
  stay([](Products& s) {  // by erf
    s.add("aten::gelu", {{"self", s.product()}}, {s.hidden()});
  });
  stay([](Products& s) {  // half of the product
    const auto pre = s.product();
    const auto half = s.draft.add_view(pre, 0, {DType::bfloat16, {8, 40}}, {40, 1}, {});
    s.add("aten::gelu", {{"self", half}, kTanh}, {s.value({8, 40})});
  });
  stay([](Products& s) {  // a sum over other rows
    const auto upstream = s.product();
    const auto wide = s.draft.add_view(upstream, 0, {DType::bfloat16, {8, 80}}, {80, 1}, {});
    s.add("perigee::gelu_backward_sum", {{"grad_output", wide}, {"self", s.value({8, 80})}, kTanh},
          {s.value({8, 80}), s.value({80})});
  });
}
