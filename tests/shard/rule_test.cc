#include "shard/rules/rule.h"

#include <catch2/catch.hpp>

#include "base/error.h"

namespace perigee::shard {
namespace {

using graph::DType;
using graph::Graph;
using graph::Input;

// Returns the rule's pattern for a node with inputs of these shapes.
std::optional<Pattern> pattern_of(const std::string& rule,
                                  const std::vector<std::vector<int64_t>>& operands,
                                  std::vector<std::pair<std::string, graph::Arg>> attributes,
                                  const std::vector<std::vector<int64_t>>& results) {
  Graph g;
  std::vector<std::pair<std::string, graph::Arg>> args;
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto name = std::string(1, static_cast<char>('a' + i));
    args.emplace_back(name, g.add_input(Input::Kind::data, name, {DType::float32, operands[i]}));
  }
  args.insert(args.end(), attributes.begin(), attributes.end());
  std::vector<graph::TensorType> types;
  for (const auto& shape : results) types.push_back({DType::float32, shape});
  g.add_node("my::op", args, types);
  const Call call(g, g.nodes[0]);
  auto pattern = parse_rule("my::op", rule).pattern(call);
  if (pattern && !fits(*pattern, call)) return {};
  return pattern;
}

TEST_CASE("letters become dims, families any number of them") {
  const auto p = pattern_of("b* k+, n k -> b* n", {{2, 3, 5}, {7, 5}}, {}, {{2, 3, 7}});
  REQUIRE(p);
  CHECK(p->operands[0].size() == 3);
  CHECK(p->operands[0][2] == p->operands[1][1]);
  CHECK(p->results[0] == std::vector<int>{p->operands[0][0], p->operands[0][1], p->operands[1][0]});
  CHECK(p->dims[p->operands[0][2]].role == Role::sum);
  CHECK(p->dims[p->operands[0][0]].role == Role::free);
}

TEST_CASE("a dim of size one against a larger one is broadcast and not sharded") {
  const auto p = pattern_of("d*, d* -> d*", {{4, 3}, {1, 3}}, {}, {{4, 3}});
  REQUIRE(p);
  CHECK(p->operands[1][0] == -1);
  CHECK(p->operands[1][1] == p->results[0][1]);
}

TEST_CASE("dims marked ^ are never sharded") {
  const auto p = pattern_of("b* h^ -> b* h, b* 1", {{4, 3}}, {}, {{4, 3}, {4, 1}});
  REQUIRE(p);
  CHECK(p->operands[0] == std::vector<int>{0, -1});
  CHECK(p->results[1] == std::vector<int>{0, -1});
  const auto named = pattern_of("d* -> d*; dim^", {{4, 3}}, {{"dim", int64_t{-1}}}, {{4, 3}});
  REQUIRE(named);
  CHECK(named->results[0][1] == -1);
  CHECK(named->results[0][0] >= 0);
}

TEST_CASE("a rule does not cover an attribute or value that it does not mention") {
  const std::vector<std::vector<int64_t>> one = {{4}};
  CHECK(pattern_of("d* -> d*; eps", one, {{"eps", 0.5}}, one));
  CHECK_FALSE(pattern_of("d* -> d*; eps", one, {{"eps", 0.5}, {"other", int64_t{1}}}, one));
  CHECK(pattern_of("d* -> d*; sparse=false", one, {{"sparse", false}}, one));
  CHECK(pattern_of("d* -> d*; sparse=false", one, {}, one));
  CHECK_FALSE(pattern_of("d* -> d*; sparse=false", one, {{"sparse", true}}, one));
}

TEST_CASE("shapes that a rule does not describe are not covered") {
  CHECK_FALSE(pattern_of("m k+, k n -> m n", {{2, 3}, {4, 5}}, {}, {{2, 5}}));
  CHECK_FALSE(pattern_of("m k+, k n -> m n", {{2, 3, 4}, {4, 5}}, {}, {{2, 5}}));
  CHECK_FALSE(pattern_of("d* -> d*", {{4}, {4}}, {}, {{4}}));
  CHECK_FALSE(pattern_of("d* -> d*", {{4}}, {}, {{4}, {4}}));
}

TEST_CASE("optional operands and lists are matched by name") {
  const std::string rule = "a: b* h^, b?: h, c?: h -> b* h; linear(a)";
  const auto p = pattern_of(rule, {{4, 3}, {3}}, {}, {{4, 3}});
  REQUIRE(p);
  CHECK(p->operands.size() == 2);
  CHECK(p->linear == std::vector<std::vector<int>>{{0}});
  CHECK_FALSE(pattern_of("a: d*, c: d* -> d*", {{4}, {4}}, {}, {{4}}));
}

TEST_CASE("invalid rule text is refused with the reason") {
  const auto error = [](const std::string& text) {
    try {
      parse_rule("my::op", text);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(error("m k, k n"), Catch::Contains("my::op") && Catch::Contains("\"->\""));
  CHECK_THAT(error("m k, k n -> m n"), Catch::Contains("k+ (summed) or k^ (whole)"));
  CHECK_THAT(error("m 2 -> m"), Catch::Contains("not \"2\""));
  CHECK_THAT(error("a* b* -> a* b*"), Catch::Contains("at most one dim with *"));
  CHECK_THAT(error("x: m, n -> m n"), Catch::Contains("names all operands or none"));
  CHECK_THAT(error("m -> m; linear(1)"), Catch::Contains("not \"1\""));
  CHECK_THAT(error("m -> m; linear(0"), Catch::Contains("closes"));
  CHECK_THAT(error("m -> m; size=@3"), Catch::Contains("@0"));
  CHECK_THAT(error("m -> m k+"), Catch::Contains("sums k over operands"));
  CHECK(error("m -> m; size=@0") == "");
}

TEST_CASE("an added rule replaces a built-in one") {
  auto rules = Rules::built_in();
  rules.add_rule("aten::relu", "a^ -> a");
  CHECK(rules.find("aten::relu") != Rules::built_in().find("aten::relu"));
  CHECK(rules.find("my::op") == nullptr);
}

}  // namespace
}  // namespace perigee::shard
