// Tables of stages (search/stages/stage_table.h).
#include "search/stages/stage_table.h"
#include "tests/fuzz/target.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(stages) {
  const auto table = search::parse_table(input, "stages.json");
  const auto again = fuzz::accepted("a printed table is refused", [&] {
    return search::parse_table(search::print(table), "stages.json");
  });
  fuzz::require(again == table, "a printed table is another table");
}
