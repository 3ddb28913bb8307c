// Common properties of dialects: mistakes are errors at the user's line, tables of jobs and scripts
// have the same checks, examples of the pages run, and equal options give equal plans.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/files/file.h"
#include "tests/lua/support_dialect.h"
#include "tests/support/golden.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

TEST_CASE("a dialect's mistakes are errors at the user's line") {
  const Folder folder;
  const auto error = [&](const std::string& options) {
    return run(folder,
               "local m = require 'perigee.megatron'\nlocal c = m.ModelParallelConfig {\n" +
                   options + " }\nreturn c",
               "gpt")
        .error;
  };
  CHECK_THAT(error("tensor_model_paralel_size = 2"),
             Catch::EndsWith("s.lua:2: [megatron] ModelParallelConfig has no option "
                             "\"tensor_model_paralel_size\", did you mean "
                             "\"tensor_model_parallel_size\"?"));
  CHECK_THAT(error("tensor_model_parallel_size = 'two'"),
             Catch::EndsWith("s.lua:2: [megatron] tensor_model_parallel_size must be an integer, "
                             "but got \"two\""));
  CHECK_THAT(error("tensor_model_parallel_size = 0"),
             Catch::EndsWith("tensor_model_parallel_size must be at least 1, but got 0"));
  CHECK_THAT(error("params_dtype = 'int8'"), Catch::Contains("params_dtype must be a dtype"));
  CHECK_THAT(error("fp16 = true, bf16 = true"), Catch::Contains("s.lua:2: [megatron] fp16 and bf"));
  CHECK_THAT(error("1"), Catch::Contains("ModelParallelConfig has no option 1"));
}

TEST_CASE("an error of a dialect has the user's line, also where the call ends the script") {
  const Folder folder;
  const auto error = [&](const std::string& text) { return run(folder, text, "gpt").error; };
  CHECK_THAT(error("local m = require 'perigee.megatron'\n\nreturn m.ModelParallelConfig {\n"
                   "  fp17 = true,\n}\n"),
             Catch::Contains("s.lua:3: [megatron] ModelParallelConfig has no option \"fp17\""));
  CHECK_THAT(
      error("local alpa = require 'perigee.alpa'\nlocal function method()\n  local count = 0\n"
            "  return alpa.DataParallel { num_micro_batches = count }\nend\n"
            "local m = method()\nreturn alpa.parallelize(m)"),
      Catch::Contains("s.lua:6: [alpa] num_micro_batches must be at least 1"));
  CHECK_THAT(error("local epl = require 'perigee.epl'\nif epl then\n  epl.init()\nend\n"
                   "return epl.init()"),
             Catch::Contains("s.lua:5: [epl] init is called once"));
  // Also an error of a binding.
  CHECK_THAT(error("local mesh = require 'perigee.mesh'\nreturn mesh.new({\n { 'tensor', 0 } })"),
             Catch::Contains("s.lua:2: "));
}

TEST_CASE("every option refuses a wrong type and a wrong name at the user's line") {
  const Folder folder;
  std::multimap<std::string, std::pair<std::string, std::string>> functions = {
      {"megatron", {"ModelParallelConfig", "m.ModelParallelConfig { % }"}},
      {"megatron", {"LRSchedule", "m.LRSchedule { % }"}},
      {"epl", {"Config", "m.Config { % }"}},
      {"autodist", {"AutoDistConfig", "m.AutoDistConfig { % }"}},
      {"alpa", {"parallelize", "m.parallelize { method = m.DataParallel {}, % }"}},
      {"atorch", {"auto_accelerate", "select(3, m.auto_accelerate { model = 'a.toml', % })"}}};
  for (const std::string function :
       {"init", "PipeshardParallel", "AutoLayerOption", "ManualLayerOption", "ManualStageOption",
        "UniformStageOption", "AutoStageOption", "AutoShardingOption", "ShardParallel",
        "DataParallel", "Zero2Parallel", "Zero3Parallel", "get_3d_parallel_method"}) {
    functions.insert({"alpa", {function, "m." + function + " { % }"}});
  }
  for (const auto& [dialect, function] : functions) {
    const auto error = [&](const std::string& option) {
      auto text = function.second;
      text.replace(text.find('%'), 1, option);
      return run(folder,
                 "local m = require 'perigee." + dialect + "'\nlocal c = " + text + "\nreturn c",
                 "gpt")
          .error;
    };
    for (const auto& row : rows_of(dialect)) {
      if (row["section"] != function.first) continue;
      const std::string name = row["name"], type = row["type"];
      INFO(dialect << " " << name);
      const auto wrong = type == "function" ? "1" : "print";
      const auto said = error("['" + name + "'] = " + wrong);
      CHECK((contains(said, "s.lua:2: [" + dialect + "] " + name) || type == "any" ||
             contains(type, "function")));
      CHECK(contains(error("['" + name + "x'] = 1"),
                     fmt::format("s.lua:2: [{}] {} has no option \"{}x\", did you mean \"{}\"?",
                                 dialect, function.first, name, name)));
    }
  }
}

