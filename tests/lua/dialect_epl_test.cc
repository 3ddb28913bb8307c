// EPL's names (runtime/perigee/epl.lua).
#include <cstdlib>

#include "lua/strategy.h"
#include "tests/lua/support_dialect.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

TEST_CASE("environment variables are the defaults of EPL's options") {
  const Folder folder;
  const auto communicators = [&](const std::string& given) {
    return run(folder, "local c = require('perigee.epl').Config { " + given + " }\nreturn c",
               "gpt");
  };
  ::setenv("EPL_COMMUNICATION_NUM_COMMUNICATORS", "3", 1);
  ::setenv("EPL_COMMUNICATION_FP16", "true", 1);
  CHECK(communicators("").plan["communication"]["communicators"] == 3);
  CHECK(communicators("").plan["communication"]["reduce_dtype"] == "float16");
  CHECK(communicators("['communication.num_communicators'] = 4")
            .plan["communication"]["communicators"] == 4);
  const auto job = run_job("[epl.communication]\nmax_splits = 7\n");
  CHECK(job.plan["communication"]["communicators"] == 3);
  CHECK(job.plan["communication"]["buckets"] == 7);
  CHECK_THAT(communicators("").strategy.origin->sentence,
             Catch::Contains("\"communication.num_communicators\":3"));
  ::setenv("EPL_COMMUNICATION_FP16", "yes", 1);
  CHECK_THAT(communicators("").error,
             Catch::EndsWith("s.lua:1: [epl] EPL_COMMUNICATION_FP16: communication.fp16 must be "
                             "true or false, but got \"yes\""));
  ::unsetenv("EPL_COMMUNICATION_NUM_COMMUNICATORS");
  ::unsetenv("EPL_COMMUNICATION_FP16");
  ::setenv("EPL_AMP_LEVEL", "O1", 1);
  ::setenv("EPL_AMP_LOSS_SCALE", "64", 1);
  ::setenv("EPL_ZERO_LEVLE", "v0", 1);
  const auto scaled = communicators("");
  CHECK(scaled.plan["precision"]["loss_scale"]["init_scale"] == 64);
  CHECK(scaled.strategy.warnings ==
        std::vector<std::string>{"[epl] the environment's EPL_ZERO_LEVLE is no option, did you "
                                 "mean \"EPL_ZERO_LEVEL\"?"});
  ::unsetenv("EPL_AMP_LEVEL");
  ::unsetenv("EPL_AMP_LOSS_SCALE");
  ::unsetenv("EPL_ZERO_LEVLE");
}

TEST_CASE("EPL's automatic pipeline divides a model without blocks by its ops") {
  const Folder folder;
  graph::Graph graph;
  graph.scopes = {{"", "Net"}, {"first", "Linear"}, {"second", "Linear"}, {"head", "Linear"}};
  lua::StrategyScript script(
      folder.write("s.lua",
                   "local epl = require 'perigee.epl'\n"
                   "epl.init(epl.Config { ['auto.auto_parallel'] = true,\n"
                   "  ['pipeline.num_stages'] = 2, ['pipeline.num_micro_batch'] = 4,\n"
                   "  ['pipeline.strategy'] = 'PreferBackwardOptimizer',\n"
                   "  ['gradient_checkpoint.type'] = 'auto', ['zero.level'] = 'v1' })\n"
                   "local s = epl.strategy()\nreturn s"),
      options());
  std::map<std::string, json> uses;
  for (const auto& use : script.resolve({}, graph).methods) {
    uses[std::string(use.method->name())] = use.config.fields.empty() ? use.config.items
                                                                      : use.config.fields;
  }
  CHECK(uses["parallel_mode"] == json::parse(R"([["pipe", 2], ["data", 1]])"));
  CHECK(uses["pipeline_parallel"] ==
        json::parse(R"({"balance": "count", "schedule": "1f1b", "extra": 1})"));
  CHECK(uses["gradient_accumulation"] == json::parse(R"({"microbatches": 4})"));
  CHECK(uses["checkpoint"]["memory"] == "device");
  CHECK(uses.contains("zero2"));
}

