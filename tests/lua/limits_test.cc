// The limits of a script's memory.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "lua/state.h"

using namespace perigee;

namespace {

// Runs a script that keeps about so many MB, with a limit of eight; returns its error.
std::string error_with(int64_t megabytes) {
  try {
    lua::State state({.limits = {.megabytes = 8}});
    state.run_text(fmt::format("local kept = {{}} for i = 1, {} do "
                               "kept[i] = string.rep('x', 65536) .. i end",
                               16 * megabytes),
                   "script.lua");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("a script has the memory of its limit and no more") {
  CHECK(error_with(4) == "");
  CHECK_THAT(error_with(12), Catch::Contains("the script needed more than 8 MB"));
}