TEST_CASE("every option has the effect that its row documents, or warns") {
  // The sections of the systems' documentation.
  check_table("alpa", "PipeshardParallel", /*all=*/true);
  check_table("atorch", "auto_accelerate", /*all=*/true);
  check_table("autodist", "AutoDistConfig");
  check_table("epl", "Config");
  check_table("megatron", "ModelParallelConfig");
  for (const std::string dialect : {"alpa", "atorch", "autodist", "epl", "megatron"}) {
    INFO(dialect);
    check_effects(dialect);
  }
}

TEST_CASE("each migration page lists every option that is refused or has no effect") {
  const std::string begin = "<!-- options -->\n", end = "<!-- end of options -->\n";
  for (const std::string dialect : {"alpa", "atorch", "autodist", "epl", "megatron"}) {
    const auto path = "runtime/migration/from_" + dialect + ".md";
    CAPTURE(path);
    // Options with one effect for one reason share a row.
    std::vector<std::pair<std::string, std::string>> rows;
    const auto table = rows_of(dialect);
    for (const auto& row : table) {
      const std::string verdict = row["verdict"], section = row["section"], name = row["name"];
      if (verdict == "works" || verdict == "a rule" || verdict == "same plan") continue;
      INFO(name);
      REQUIRE(row.contains("says"));
      const auto effect = fmt::format("{} | {}", verdict, row["says"].get<std::string>());
      const auto title = section == table[0]["section"] ? name : section + "." + name;
      auto known = std::ranges::find(rows, effect, &std::pair<std::string, std::string>::second);
      if (known == rows.end()) {
        rows.emplace_back("", effect);
        known = std::prev(rows.end());
      }
      known->first += fmt::format("{}`{}`", known->first.empty() ? "" : ", ", title);
    }
    std::string text = "| option | effect | reason |\n|---|---|---|\n";
    for (const auto& [names, effect] : rows) text += fmt::format("| {} | {} |\n", names, effect);
    const auto page = read_file(path, "test");
    const auto at = page.find(begin), last = page.find(end);
    CHECK((at != page.npos) == !rows.empty());
    if (rows.empty()) continue;
    REQUIRE(last != page.npos);
    CHECK(golden_difference(path, page.substr(0, at) + begin + text + page.substr(last)) == "");
  }
}

TEST_CASE("the examples on the pages of the dialects run") {
  const Folder folder;
  for (const std::string page :
       {"dialects", "migration/from_alpa", "migration/from_atorch", "migration/from_autodist",
        "migration/from_epl", "migration/from_megatron"}) {
    const auto text = read_file("runtime/" + page + ".md", "test");
    size_t at = 0;
    int scripts = 0, jobs = 0;
    for (; (at = text.find("\n```", at)) != std::string::npos; ++at) {
      const auto begin = text.find('\n', at + 1), end = text.find("\n```", begin);
      const auto language = text.substr(at + 4, begin - at - 4);
      const auto block = text.substr(begin + 1, end - begin);
      INFO(page << "\n" << block);
      if (language == "lua") CHECK((++scripts, run(folder, block, "gpt").error) == "");
      if (language == "toml") CHECK((++jobs, run_job(block).error) == "");
      at = end;
    }
    CHECK(scripts >= 1);
    CHECK((jobs >= 1 || page == "migration/from_megatron"));
  }
}

