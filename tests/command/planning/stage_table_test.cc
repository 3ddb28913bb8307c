// Alpa's automatic stages through the command: their table in the plan, the report, JSON and a file.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tests/command/planning/planned_job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Contains;
using nlohmann::json;

namespace {

std::string script(const std::string& options) {
  return "local alpa = require \"perigee.alpa\"\n"
         "return alpa.parallelize { method = alpa.PipeshardParallel { num_micro_batches = 4,\n"
         "  layer_option = alpa.AutoLayerOption { layer_num = 4 }, stage_option = "
         "alpa.AutoStageOption { " +
         options + " } } }\n";
}

}  // namespace

TEST_CASE("the table of Alpa's stages is saved, read back and shown with the plan") {
  const Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  std::filesystem::create_directory(folder / "scripts");
  const auto strategy = folder.write("scripts/alpa.lua",
                                     script("cached_profile_result = 'stages.json'"));
  const std::string more = job + " --cluster 8xh100 --nproc 4 --strategy " + strategy;
  const auto explained = run("plan " + more + " --explain --report " + (folder / "plan.html") +
                                 " -o " + (folder / "plan.json"),
                             own_cache(folder));
  INFO(explained.err);
  REQUIRE(explained.status == 0);
  const auto file = folder / "scripts/stages.json";  // relative to the script
  const auto table = json::parse(read(file));
  CHECK(table["format"] == "perigee.stages/1");
  CHECK(table["layers"].size() == 3);
  const auto rows = table["rows"].size(), stages = table["chosen"].size();
  CHECK(rows >= 20);
  for (const auto& row : table["rows"]) {
    for (const char* key : {"cost", "peak", "in", "out", "temporary", "available"}) {
      CHECK(row[key].is_number());
    }
    CHECK(row["peak"] <= row["available"]);
  }
  CHECK(count(explained.out, "stage_table: layers ") == rows);
  CHECK(count(explained.out, " of the plan\n") == stages);
  // The submeshes that were considered: parts of the host.
  CHECK_THAT(explained.out, Contains(", on submeshes of 1 x 1, 1 x 2, 1 x 4\n"));
  std::set<std::pair<int, int>> shapes;
  for (const auto& view : table["submeshes"]) shapes.emplace(view["hosts"], view["devices"]);
  CHECK(shapes == std::set<std::pair<int, int>>{{1, 1}, {1, 2}, {1, 4}});
  const auto page = read(folder / "plan.html");
  CHECK_THAT(page, Contains("Stages considered") && Contains("stages after it"));
  CHECK(count(page, "<td>stage ") == stages);
  CHECK(!Contains("stage_table").match(page));
  // A saved plan keeps its decisions, also when it is read back.
  const auto plan = json::parse(read(folder / "plan.json"));
  size_t kept = 0;
  for (const auto& decision : plan["decisions"]) kept += decision["by"] == "stage_table";
  CHECK(kept == rows);
  const auto loaded = run(
      "plan " + job + " --cluster 8xh100 --nproc 4 --explain --plan " + (folder / "plan.json"),
      own_cache(folder));
  CHECK(count(loaded.out, "stage_table: layers ") == rows);
  const auto simulated = run("simulate " + more + " --json", own_cache(folder));
  REQUIRE(simulated.status == 0);
  CHECK(json::parse(simulated.out)["stages"] == table);
  // The file's rows are used as they are.
  auto changed = table;
  for (auto& row : changed["rows"]) row["cost"] = row["cost"].get<double>() * 1000;
  folder.write("scripts/stages.json", changed.dump());
  const auto again = run("simulate " + more + " --json", own_cache(folder));
  REQUIRE(again.status == 0);
  CHECK(json::parse(again.out)["stages"]["rows"] == changed["rows"]);
  CHECK(json::parse(read(file)) == changed);
  const auto other = folder.write("scripts/other.lua",
                                  script("cached_profile_result = 'stages.json', "
                                         "layer_profile_mode = 'individual'"));
  const auto refused = run("plan " + job + " --cluster 8xh100 --nproc 4 --strategy " + other,
                           own_cache(folder));
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, Contains("was made for another plan (the profile"));
}

TEST_CASE("Alpa's manual stages without shapes are sharded by the solver within their devices") {
  const Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  // The manual pipeline of Alpa's document.
  const auto planned = [&](int microbatches) {
    const auto strategy = folder.write(
        "alpa.lua",
        "local alpa = require \"perigee.alpa\"\n"
        "alpa.mark_pipeline_boundary \"blocks.2\"\n"
        "return alpa.parallelize { method = alpa.PipeshardParallel { layer_option = \"manual\",\n"
        "  num_micro_batches = " +
            std::to_string(microbatches) + " } }\n");
    return run("plan " + job + " --cluster 8xh100 --nproc 4 --set batch.global=16 --explain " +
                   "--strategy " + strategy,
               own_cache(folder));
  };
  const auto narrow = planned(16);  // of one sample each
  INFO(narrow.err);
  REQUIRE(narrow.status == 0);
  CHECK_THAT(narrow.out, Contains("2 layers, which begin at the first op, blocks.2, on submeshes "
                                  "of 1 x 2\n"));
  CHECK(count(narrow.out, "auto_sharding: ") > 0);
  CHECK_THAT(narrow.out, Contains(" weights are split over tensor"));
  CHECK(count(narrow.out, "(data 1, tensor 2)") == 2);
  CHECK(count(narrow.out, "(data 2, tensor 1)") == 0);
  const auto wide = planned(4);
  INFO(wide.err);
  REQUIRE(wide.status == 0);
  CHECK(count(wide.out, "(data 1, tensor 2)") == 2);
  CHECK(count(wide.out, "(data 2, tensor 1)") == 2);
  CHECK(count(wide.out, " of the plan\n") == 2);
}
