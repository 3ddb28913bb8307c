// Products that add to the values that their results are added to, in hand-made sections.
#include "compile/products/sum_products.h"

#include <catch2/catch.hpp>

#include "compile/compile.h"

using namespace perigee;
using namespace perigee::compile;
using graph::Arg;
using graph::DType;
using Args = std::vector<std::pair<std::string, Arg>>;
using Ops = std::vector<std::string>;

namespace {

const graph::TensorType kRows{DType::bfloat16, {6, 8}}, kTokens{DType::bfloat16, {2, 3, 8}},
    kWide{DType::float32, {2, 3, 8}};

// A section of products [6, 4] x [4, 8], which are read as [2, 3, 8].
struct Sums {
  Draft draft;
  Sums() { draft.sections.emplace_back(); }

  ValueId value(const graph::TensorType& type = kTokens) { return draft.add(type, {}); }
  ValueId add(std::string op, Args args, ValueId made, uint8_t when = kAlways) {
    auto part = plain(draft, std::move(op), std::move(args), {made});
    part.when = when;
    draft.sections[0].instructions.push_back(std::move(part));
    return made;
  }
  ValueId shown(ValueId rows) { return draft.add_view(rows, 0, kTokens, {24, 8, 1}, {}); }
  ValueId product(uint8_t when = kAlways) {
    return shown(add(
        "aten::mm",
        {{"self", value({DType::bfloat16, {6, 4}})}, {"mat2", value({DType::bfloat16, {4, 8}})}},
        value(kRows), when));
  }
  ValueId sum(ValueId a, ValueId b) {
    return add("aten::add.Tensor", {{"self", a}, {"other", b}}, value());
  }
  ValueId read(ValueId v) { return add("aten::neg", {{"self", v}}, value()); }

  Ops ops() const {
    Ops list;
    for (const auto& part : draft.sections[0].instructions) list.push_back(part.instruction.op);
    return list;
  }
  Ops fused() {
    NoTraces traces;
    sum_products(draft, traces);
    return ops();
  }
  const Instruction& at(size_t i) const { return draft.sections[0].instructions[i].instruction; }
};

}  // namespace

TEST_CASE("a sum of three products is one product, to which the others add") {
  Sums s;
  const auto a = s.product(), b = s.product(), c = s.product();
  const auto all = s.sum(s.sum(a, b), c);
  s.read(all);
  REQUIRE(s.fused() == Ops{"aten::mm", "perigee::addmm_", "perigee::addmm_", "aten::neg"});
  const auto memory = s.at(0).outputs[0];
  for (const size_t i : {1, 2}) {
    CHECK(s.at(i).in_place);
    CHECK(s.at(i).args[0].first == "sum");
    CHECK(std::get<ValueId>(s.at(i).args[0].second) == s.at(i).outputs[0]);
    CHECK((s.draft.value(s.at(i).outputs[0]).type == kRows));
    CHECK(s.draft.root(s.at(i).outputs[0]) == memory);
  }
  CHECK(s.draft.root(all) == memory);
  CHECK(std::get<ValueId>(s.at(3).args[0].second) == all);
}

TEST_CASE("a product adds to an earlier result of any op, in either order of the terms") {
  const bool first = GENERATE(false, true);
  Sums s;
  const auto other = s.read(s.value()), made = s.product();
  s.read(first ? s.sum(made, other) : s.sum(other, made));
  CHECK(s.fused() == Ops{"aten::neg", "perigee::addmm_", "aten::neg"});
  CHECK(s.draft.root(s.at(1).outputs[0]) == s.at(0).outputs[0]);
}

TEST_CASE("products stay apart from sums to whose other term they cannot add") {
  const auto stay = [](auto make) {
    Sums s;
    make(s);
    const auto before = s.ops();
    CHECK(s.fused() == before);
  };
  stay([](Sums& s) {  // another reader of the term
    const auto a = s.product(), b = s.product();
    s.read(a);
    s.sum(a, b);
  });
  stay([](Sums& s) {  // another reader of the product
    const auto a = s.product(), b = s.product();
    s.sum(a, b);
    s.read(b);
  });
  stay([](Sums& s) {  // a term that is made after the product
    const auto made = s.product();
    s.sum(s.read(s.value()), made);
  });
  stay([](Sums& s) { s.sum(s.value(), s.product()); });  // that this section does not make
  stay([](Sums& s) {                                     // a product of the first run only
    const auto a = s.product(), b = s.product(kFirst);
    s.sum(a, b);
  });
  stay([](Sums& s) {  // a result of the graph
    const auto a = s.product(), b = s.product();
    s.draft.bind({Binding::Kind::result, "a", a});
    s.sum(a, b);
  });
  stay([](Sums& s) {  // a sum in memory that outlives the microbatch
    const auto all = s.sum(s.product(), s.product());
    s.draft.homes[all.index].outlives = true;
  });
  stay([](Sums& s) {  // with a factor
    s.add("aten::add.Tensor", {{"self", s.product()}, {"other", s.product()}, {"alpha", 2.0}},
          s.value());
  });
  stay([](Sums& s) {  // rows that others are broadcast to
    s.add("aten::add.Tensor", {{"self", s.read(s.value())}, {"other", s.product()}},
          s.value({DType::bfloat16, {2, 2, 3, 8}}));
  });
  stay([](Sums& s) {  // in a precision that is no wider
    s.add("aten::add.Tensor", {{"self", s.product()}, {"other", s.product()}},
          s.value({DType::float16, kTokens.shape}));
  });
  stay([](Sums& s) {  // in float32, of a low precision that no product makes
    s.add("aten::add.Tensor", {{"self", s.read(s.value())}, {"other", s.product()}},
          s.value(kWide));
  });
}

TEST_CASE("products of 16 bits are added up in float32 where their sum is") {
  // The casts may be the addition's own.
  const bool first_cast = GENERATE(false, true), second_cast = GENERATE(false, true);
  Sums s;
  const auto term = [&](bool cast) {
    const auto made = s.product();
    return cast ? s.add("perigee::cast", {{"self", made}}, s.value(kWide)) : made;
  };
  const auto a = term(first_cast), b = term(second_cast);
  const auto sum = s.add("aten::add.Tensor", {{"self", a}, {"other", b}}, s.value(kWide));
  s.add("aten::neg", {{"self", sum}}, s.value(kWide));
  REQUIRE(s.fused() == Ops{"perigee::mm_", "perigee::addmm_", "aten::neg"});
  for (const size_t i : {0, 1}) {
    CHECK((s.draft.value(s.at(i).outputs[0]).type == graph::TensorType{DType::float32, {6, 8}}));
    CHECK(s.draft.root(s.at(i).outputs[0]) == s.draft.root(sum));
  }
}

TEST_CASE("a product of 16 bits adds to a value of float32, and is rounded where others read it") {
  Sums s;
  const auto other = s.add("aten::neg", {{"self", s.value(kWide)}}, s.value(kWide));
  const auto made = s.product();
  const auto cast = s.add("perigee::cast", {{"self", made}}, s.value(kWide));
  s.add("aten::add.Tensor", {{"self", other}, {"other", cast}}, s.value(kWide));
  const bool read = GENERATE(false, true);
  if (read) s.read(made);
  const auto before = s.ops();
  CHECK(s.fused() == (read ? before : Ops{"aten::neg", "perigee::addmm_"}));
}