TEST_CASE("equal options of different dialects give the same plan") {
  const Folder folder;
  const auto plan = [&](const std::string& text) {
    const auto outcome = run(folder, text, "gpt", 4);
    CHECK(outcome.error == "");
    return outcome.plan;
  };
  const auto megatron = plan(
      "local c = require('perigee.megatron').ModelParallelConfig { tensor_model_parallel_size = 2, "
      "enable_autocast = true, autocast_dtype = 'bf16' }\nreturn c");
  CHECK(plan("return select(3, require('perigee.atorch').auto_accelerate { model = 'a.toml', "
             "load_strategy = { { 'parallel_mode', { { 'tensor', 2 }, { 'data', 1 } } }, "
             "'tensor_parallel', { 'amp_native', 'bf16' } } })") == megatron);
  CHECK(plan("return { { 'parallel_mode', { { 'tensor', 2 }, { 'data', 1 } } }, 'tensor_parallel', "
             "{ 'amp_native', { dtype = 'bf16' } } }") == megatron);
  CHECK(plan("return { 'half' }") != megatron);
}

TEST_CASE("a dialect's table in a job has the same checks, with errors at its line") {
  const auto plan = run_job("[megatron]\ntensor_model_parallel_size = 2\nbf16 = true\n");
  CHECK(plan.error == "");
  const Folder folder;
  const auto script = run(folder,
                          "return require('perigee.megatron').ModelParallelConfig { "
                          "tensor_model_parallel_size = 2, bf16 = true }",
                          "gpt");
  CHECK(plan.plan == script.plan);
  const auto set = run_job("[megatron.LRSchedule]\nlr_decay_style = \"cosine\"\nmax_lr = 0.5\n");
  CHECK(set.strategy.set == std::vector<std::string>{"lr_schedule.kind=\"cosine\"",
                                                     "lr_schedule.min_lr=0", "lr_schedule.warmup=0",
                                                     "optimizer.lr=0.5"});
  CHECK(run_job("[megatron]\ntensor_model_parallel_sise = 2\n").error ==
        "[lua] job.toml:4:1: [megatron] ModelParallelConfig has no option "
        "\"tensor_model_parallel_sise\", did you mean \"tensor_model_parallel_size\"?");
  CHECK(run_job("[megatron]\nsequence_parallel = true\n").error ==
        "[lua] job.toml:4:1: [megatron] sequence_parallel needs tensor_model_parallel_size above "
        "1, but that is 1");
  CHECK_THAT(run_job("[megatron.LRSchedule]\nmax_lr = true\n").error,
             Catch::Contains("job.toml:4:1: [megatron] max_lr must be a number, but got true"));
  const auto starts = [](const std::string& job, const std::string& error) {
    const auto said = run_job(job).error;
    INFO(said);
    CHECK(said.starts_with("[lua] job.toml:" + error));
  };
  starts(
      "[megatron.DistributedOptimiser]\noverlap_grad_reduce = true\n",
      "3:11: [megatron] ModelParallelConfig has no option \"DistributedOptimiser\", did you mean "
      "\"DistributedOptimizer\"?");
  starts("[atorch]\nverbose = true\nload_strategy = [\"zero1\", \"fsdp\"]\n",
         "5:1: [atorch] zero1 and fsdp exclude each other");
  starts("[atorch]\nload_strategy = [[\"parallel_mode\", [[[\"dat\", 2]]]]]\n",
         "4:1: [atorch] parallel_mode has no axis \"dat\", did you mean \"data\"?");
  starts("[atorch]\nload_strategy = [[\"amp_native\", { dtyp = \"bf16\" }]]\n",
         "4:1: [atorch] amp_native has no option \"dtyp\", did you mean \"dtype\"?");
  starts("[atorch]\nload_strategy = [\"checkpont\"]\n",
         "4:1: [atorch] there is no method \"checkpont\", did you mean \"checkpoint\"?");
  starts("[atorch]\nmodel_input_format = \"unpack\"\n",
         "4:1: [atorch] model_input_format must be one of");
  starts("[epl.amp]\nlevel = \"O2\"\n", "4:1: [epl] amp.level must be one of");
  starts("[epl.pipeline]\nnum_micro_batches = 4\n",
         "4:1: [epl] Config has no option \"pipeline.num_micro_batches\"");
  starts("[epl.io]\ndrop_last_files = true\n",
         "4:1: [epl] io.drop_last_files leaves out the files that are left over, but");
  starts("[epl.gradient_checkpoint]\ntype = \"collection\"\n",
         "4:1: [epl] gradient_checkpoint.type = \"collection\" needs epl.checkpoints");
  starts("[epl.gradient_checkpoint]\ntype = \"auto\"\nend_taskgraph = 3\n",
         "5:1: [epl] gradient_checkpoint.end_taskgraph must be below");
  starts(
      "[epl.auto]\nauto_parallel = true\n[[epl.scopes.taskgraphs]]\nkind = \"replicate\"\n"
      "device_count = 2\nmatch = [\"a\"]\n",
      "4:1: [epl] auto.auto_parallel finds the stages, but there is replicate number 1");
  starts(
      "[[epl.scopes.taskgraphs]]\nkind = \"replicate\"\ndevice_count = 2\nmatch = [\"a\"]\n"
      "[[epl.scopes.taskgraphs]]\nkind = \"replicate\"\ndevice_count = 1\n",
      "7:1: [epl] replicate number 2 needs the scopes that it holds");
  starts("[alpa]\nnum_micro_batches = 2\nlayer_option = \"manual\"\n",
         "5:1: [alpa] manual layers begin at mark_pipeline_boundary");
  starts("[alpa.DataParallel]\n[alpa.Zero2Parallel]\n",
         "4:7: [alpa] a step has one method, but got DataParallel and Zero2Parallel");
  starts("[alpa.ShardParallel]\n[alpa.AutoLayerOption]\nlayer_num = 2\n",
         "4:7: [alpa] AutoLayerOption is an option of PipeshardParallel");
}

