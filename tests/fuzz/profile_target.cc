// Measurements of other hosts (profile/export.h), and allocation traces, also as rows of
// the database.
#include "profile/export.h"
#include "profile/trace_text.h"
#include "tests/fuzz/target.h"

using namespace perigee;
using namespace perigee::profile;

PERIGEE_FUZZ_TARGET(profile) {
  if (const auto trace = parse_trace(std::string(input))) {
    const auto again = parse_trace(print(*trace));
    fuzz::require(again && print(*again) == print(*trace), "a printed trace is another trace");
  }
  for (const auto& [key, value] : read_export(std::string(input), "profile.json")) {
    fuzz::require(key.kind != "trace" || parse_trace(value), "an invalid trace is read");
  }
}
