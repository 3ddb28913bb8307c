// Megatron-Core's names (runtime/perigee/megatron.lua).
#include "tests/lua/support_dialect.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

TEST_CASE("Megatron's options are all there, and do what they say") {
  check_table("megatron", "ModelParallelConfig");
  check_effects("megatron");
}
