// Megatron-Core's names (runtime/perigee/megatron.lua).
#include <algorithm>

#include "base/error.h"
#include "lua/strategy.h"
#include "tests/lua/support_dialect.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

TEST_CASE("Megatron's option for query, key and value layers matches the layers of all models") {
  const Folder folder;
  const auto found = run(folder,
                         "return require('perigee.megatron').ModelParallelConfig { "
                         "tensor_model_parallel_size = 2, tp_comm_overlap = true, "
                         "tp_comm_overlap_disable_qkv = true }",
                         "gpt");
  CHECK(found.error == "");
  const auto& methods = found.strategy.methods;
  const auto overlap = std::ranges::find_if(
      methods, [](const auto& use) { return use.method->name() == "overlap"; });
  REQUIRE(overlap != methods.end());
  CHECK(overlap->config.fields["whole"] ==
        json({"**.attn.qkv", "**.attn.q", "**.attn.k", "**.attn.v"}));
}

TEST_CASE("each of a script's Megatron configs keeps its own functions") {
  const Folder folder;
  const std::string first =
      "local m = require 'perigee.megatron'\n"
      "local first = m.ModelParallelConfig { no_sync_func = function(plan)\n"
      "  plan:communication { overlap = false } end }\n";
  const std::string second =
      "m.ModelParallelConfig { no_sync_func = function(plan)\n"
      "  plan:communication { communicators = 2 } end }\n";
  const auto alone = run(folder, first + "return first", "gpt");
  const auto beside = run(folder, first + second + "return first", "gpt");
  CHECK(alone.error == "");
  CHECK(beside.error == "");
  CHECK(beside.plan == alone.plan);
  CHECK(beside.plan["communication"]["overlap"] == false);
}

TEST_CASE("functions that observe the training are called with a report of each step") {
  const Folder folder;
  const auto file = folder.write(
      "s.lua",
      "local megatron = require 'perigee.megatron'\n"
      "return megatron.ModelParallelConfig {\n"
      "  timers = function(report) print('step ' .. report.step .. ', ' .. #report.sections .. "
      "' sections, ' .. report.collectives[2].op .. report.collectives[2]['end']) end,\n"
      "  grad_scale_func = function(loss, step) return loss * 2 ^ step end }");
  std::vector<std::string> printed;
  auto with = options();
  with.print = [&](std::string_view text) { printed.emplace_back(text); };
  lua::StrategyScript script(file, with);
  REQUIRE(script.observes("step"));
  const auto section = [](const char* name, double begin, double end) {
    return json{{"name", name}, {"begin", begin}, {"end", end}};
  };
  const auto sections = json::array({section("micro_first", 0, 1), section("micro", 1, 2),
                                     section("micro_last", 2, 3), section("step", 3, 4)});
  const auto collective = [](const char* what, const char* op) {
    return json{{"what", what},    {"op", op},   {"parameters", {"a", "b"}},
                {"microbatch", 1}, {"begin", 2}, {"end", 2.5}};
  };
  const auto collectives = json::array(
      {collective("gradients", "comm::all_reduce"), collective("parameters", "comm::all_gather")});
  script.notify(
      "step",
      {{"step", 7}, {"grad_norm", 1.5}, {"sections", sections}, {"collectives", collectives}});
  CHECK(printed == std::vector<std::string>{"step 7, 4 sections, comm::all_gather2.5"});
  CHECK(script.observes("loss_scale"));
  CHECK(script.ask("loss_scale", 3) == 8);
  CHECK_THROWS_WITH(script.ask("steps", 3), Catch::Contains("but " + file + " has none"));

  const auto refused = [&](const std::string& events) {
    return run(folder, "return { methods = {}, events = " + events + " }", "gpt").error;
  };
  CHECK(refused("{ step = print }") == "");
  CHECK_THAT(refused("{ steps = print }"), Catch::Contains("did you mean \"step\"?"));
  CHECK_THAT(refused("{ step = 1 }"),
             Catch::Contains("the event step is a function, but got number"));
  lua::StrategyScript fails(
      folder.write("f.lua",
                   "return { methods = {},\nevents = { step = function() error 'no' end } }"),
      options());
  CHECK_THROWS_WITH(fails.notify("step", json::object()), Catch::Contains("f.lua:2: no"));
}

TEST_CASE("Megatron's timers have the names, counts and seconds of their level") {
  const Folder folder;
  const auto timers_at = [&](const std::string& level) {
    std::vector<std::string> printed;
    auto with = options();
    with.print = [&](std::string_view text) { printed.emplace_back(text); };
    lua::StrategyScript script(
        folder.write("t.lua",
                     "local m = require 'perigee.megatron'\n"
                     "return m.ModelParallelConfig { timers = m.Timers { " +
                         level +
                         "log = function(r)\n"
                         "  for _, t in ipairs(r.timers) do\n"
                         "    print(string.format('%d %s %d %g %g %g', r.step, t.name, t.count, "
                         "t.total, t.min, t.max))\n"
                         "  end\nend } }"),
        with);
    const auto interval = [](const char* key, const char* name, double begin, double end) {
      return json{{key, name}, {"begin", begin}, {"end", end}};
    };
    script.notify("step",
                  {{"step", 7},
                   {"sections",
                    {interval("name", "micro_first", 0, 1), interval("name", "micro", 1, 3),
                     interval("name", "micro", 3, 4.5), interval("name", "micro_last", 4.5, 5),
                     interval("name", "step", 5, 7)}},
                   {"collectives",
                    {interval("what", "gradients", 2, 2.5), interval("what", "gradients", 4, 5),
                     interval("what", "parameters", 6, 6.25)}}});
    return printed;
  };
  const std::vector<std::string> step = {"7 interval-time 1 7 7 7"};
  auto phases = step;
  for (const auto* timer : {"7 forward-backward 1 5 5 5", "7 all-grads-sync 2 1.5 0.5 1",
                            "7 params-all-gather 1 0.25 0.25 0.25", "7 optimizer 1 2 2 2"}) {
    phases.emplace_back(timer);
  }
  auto sections = phases;
  for (const auto* timer :
       {"7 micro_first 1 1 1 1", "7 micro 2 3.5 1.5 2", "7 micro_last 1 0.5 0.5 0.5"}) {
    sections.emplace_back(timer);
  }
  CHECK(timers_at("") == step);
  CHECK(timers_at("log_level = 0, ") == step);
  CHECK(timers_at("log_level = 1, ") == phases);
  CHECK(timers_at("log_level = 2, ") == sections);
  const auto refused = [&](const std::string& given) {
    return run(folder, "local m = require 'perigee.megatron'\nlocal t = m.Timers { " + given + " }",
               "gpt")
        .error;
  };
  CHECK_THAT(refused("log = print, log_level = 3"),
             Catch::Contains("s.lua:2: [megatron] Timers' log_level must be 0 (the step)"));
  CHECK_THAT(refused("log_level = 1"), Catch::Contains("Timers takes { log_level = 1, log ="));
  CHECK_THAT(refused("log = print, level = 1"), Catch::Contains("but got \"level\""));
}
