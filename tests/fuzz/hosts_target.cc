// Messages between hosts: registrations of launchers and their answers (tools/perigee/launch), and
// the settings of rank 0 (exec/comm/agreement.h).
#include "exec/comm/agreement.h"
#include "tests/fuzz/target.h"
#include "tools/perigee/launch/membership.h"

using namespace perigee;
using namespace perigee::command;

PERIGEE_FUZZ_TARGET(hosts) {
  if (input.empty()) return;
  const std::string text(input.substr(1));
  if (input[0] == 'r') {
    const auto printed = print(parse_registration(text));
    const auto again = fuzz::accepted("a printed registration is refused",
                                      [&] { return print(parse_registration(printed)); });
    fuzz::require(again == printed, "a printed registration is another one");
  } else if (input[0] == 'v') {
    const auto printed = print(parse_verdict(text));
    const auto again = fuzz::accepted("a printed verdict is refused",
                                      [&] { return print(parse_verdict(printed)); });
    fuzz::require(again == printed, "a printed verdict is another one");
  } else {
    const auto difference = exec::settings_difference(text, "rank 1", {{"seed", "1"}});
    fuzz::require(difference.size() < 20'000, "a long difference");
  }
}
