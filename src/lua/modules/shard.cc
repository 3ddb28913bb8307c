// perigee.shard: sharding rules of the user's.
#include "base/fail.h"
#include "lua/api.h"
#include "lua/state.h"
#include "shard/rules/rule.h"

namespace perigee::lua {
namespace {

int rule(lua_State* L, const Function&) {
  const std::string op = lua_tostring(L, 1), text = lua_tostring(L, 2);
  const auto colons = op.find("::");
  if (colons == std::string::npos || colons == 0 || colons + 2 == op.size()) {
    fail("shard", "an op is named like my::op, but got \"{}\"", op);
  }
  shard::parse_rule(op, text);
  State::of(L).rules.insert_or_assign(op, text);
  return 0;
}

}  // namespace

Module shard_module() {
  return {"perigee.shard",
          "Sharding rules: how an op's dims relate, so that it can run on parts.",
          {{"rule",
            {{"op", "string", "the op's name, such as my::op"},
             {"text", "string",
              "operands -> results, one list of dims each: \"b* k+, n k -> b* n\". `k` may be "
              "sharded and results have it too; `k+` is summed over; `k^` is not sharded; `b*` "
              "stands for any number of dims; `1` for one that is not sharded. After `;`: "
              "attributes that do not matter (eps), must have a value (sparse=false) or name whole "
              "dims (dim^), and linear(0), the operands that may be partial sums"}},
            "",
            "Adds or replaces an op's rule in the plans of this script, which calls it before it "
            "returns its strategy. An op without a rule runs on whole tensors.",
            rule}}};
}

}  // namespace perigee::lua