TEST_CASE("EPL's scopes become stages and splits") {
  const Folder folder;
  const auto with = [&](const std::string& config, const std::string& scopes,
                        const std::string& model = "gpt") {
    return run(folder,
               "local epl = require 'perigee.epl'\nepl.init(epl.Config { " + config + " })\n" +
                   scopes + "\nreturn epl.strategy()",
               model);
  };
  const std::string two =
      "epl.replicate { device_count = 2, name = 'a', 'embed', 'blocks.0', 'blocks.1' }\n"
      "epl.replicate { device_count = 2, 'blocks.2', 'blocks.3', 'head' }";
  const auto staged = with("['pipeline.num_micro_batch'] = 4", two);
  CHECK(staged.error == "");
  CHECK(staged.plan["pipeline"]["starts"] == json{"blocks.2"});
  CHECK(staged.plan["pipeline"]["schedule"] == "1f1b");
  CHECK(staged.plan["mesh"]["axes"] ==
        json::parse(R"([{"name": "pipe", "size": 2}, {"name": "data", "size": 2}])"));
  CHECK_THAT(with("['pipeline.num_micro_batch'] = 4",
                  "epl.replicate { device_count = 2, 'embed', 'blocks.3' }\n"
                  "epl.replicate { device_count = 2, 'blocks.1' }")
                 .error,
             Catch::Contains("part 0 must hold \"blocks.3\", but that begins in part 1"));
  CHECK_THAT(with("['pipeline.num_micro_batch'] = 4",
                  "epl.replicate { device_count = 2, 'embed', 'nothere' }\n"
                  "epl.replicate { device_count = 2, 'blocks.1' }")
                 .error,
             Catch::Contains("\"nothere\""));
  const auto apart = with("['cluster.device_place_prefer_intra_node'] = false", two);
  CHECK(apart.plan["mesh"]["axes"][0]["name"] == "data");
  const auto split = with("", "epl.split { device_count = 2, 'head' }");
  CHECK(split.error == "");
  CHECK(split.plan["mesh"]["axes"][0] == json::parse(R"({"name": "tensor", "size": 2})"));
  CHECK(split.plan["placements"]["head.weight"] == "S0,R");
  const auto shared = with("['cluster.colocate_split_and_replicate'] = true",
                           "epl.set_default_strategy(epl.replicate { device_count = 2 })\n"
                           "epl.replicate { device_count = 2, 'blocks.*' }\n"
                           "epl.split { device_count = 2, 'head' }");
  CHECK(shared.error == "");
  CHECK(shared.plan["placements"]["head.weight"] == "S0");
  const auto experts = with("['cluster.colocate_split_and_replicate'] = true",
                            "epl.replicate { device_count = 2, 'embed' }\n"
                            "epl.split { device_count = 2, experts = true }",
                            "moe");
  CHECK(experts.error == "");
  CHECK(experts.plan["placements"]["blocks.0.experts.up"] == "S0");

  CHECK_THAT(with("", "epl.replicate { name = 'a', 'head' }").error,
             Catch::Contains("s.lua:3: [epl] replicate needs device_count, at least 1"));
  CHECK_THAT(with("", "epl.init()").error,
             Catch::Contains("s.lua:3: [epl] init is called once, but this is the second time"));
  // Taskgraphs on devices of their own are consecutive stages.
  const auto own = with("['pipeline.num_micro_batch'] = 2",
                        "epl.replicate { device_count = 2, 'blocks.*' }\n"
                        "epl.split { device_count = 2, 'head' }");
  CHECK(own.error == "");
  CHECK(own.plan["pipeline"]["starts"] == json{"head"});
  CHECK(own.plan["placements"]["head.weight"] == "R,S0");
  const auto splits = with("",
                           "epl.split { device_count = 2, 'blocks.0.mlp.up' }\n"
                           "epl.split { device_count = 2, 'head' }");
  CHECK(splits.error == "");
  CHECK(splits.plan["mesh"]["axes"] ==
        json::parse(R"([{"name": "tensor", "size": 2}, {"name": "pipe", "size": 2},
                        {"name": "data", "size": 1}])"));
  CHECK(splits.plan["pipeline"]["starts"] == json{"head"});
  CHECK(splits.plan["placements"]["head.weight"] == "S0,R,R");
  CHECK(splits.plan["placements"]["blocks.0.mlp.up.weight"] == "S0,R,R");
  CHECK_THAT(
      with("", "epl.replicate { device_count = 1, 'a' } epl.split { device_count = 1 }").error,
      Catch::Contains("[epl] split number 1 needs the scopes that it holds"));
  CHECK_THAT(
      with("['auto.auto_parallel'] = true", "epl.replicate { device_count = 1, name = 'a' }").error,
      Catch::Contains("auto.auto_parallel finds the stages, but there is replicate \"a\""));
  // Taskgraphs of several sizes are stages of submeshes.
  const auto sizes = with("['pipeline.num_micro_batch'] = 2",
                          "epl.replicate { device_count = 2, 'embed', 'blocks.0' }\n"
                          "epl.replicate { device_count = 1, 'blocks.1' }\n"
                          "epl.split { device_count = 3, 'head' }");
  CHECK(sizes.error == "");
  CHECK(sizes.plan["mesh"]["submeshes"] == json::parse(R"([{"data": 2}, {}, {"tensor": 3}])"));
  CHECK(sizes.plan["pipeline"]["starts"] == json{"blocks.1", "head"});
  CHECK(sizes.plan["placements"]["head.weight"] == "R,S0,R");
  CHECK_THAT(with("['cluster.colocate_split_and_replicate'] = true",
                  "epl.replicate { device_count = 1, 'blocks.*' }\n"
                  "epl.split { device_count = 2, 'head' }")
                 .error,
             Catch::Contains("has taskgraphs share their devices, but replicate number 1 has 1"));
  const auto whole = with("", "epl.split { device_count = 2, 'blocks.1' }");
  CHECK(whole.error == "");
  for (const char* layer : {"attn.qkv", "attn.out", "mlp.up", "mlp.down"}) {
    CHECK(whole.plan["placements"][std::string("blocks.1.") + layer + ".weight"] == "S0,R");
    CHECK_FALSE(whole.plan["placements"].contains(std::string("blocks.0.") + layer + ".weight"));
  }
  // Errors are at the line of their scope.
  const auto refused = [&](const std::string& more, const std::string& error) {
    const auto said = with("", more).error;
    INFO(said);
    CHECK(said.find(error) != std::string::npos);
  };
  refused("epl.replicate { device_count = 2, 'blocks.*', 'nothere' }",
          "s.lua:3: epl_scopes: a taskgraph names scopes or module types of the model, but got "
          "\"nothere\"");
  refused("epl.split { device_count = 1, 'blocks.0' }\nepl.split { device_count = 1 }",
          "s.lua:4: [epl] split number 2 needs the scopes that it holds");
  refused(
      "epl.split { device_count = 2, 'blocks.0.mlp.up' }\nepl.split { device_count = 2, 'hed' }",
      "s.lua:4: [plan] a pipeline is cut where the forward pass first reaches a scope, in the "
      "order of its starts, but it does not reach \"hed\", did you mean \"head\"?");
  CHECK_THAT(
      run_job("[[epl.scopes.taskgraphs]]\nkind = \"split\"\ndevice_count = 2\nmatch = [\"head\"]\n"
              "[[epl.scopes.taskgraphs]]\nkind = \"split\"\ndevice_count = 2\nmatch = [\"hed\"]\n")
          .error,
      Catch::Contains("job.toml:7:1: [plan] a pipeline is cut where"));
  const auto in_job = run_job(
      "[epl.pipeline]\nnum_micro_batch = 4\n[[epl.scopes.taskgraphs]]\nkind = \"replicate\"\n"
      "device_count = 2\nmatch = [\"embed\"]\n[[epl.scopes.taskgraphs]]\nkind = \"replicate\"\n"
      "device_count = 2\nmatch = [\"blocks.2\"]\n");
  CHECK(in_job.error == "");
  CHECK(in_job.plan == staged.plan);
}
