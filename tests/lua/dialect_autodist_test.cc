// AutoDist's names (runtime/perigee/autodist.lua).
#include "base/error.h"
#include "base/files/file.h"
#include "lua/strategy.h"
#include "tests/lua/support_dialect.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

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
  loaded.plan["search"] = found.plan["search"];  // a loaded plan has no search
  CHECK(loaded.plan == found.plan);
  CHECK_THAT(with("load_plan_path = 'plan.json', pipeline_nstages = 3").error,
             Catch::Contains("the plan has 1 stages, but pipeline_nstages is 3"));
  CHECK(with("update_freq = 2, save_plan_path = 'plans/of/today/plan.json'").error == "");
  CHECK(with("load_plan_path = 'plans/of/today/plan.json', pipeline_nstages = 1").error == "");
  folder.write("theirs.json", R"({"desc": [], "e2e_time": 1.5, "stage_mems": [3]})");
  CHECK_THAT(with("load_plan_path = 'theirs.json'").error,
             Catch::Contains("a plan of nnScaler's, which cannot be tied to a graph"));
  CHECK_THAT(run_job("[autodist]\nmesh_col = 4\nrecompute_modules = \"mpl\"\n").error,
             Catch::Contains("job.toml:5:1: [autodist] recompute_modules names a module"));
  // Errors that require the model are at the user's line, too.
  CHECK_THAT(with("recompute_modules = 'mpl'").error,
             Catch::Contains("s.lua:1: [autodist] recompute_modules names a module of the model, "
                             "but \"mpl\" is none, did you mean \"mlp\"?"));
  CHECK_THAT(with("load_plan_path = 'none.json'").error, Catch::Contains("there is no file"));
  // The same options as a table of a job.
  const auto job = run_job("[autodist]\nmesh_col = 4\nupdate_freq = 2\n");
  CHECK(job.error == "");
  CHECK(job.plan == found.plan);
  CHECK_THAT(run_job("[autodist]\nmesh_cool = 4\n").error,
             Catch::Contains("job.toml:4:1: [autodist] AutoDistConfig has no option \"mesh_cool\", "
                             "did you mean \"mesh_col\"?"));
}

TEST_CASE("AutoDist's saved plan holds its costs and all plans that were simulated, best first") {
  const Folder folder;
  const auto saved = [&](const std::string& options) {
    const auto found = run(folder,
                           "return require('perigee.autodist').AutoDistConfig { mesh_col = 4, "
                           "update_freq = 2, save_plan_path = 'plan.json', " +
                               options + " }",
                           "gpt");
    REQUIRE(found.error == "");
    return json::parse(read_file((folder.path / "plan.json").string(), "test"));
  };
  // The test's planner has plans of 1 and 2 tensor ranks, which take 1 and 2 s, and 8 and 4 GiB.
  const auto all = saved("topk = 5");
  REQUIRE(all["plans"].size() == 2);
  CHECK(all["costs"] == all["plans"][0]["costs"]);
  CHECK(all["costs"]["seconds"] == 1.0);
  CHECK(all["costs"]["peak_bytes"] == 8.0 * (1 << 30));
  CHECK(all["strategy"] == all["plans"][0]["strategy"]);
  CHECK(all["plans"][1]["costs"]["seconds"] == 2.0);
  CHECK_FALSE(all["plans"][1].contains("excluded_by"));
  CHECK(saved("topk = 1")["plans"].size() == 1);
  const auto limited = saved("topk = 5, memory_constraint = 5");
  CHECK(limited["costs"]["seconds"] == 2.0);
  CHECK(limited["plans"][1]["excluded_by"] == "memory_constraint");
}

TEST_CASE("a run has as many ranks as AutoDist's mesh") {
  const Folder folder;
  const auto on = [&](const std::string& options, int64_t ranks) -> std::string {
    const auto file = folder.write(
        "s.lua",
        "local c = require('perigee.autodist').AutoDistConfig {\n" + options + " }\nreturn c");
    try {
      lua::StrategyScript script(file, perigee::test::options());
      script.resolve({{"cluster", {{"ranks", ranks}}}}, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::string load = "load_plan_path = 'none.json', ";
  CHECK_THAT(
      on(load + "mesh_row = 2, mesh_col = 2", 2),
      Catch::Contains("s.lua:1: [autodist] mesh_row = 2 x mesh_col = 2 is 4 ranks, but this run "
                      "has 2 (--nproc, or a launcher): change one of them"));
  CHECK_THAT(on(load + "mesh_col = 2, world_size = 4", 2),
             Catch::Contains("world_size = 4 is 4 ranks, but this run has 2"));
  for (const char* agrees : {"mesh_col = 2", "mesh_col = 1, world_size = 2", ""}) {
    CHECK_THAT(on(load + agrees, 2), Catch::Contains("there is no file"));
  }
}

TEST_CASE("AutoDist's constraint files are read, and errors name the line") {
  const Folder folder;
  const auto with = [&](const std::string& file) {
    folder.write("c.yaml", file);
    return run(folder,
               "local c = require('perigee.autodist').AutoDistConfig { mesh_col = 4, update_freq = "
               "1, memory_constraint = 5,\n partition_constraints_path = 'c.yaml' }\nreturn c",
               "gpt");
  };
  const std::string head =
      "# As nnScaler's users write it.\n"
      "- name: aten::mm\n  parent_module: Mlp.Linear\n  allowed_partition_dims:\n    - '0,0'\n"
      "  replica_allowed: false\n";
  const auto cut = with(head);
  CHECK(cut.error == "");
  CHECK_THAT(cut.said,
             Catch::Contains("1 constraint on axis tensor: the sharding of 8 ops changes"));
  // The constraint with the longest parent applies.
  const auto longer = with(head +
                           "- {name: aten::mm, parent_module: Block.Mlp.Linear,\n"
                           "   allowed_partition_dims: ['0,1', '1,1'], replica_allowed: false}\n");
  CHECK(longer.error == "");
  CHECK_THAT(longer.said,
             Catch::Contains("2 constraints on axis tensor: the sharding of 0 ops changes"));
  CHECK_THAT(longer.said, Catch::Contains("left out: c.yaml:2: no op aten::mm is in Mlp.Linear"));
  CHECK_THAT(with(head + "- name: [\n").error, Catch::Contains("c.yaml:8:1"));
  CHECK_THAT(with(head + "- name: aten::mm\n").error,
             Catch::Contains("c.yaml:7: a constraint needs parent_module, but has none"));
  CHECK_THAT(with("name: aten::mm\n").error, Catch::Contains("c.yaml must hold a list"));
  CHECK_THAT(with("- name: aten::mm\n  parent_module: ''\n  allowed_partition_dims: ['0;1']\n"
                  "  replica_allowed: false\n")
                 .error,
             Catch::Contains("c.yaml:1: allowed_partition_dims are \"INPUT,DIM\""));
}
