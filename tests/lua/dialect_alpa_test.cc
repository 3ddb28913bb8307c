// Alpa's names (runtime/perigee/alpa.lua).
#include "base/error.h"
#include "tests/lua/support_dialect.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

TEST_CASE("Alpa's functions make a strategy of a method, boundaries and ranks") {
  const Folder folder;
  const auto with = [&](const std::string& text) {
    return run(folder, "local alpa = require 'perigee.alpa'\n" + text, "gpt");
  };
  const auto marked = with(
      "alpa.init { num_nodes = 1, num_devices_per_node = 4 }\n"
      "alpa.mark_pipeline_boundary { 'blocks.1', 'blocks.3' }\n"
      "return alpa.parallelize { job = 'a.toml', method = alpa.PipeshardParallel {\n"
      "num_micro_batches = 2, layer_option = 'manual', stage_option = alpa.ManualStageOption {\n"
      "forward_stage_layer_ids = { { 0, 1 }, { 2 } }, submesh_physical_shapes = { { 1, 2 }, { 1, 2 "
      "} },\n"
      "submesh_logical_shapes = { { 1, 2 }, { 1, 2 } }, submesh_autosharding_option_dicts = { {}, "
      "{} } } } }");
  CHECK(marked.error == "");
  CHECK(marked.strategy.job == "a.toml");
  CHECK(marked.strategy.set == std::vector<std::string>{"cluster.ranks=4"});
  CHECK(marked.plan["pipeline"]["starts"] == json{"blocks.3"});
  CHECK(marked.plan["mesh"]["axes"] ==
        json::parse(R"([{"name": "tensor", "size": 2}, {"name": "data", "size": 1},
                        {"name": "pipe", "size": 2}])"));
  // The same options as tables of a job.
  const auto job = run_job(
      "[alpa]\nnum_micro_batches = 2\nlayer_option = \"manual\"\n"
      "[alpa.marks]\nscopes = [\"blocks.1\", \"blocks.3\"]\n"
      "[alpa.stage_option.ManualStageOption]\nforward_stage_layer_ids = [[0, 1], [2]]\n"
      "submesh_logical_shapes = [[1, 2], [1, 2]]\n");
  CHECK(job.error == "");
  CHECK(job.plan == marked.plan);
  // The default method is ShardParallel; grad returns its function; model and optimizer belong to
  // the host.
  CHECK(with("return alpa.parallelize()").plan["search"]["pipe"] == 1);
  CHECK(with("return alpa.parallelize(alpa.grad(alpa.Zero2Parallel {}))").error == "");
  CHECK_THAT(with("alpa.optax.adam(1e-3)").error,
             Catch::Contains("s.lua:2: [alpa] optax.adam is refused: model, loss and optimizer"));
  CHECK_THAT(with("alpa.shutdown()").error, Catch::Contains("shutdown comes after init"));
  CHECK_THAT(with("alpa.mark_pipeline_boundary()").error,
             Catch::Contains("s.lua:2: [alpa] mark_pipeline_boundary names the scope"));
  CHECK_THAT(with("alpa.mark_pipeline_boundary 'blocks.1'\nreturn alpa.parallelize("
                  "alpa.PipeshardParallel {})")
                 .error,
             Catch::Equals(""));
  CHECK_THAT(
      with("return alpa.parallelize(alpa.PipeshardParallel { layer_option = 'manual' })").error,
      Catch::Contains("nothing is marked"));
  CHECK_THAT(with("local a = alpa.AutoLayerOption { layer_num = 2 }\nreturn a").error,
             Catch::Contains("this is an option of a method"));
  CHECK_THAT(with("return alpa.plan_to_method 'none.json'").error,
             Catch::Contains("there is no file"));
}

TEST_CASE("a script may parallelize several steps with marks and comparisons of their own") {
  const Folder folder;
  const std::string manual =
      "alpa.mark_pipeline_boundary 'blocks.3'\n"
      "local manual = alpa.parallelize(alpa.PipeshardParallel { num_micro_batches = 2, "
      "layer_option = 'manual' })\n";
  const std::string automatic =
      "local automatic = alpa.parallelize(alpa.PipeshardParallel { num_micro_batches = 4, "
      "layer_option = alpa.AutoLayerOption { layer_num = 2 }, stage_option = 'auto' })\n";
  const std::string again =
      "alpa.mark_pipeline_boundary 'blocks.1'\n"
      "local again = alpa.parallelize(alpa.PipeshardParallel { num_micro_batches = 2, "
      "layer_option = 'manual' })\n";
  const std::string begin =
      "local alpa = require 'perigee.alpa'\nalpa.init { num_devices_per_node = 4 }\n";
  const auto with = [&](const std::string& text) { return run(folder, begin + text, "gpt"); };
  const std::string all = manual +
                          "alpa.assert_allclose(1, manual, nil, 5e-3)\nalpa.shutdown()\n"
                          "alpa.init { num_devices_per_node = 2 }\n" +
                          automatic + again;
  const auto first = with(all + "return manual");
  CHECK(first.error == "");
  CHECK(first.plan == with(manual + "return manual").plan);
  CHECK(first.plan["pipeline"]["starts"] == json{"blocks.3"});
  CHECK(first.strategy.set == std::vector<std::string>{"cluster.ranks=4", "train.check_atol=0.005",
                                                       "train.check_gradients=true"});
  const auto second = with(all + "return automatic");
  CHECK(second.error == "");
  CHECK(second.strategy.warnings.empty());
  CHECK(second.strategy.set == std::vector<std::string>{"cluster.ranks=2"});
  CHECK(second.plan == with(automatic + "return automatic").plan);
  CHECK(second.plan["search"]["layers"] == 2);
  const auto third = with(all + "return again");
  CHECK(third.plan["pipeline"]["starts"] == json{"blocks.1"});
}
