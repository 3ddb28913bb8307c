// AutoDist's names (runtime/perigee/autodist.lua).
#include "base/error.h"
#include "tests/lua/support_dialect.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

TEST_CASE("AutoDist's options are all there, and do what they say") {
  check_table("autodist", "AutoDistConfig");
  check_effects("autodist");
}

TEST_CASE("AutoDist's plans are saved and loaded") {
  const Folder folder;
  const auto with = [&](const std::string& options) {
    return run(
        folder,
        "return require('perigee.autodist').AutoDistConfig { mesh_col = 4, " + options + " }",
        "gpt");
  };
  const auto found = with("update_freq = 2, save_plan_path = 'plan.json'");
  CHECK(found.error == "");
  CHECK(std::filesystem::exists(folder.path / "plan.json"));
  auto loaded = with("load_plan_path = 'plan.json'");
  CHECK(loaded.error == "");
  loaded.plan["search"] = found.plan["search"];  // nothing was searched
  CHECK(loaded.plan == found.plan);
  CHECK_THAT(with("load_plan_path = 'none.json'").error, Catch::Contains("there is no file"));
  // In a job the same stands as a table.
  const auto job = run_job("[autodist]\nmesh_col = 4\nupdate_freq = 2\n");
  CHECK(job.error == "");
  CHECK(job.plan == found.plan);
  CHECK_THAT(run_job("[autodist]\nmesh_cool = 4\n").error,
             Catch::Contains("job.toml:4:1: [autodist] AutoDistConfig has no option \"mesh_cool\", "
                             "did you mean \"mesh_col\"?"));
}