TEST_CASE("an error that needs the model names the line of the option that caused it") {
  const auto starts = [](const std::string& job, const std::string& error) {
    const auto said = run_job(job).error;
    INFO(said);
    CHECK(said.substr(said.find("] ") + 2).starts_with("job.toml:" + error));
  };
  starts("[megatron]\nbf16 = true\ntensor_model_parallel_size = 3\n",
         "5:1: [tensor_parallel] attention heads must divide over the 3 ranks");
  starts("[megatron]\nbf16 = true\ncontext_parallel_size = 3\n",
         "5:1: [context_parallel] a sequence must divide over the 3 ranks");
  starts("[megatron]\nexpert_model_parallel_size = 2\n",
         "4:1: [expert_parallel] a mixture of experts is needed");
  starts(
      "[megatron]\nbf16 = true\n[megatron.DistributedOptimizer]\n"
      "bucket_size = 100000000000000\n",
      "6:1: [grad_comm] bucket_mb must be above 0 and below 1000000");
  // Where several options set a method: the option that the error names.
  starts(
      "[megatron]\nbf16 = true\npipeline_model_parallel_size = 2\npipeline_dtype = \"float32\"\n"
      "virtual_pipeline_model_parallel_size = 2\nmicrobatch_group_size_per_vp_stage = 3\n",
      "8:1: [schedule] interleaved with 2 stages");
  starts(
      "[megatron]\ngradient_accumulation_fusion = true\noverlap_moe_expert_parallel_comm = true\n"
      "expert_model_parallel_size = 2\n",
      "6:1: [expert_parallel]");
  starts("[epl.zero]\nlevel = \"v0\"\n[epl.pipeline]\nnum_micro_batch = 3\n",
         "6:1: [plan] batch.global must divide over microbatches");
  starts(
      "[epl.gradient_checkpoint]\ntype = \"collection\"\n[epl.scopes]\ncheckpoints = [\"blocs\"]\n",
      "6:1: [checkpoint] kept must name modules of the row");
  starts("[atorch]\nverbose = true\nload_strategy = [[\"checkpoint\", [\"blocs\"]]]\n",
         "5:1: [checkpoint] a scope or module type must be one of the model's");
  starts("[alpa]\nnum_micro_batches = 2\n[alpa.AutoLayerOption]\nlayer_num = 1000\n",
         "6:1: [alpa] layer_num is at most the model's");
  starts("[alpa]\nmanual_sharding_option = { \"none.weight\" = { data = \"R\" } }\n",
         "4:1: [method] plan:place needs a match, but \"none.weight\" matches no parameter");
  starts("[autodist]\nmesh_col = 1\nrecompute_modules = \"lp\"\n",
         "5:1: [autodist] recompute_modules names a module of the model");
  starts("[autodist]\nload_plan_path = \"none.json\"\n",
         "4:1: [autodist] load_plan_path: there is");
  starts("[autodist]\nmesh_col = 1\nload_plan_path = \"/tmp/p.json\"\n",
         "5:1: [autodist] load_plan_path: a saved strategy is a .json file below");
  // Errors that no option caused: the head of the table.
  starts("[autodist]\nmesh_col = 1\nmemory_constraint = 0.001\n", "3:2: [autodist] of the");

  const Folder folder;
  const auto joined = run(folder,
                          "local m = require 'perigee.megatron'\n"
                          "local config = m.ModelParallelConfig {\n"
                          "  tensor_model_parallel_size = 3,\n}\n"
                          "local optimizer = m.DistributedOptimizer {}\n"
                          "return m.strategy { config, optimizer }",
                          "gpt");
  CHECK_THAT(joined.error, Catch::Contains("s.lua:2: [tensor_parallel] attention heads"));
}

