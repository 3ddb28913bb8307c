// Values that dialects leave to the run or the search: number of ranks, pins, paths and defaults.
#include "base/error.h"
#include "job/job.h"
#include "lua/strategy.h"
#include "tests/lua/support_dialect.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

TEST_CASE("a table of several wrong options reports the first and the number of the others") {
  const auto error = [](const std::string& job) { return run_job(job).error; };
  CHECK_THAT(error("[megatron]\nbf16 = true\nfirst = 1\nfp16 = 3\ntimer = 2\n"),
             Catch::StartsWith(
                 "[lua] job.toml:5:1: [megatron] ModelParallelConfig has no option \"first\"") &&
                 Catch::EndsWith("(and 2 more options of ModelParallelConfig are wrong)"));
  CHECK_THAT(error("[megatron]\nbf17 = true\nfp16 = 3\n"),
             Catch::EndsWith("(and 1 more option of ModelParallelConfig is wrong)"));
  CHECK_THAT(error("[megatron]\nfp16 = 3\n"), Catch::EndsWith("but got 3"));
  std::string many = "[autodist]\n";
  for (int i = 0; i < 50; ++i) many += "key" + std::to_string(i) + " = 1\n";
  CHECK_THAT(error(many),
             Catch::Contains("job.toml:4:1: [autodist] AutoDistConfig has no option \"key0\"") &&
                 Catch::Contains("and 49 more options of AutoDistConfig are wrong"));
}

TEST_CASE("without axis sizes, every dialect uses the run's number of ranks") {
  const Folder folder;
  const auto sizes = [&](const std::string& text) {
    const auto outcome = run(folder, text, "gpt");
    INFO(text << "\n" << outcome.error);
    REQUIRE(!outcome.strategy.methods.empty());
    const auto& first = outcome.strategy.methods.front();
    REQUIRE(first.method->name() == "parallel_mode");
    return first.config.items.size();
  };
  const std::string atorch =
      "return (select(3, require('perigee.atorch').auto_accelerate { model = 'a.toml', "
      "load_strategy = { ";
  CHECK(sizes(atorch + "'parallel_mode', 'zero1' } }))") == 0);
  CHECK(sizes(atorch + "{ 'parallel_mode', { { 'data', 1 } } } } }))") == 1);
  const std::string epl = "local epl = require 'perigee.epl'\nepl.init()\n";
  CHECK(sizes(epl + "return epl.strategy()") == 0);
  CHECK(sizes(epl + "epl.replicate { device_count = 1, 'embed' }\nreturn epl.strategy()") == 0);
  CHECK(sizes(epl + "epl.replicate { device_count = 2, 'embed' }\nreturn epl.strategy()") == 1);
  const std::string megatron = "return require('perigee.megatron').ModelParallelConfig { ";
  CHECK(sizes(megatron + "bf16 = true }") == 0);
  CHECK(sizes(megatron + "tensor_model_parallel_size = 2 }") == 2);
  const std::string alpa =
      "local m = require 'perigee.alpa'\nreturn m.parallelize(m.DataParallel { ";
  CHECK(sizes(alpa + "})") == 0);
  CHECK(sizes(alpa + "devices = { 1, 1 } })") == 1);
}

TEST_CASE("AutoDist's batch size and pivots at any module become pins of the search") {
  const Folder folder;
  const auto search = [&](const std::string& options) {
    const auto outcome = run(
        folder, "return require('perigee.autodist').AutoDistConfig { " + options + " }", "gpt");
    CHECK(outcome.error == "");
    return outcome.plan["search"];
  };
  // The search recomputes and offloads only scopes that the options name.
  for (const char* options : {"mesh_col = 4", "mesh_col = 4, recompute_modules = 'mlp'"}) {
    CHECK(search(options)["checkpoint"] == false);
    CHECK(search(options)["offload"] == false);
  }
  CHECK(!search("mesh_col = 4").contains("micro"));
  const auto sized = search("mesh_col = 4, update_freq = 4");
  CHECK(sized["micro"].get<int>() * sized["data"].get<int>() == 2);
  CHECK(search("mesh_col = 4, zero_stage = 1, zero_ngroups = 2")["data"].get<int>() % 2 == 0);
  // Each of the mesh's four copies has its own microbatches.
  const auto copies = search("mesh_col = 1, world_size = 4, micro_batch_size = 1");
  CHECK(copies["data"] == 4);
  CHECK(copies["micro"] == 1);
  const auto cut = run(folder,
                       "return require('perigee.autodist').AutoDistConfig { mesh_col = 4, "
                       "update_freq = 4, pipeline_nstages = 2, max_pipeline_unbalance_ratio = "
                       "0.1,\n pipeline_pivots = 'mlp' }",
                       "gpt");
  CHECK(cut.error == "");
  CHECK(cut.plan["search"]["chunks"] == 1);
  REQUIRE(cut.plan["pipeline"]["starts"].size() == 1);
  CHECK_THAT(cut.plan["pipeline"]["starts"][0].get<std::string>(), Catch::EndsWith(".mlp"));
}

