#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "plan/pipeline.h"
#include "shard/rules/rule.h"
#include "tests/parity/rules/support.h"
#include "tests/parity/support/case.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

// Runs a case with many seeds. Returns the first failure with its seed, or "".
std::string try_case(const std::string& op, const Build& build, int times, bool& effective,
                     const std::map<std::string, std::string>& rules = {}) {
  for (int k = 0; k < times; ++k) {
    const uint64_t seed = std::hash<std::string>{}(op) + static_cast<uint64_t>(k);
    Case test(seed);
    std::string wrong;
    try {
      build(test);
      wrong = test.run(effective, rules);
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    if (!wrong.empty()) return fmt::format("{} seed {}: {}\n{}", op, seed, wrong, test.text());
  }
  return "";
}

// Full reductions that do not combine: they always run on replicated operands.
bool has_no_part(const std::string& op) {
  static const std::set<std::string> whole = {"aten::all",    "aten::any",         "aten::argmax",
                                              "aten::argmin", "aten::norm.Scalar", "aten::prod"};
  return whole.contains(op);
}

void try_all(int times) {
  for (const auto& [op, build] : rule_cases()) {
    bool effective = false;
    const auto wrong = try_case(op, build, times, effective);
    INFO(wrong);
    CHECK(wrong.empty());
    INFO(op);
    CHECK(effective == !has_no_part(op));
  }
}

TEST_CASE("every rule gives the unsharded result for random shapes, meshes and placements") {
  try_all(20);
}

TEST_CASE("every rule gives the unsharded result for many random placements", "[.long]") {
  try_all(400);
}

TEST_CASE("every built-in rule has a case") {
  std::set<std::string> covered;
  for (const auto& [name, build] : rule_cases()) {
    Case test(1);
    CHECK_NOTHROW(build(test));
    for (const auto& node : test.graph_.nodes) covered.insert(node.op);
  }
  std::string missing;
  for (const auto& [op, rule] : shard::Rules::built_in().all()) {
    // No program has it: submeshes_test.cc.
    if (op == plan::kCross) continue;
    if (!covered.contains(op)) missing += op + " ";
  }
  CHECK(missing == "");
}

TEST_CASE("a wrong rule is detected") {
  const std::map<std::string, std::string> wrong = {
      {"aten::mm", "m k^, k n -> m n; linear(0 1)"},      // both operands Partial
      {"aten::relu", "d* -> d*; linear(0)"},              // not linear
      {"aten::_softmax", "d* -> d*; dim half_to_float"},  // along a sharded dim
      {"aten::cumsum", "d* -> d*; dim dtype"},            // along a sharded dim
      {"aten::tril", "d* -> d*; diagonal"},               // depends on the global position
      {"aten::flip", "d* -> d*; dims"},
      {"aten::_fft_c2c", "d* -> d*; dim normalization forward"},
      {"aten::linalg_matrix_exp", "d* -> d*"},
      {"aten::take", "d*, t* -> t*"},
      {"aten::embedding", "v+ e, t* -> t* e; padding_idx"},   // out of range, or added twice
      {"aten::add.Tensor", "d*, d* -> d*; alpha linear(0)"},  // all ranks add the other operand
      // caches lack the keys of other ranks' rows
      {"perigee::cached_attention",
       "query: b h^ s^ d^, key: b g^ s^ d^, value: b g^ s^ e^, positions: b s^, slots: b, "
       "key_cache: n^ g^ t^ d^, value_cache: n^ g^ t^ e^ -> b h^ s^ e^; scale window"},
  };
  for (const auto& [op, text] : wrong) {
    const auto* build = &rule_cases().at(op);
    bool effective = false;
    INFO(op);
    CHECK(try_case(op, *build, 60, effective, {{op, text}}) != "");
  }
}

}  // namespace
}  // namespace perigee::parity