TEST_CASE("an error of a shipped method names the line that uses it") {
  const Folder folder;
  const auto error =
      run(folder, "\nreturn {\n  { 'local_sgd', { every = 0 } },\n}", "gpt", 2).error;
  CHECK_THAT(error, Catch::StartsWith("[strategy] " + (folder.path / "s.lua:2: [lua]").string()));
  CHECK_THAT(error, Catch::Contains("local_sgd: every must be at least 1, but got 0"));
}

TEST_CASE("comparison ignores the places of methods, and saved strategies have none") {
  const Folder folder;
  const auto kept = run(folder,
                        "local s = require 'perigee.strategy'\n"
                        "local m = require 'perigee.megatron'\n"
                        "local a = m.ModelParallelConfig { bf16 = true }\n"
                        "local b = m.ModelParallelConfig { bf16 = true }\n"
                        "assert(a.places.half ~= b.places.half)\n"
                        "assert(s.compare(a, b))\n"
                        "s.save('kept.json', a)\n"
                        "assert(s.load('kept.json').places == nil)\n"
                        "return a",
                        "gpt");
  CHECK(kept.error == "");
}

TEST_CASE("parts of a dialect are joined and keep their places") {
  const Folder folder;
  const auto joined = run(folder,
                          "local m = require 'perigee.megatron'\n"
                          "local config = m.ModelParallelConfig { fp16 = true }\n"
                          "return m.strategy { config, m.LossScaler { growth_interval = 7 }, "
                          "m.DistributedOptimizer {}, job = 'a.toml' }",
                          "gpt");
  CHECK(joined.error == "");
  CHECK(joined.strategy.job == "a.toml");
  CHECK(joined.plan["precision"]["loss_scale"]["growth_interval"] == 7);
  REQUIRE(joined.strategy.origin);
  CHECK(joined.strategy.origin->by == "megatron");
  CHECK(joined.strategy.origin->sentence ==
        "written as {\"DistributedOptimizer\":{},\"LossScaler\":{\"growth_interval\":7},"
        "\"ModelParallelConfig\":{\"fp16\":true}}");
  CHECK_THAT(run(folder,
                 "local m = require 'perigee.megatron'\nlocal c = m.strategy { "
                 "m.ModelParallelConfig {}, m.ModelParallelConfig {} }\nreturn c",
                 "gpt")
                 .error,
             Catch::Contains("s.lua:2: [megatron] ModelParallelConfig stands twice"));
}