TEST_CASE("AutoDist's limit of the bubble is no filter of the fastest plans") {
  const Folder folder;
  const auto with = [&](const std::string& options) {
    return run(folder,
               "return require('perigee.autodist').AutoDistConfig { mesh_col = 4, topk = 1, "
               "pipeline_nstages = 2, " +
                   options + " }",
               "gpt");
  };
  // The test's planner returns plans of few microbatches first: the fastest one has one, and two
  // stages of a ratio of 0.3 require at least 7/3.
  const auto found = with("max_pipeline_bubble_ratio = 0.3");
  CHECK(found.error == "");
  CHECK(found.plan["microbatches"].get<int>() >= 3);
  CHECK(found.plan["search"]["pipe"] == 2);
  // No number of microbatches of 8 samples suffices.
  CHECK_THAT(
      with("max_pipeline_bubble_ratio = 0.1").error,
      Catch::Contains("max_pipeline_bubble_ratio excludes 1") &&
          Catch::EndsWith(": change pipeline_nstages = 2, or max_pipeline_bubble_ratio = 0.1, "
                          "or mesh_col = 4, or memory_constraint (32 by default), or "
                          "recompute_modules = \"\" (nothing is recomputed), or topk = 1, the "
                          "plans that are simulated"));
}

TEST_CASE("if no plan meets AutoDist's options, the one that excludes most is named first") {
  const Folder folder;
  const auto error = run(folder,
                         "return require('perigee.autodist').AutoDistConfig { mesh_col = 4, "
                         "pipeline_pivots = 'blocks', max_pipeline_bubble_ratio = 0.5, "
                         "max_pipeline_unbalance_ratio = 0.001, memory_constraint = 0.001 }",
                         "gpt")
                         .error;
  CHECK_THAT(error, Catch::Contains("none of them fits (memory_constraint excludes") &&
                        Catch::Contains(", max_pipeline_bubble_ratio excludes 2)") &&
                        Catch::Contains(", or memory_constraint = 0.001") &&
                        !Catch::Contains("topk"));
}

TEST_CASE("Alpa's search recomputes no block that remat_mode does not name") {
  const Folder folder;
  for (const char* method :
       {"ShardParallel {}", "PipeshardParallel { stage_option = 'auto' }",
        "PipeshardParallel { stage_option = 'auto', layer_option = m.AutoLayerOption { remat_mode "
        "= 'none' } }"}) {
    const auto found = run(
        folder,
        "local m = require 'perigee.alpa'\nreturn m.parallelize(m." + std::string(method) + ")",
        "gpt");
    INFO(method << "\n" << found.error);
    const auto& asked = found.plan["search"];
    if (std::string(method).starts_with("Shard")) {
      CHECK(asked["checkpoint"] == false);
    } else {  // the solver chooses shardings alone
      REQUIRE(asked.contains("choose"));
      CHECK(asked["choose"].empty());
    }
  }
}

TEST_CASE("paths of a dialect's options are relative to the file that names them") {
  const auto set = [](const std::string& table) {
    const auto job = job::Job::parse("[model]\nkind = \"gpt\"\n" + table, "conf/job.toml");
    std::vector<std::string> keys;
    const lua::StrategyScript script(job.dialect, options());
    for (const auto& assignment : script.set()) {
      keys.push_back(assignment.text);
    }
    return keys;
  };
  CHECK(set("[autodist]\nprofile_dir = \"times/\"\n") ==
        std::vector<std::string>{"cluster.profile=\"conf/times/profile.sqlite\""});
  CHECK(set("[autodist]\nprofile_dir = \"/times\"\n") ==
        std::vector<std::string>{"cluster.profile=\"/times/profile.sqlite\""});
  CHECK(set("[atorch]\nload_strategy = []\ndataset = { text = [\"a.txt\", \"/b.txt\"], tokenizer = "
            "\"bytes\" }\n") == std::vector<std::string>{"data.text=[\"conf/a.txt\", \"/b.txt\"]",
                                                         "data.tokenizer=\"bytes\""});
}

TEST_CASE("an error of keys that a dialect set together names the option's place, not --set") {
  const Folder folder;
  const auto path = folder.write(
      "job.toml",
      "[model]\nkind = \"mlp\"\n[data]\nsynthetic = true\n[batch]\nglobal = 8\n[megatron]\n"
      "bf16 = true\n[megatron.LRSchedule]\nlr_decay_style = \"cosine\"\nmax_lr = 0.001\nmin_lr = "
      "0.01\n");
  const auto job = job::Job::load(path);
  const lua::StrategyScript script(job.dialect, options());
  std::string error;
  try {
    job::load_with(path, script.set());
  } catch (const Error& caught) {
    error = caught.what();
  }
  CHECK_THAT(error, Catch::Contains(path + ":12:1: "));
  CHECK_THAT(error, !Catch::Contains("--set"));
  // A key of the command line keeps its name.
  CHECK_THROWS_WITH(job::load_with(path, std::vector<job::Assignment>{{"train.steps=-1"}}),
                    Catch::Contains("--set: "));
}
