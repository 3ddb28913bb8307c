// The planner through the command: profile, plan, simulate, and strategies that call it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "plan/plan.h"
#include "tests/command/planning/planned_job.h"

using namespace perigee::test;
using nlohmann::json;

TEST_CASE("planned shardings of an unknown model train as one device does") {
  Folder folder;
  const std::string job =
      "strategies/resnet.toml --set model.dtype=float64 --set train.steps=2 "
      "--set train.validate_every=0 --set batch.global=4 --set cluster.device=cpu ";
  const auto text = run("plan " + job + "--strategy planned --explain", own_cache(folder));
  CHECK_THAT(text.out, Catch::Contains("axis tensor as the solver found: "));
  CHECK_THAT(text.out, Catch::Contains("which is optimal"));
  std::vector<std::string> losses;
  for (const std::string how : {"--strategy ddp --nproc 1", "--strategy planned --nproc 2"}) {
    const auto output = folder / std::to_string(losses.size());
    const auto ran = run("train " + job + how + " --set train.output=" + output, own_cache(folder));
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    const auto metrics = read(output + "/metrics.jsonl");
    losses.push_back(metrics.substr(metrics.find("\"loss\""), 18));
  }
  CHECK(losses[0] == losses[1]);
}

TEST_CASE("auto finds a plan for a described cluster and explains it") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto plan = run("plan " + job + " --cluster 8xh100", own_cache(folder));
  REQUIRE(plan.status == 0);
  const auto value = json::parse(plan.out);
  int64_t ranks = 1;
  for (const auto& axis : value["mesh"]["axes"]) ranks *= axis["size"].get<int64_t>();
  CHECK(ranks == 8);
  CHECK(value["prediction"]["step_seconds"].get<double>() > 0);
  const auto text = run("plan " + job + " --cluster 8xh100 --explain", own_cache(folder));
  CHECK_THAT(text.out, Catch::Contains("combinations the best is"));
  CHECK_THAT(text.out, Catch::Contains("(all of it estimated) on 8xh100"));
  CHECK_THAT(text.out, Catch::Contains("it is bound by"));
  // The plan trains like any strategy's.
  const auto two = run("plan " + job + " --nproc 2 -o " + (folder / "plan.json"),
                       own_cache(folder));
  REQUIRE(two.status == 0);
  const auto trained = run("train " + job + " --nproc 2 --plan " + (folder / "plan.json") +
                               " --set train.output=" + (folder / "run"),
                           own_cache(folder));
  CHECK(trained.status == 0);
}

TEST_CASE("auto shards experts and sequences as well as the simulator's best plan") {
  Folder folder;
  // All plans of the space, by the simulator.
  const auto strategy = folder.write("all.lua", R"(-- Judges every plan of the space.
local profiler, solver = require "perigee.profiler", require "perigee.solver"
return function(job)
  local long = job.model.kind == "gpt"
  local pins = { checkpoint = false, micro = 1, context = long and 2 or nil }
  local list, least, wide = assert(solver.candidates(pins, 1000)), math.huge, 0
  for _, candidate in ipairs(list) do
    local ok, taken = pcall(profiler.estimate, candidate.strategy)
    if ok then
      least = math.min(least, taken.seconds)
      if candidate.expert > 1 or candidate.context > 1 then wide = wide + 1 end
    end
  end
  local best = assert(solver.plan(pins))
  local taken = profiler.estimate(best).seconds
  assert(taken <= 1.02 * least, "the best takes " .. taken .. ", another " .. least)
  assert(wide > 5, wide .. " of " .. #list)
  return best
end
)");
  const auto model = [](const char* kind, const char* more) {
    return std::string("[model]\nkind = \"") + kind + "\"\nlayers = 2\nwidth = 512\nheads = 4\n" +
           more +
           "[data]\nsynthetic = true\nsequence = 256\n[batch]\nglobal = 8\n[cluster]\ndevice = "
           "\"cpu\"\n";
  };
  const auto mixture = folder.write(
      "moe.toml", model("moe", "hidden = 2048\nexperts = 8\ncapacity_per = \"sample\"\n"));
  const auto experts = run("plan " + mixture + " --cluster 8xh100 --nproc 4 --strategy " + strategy,
                           own_cache(folder));
  INFO(experts.err);
  REQUIRE(experts.status == 0);
  const auto dense = folder.write("gpt.toml", model("gpt", "vocab = 512\n"));
  const auto contexts = run("plan " + dense + " --cluster 8xh100 --nproc 4 --strategy " + strategy,
                            own_cache(folder));
  INFO(contexts.err);
  REQUIRE(contexts.status == 0);
  const auto plan = json::parse(contexts.out);
  const auto& axes = plan["mesh"]["axes"];
  CHECK(std::any_of(axes.begin(), axes.end(), [](const auto& axis) {
    return axis["name"] == "context" && axis["size"] == 2;
  }));
}

namespace {

// Runs the body of a strategy function, which asks the search and the programs and asserts.
void compare_with_model(const std::string& model, const std::string& data,
                        const std::string& arguments, const std::string& body) {
  Folder folder;
  const auto job = write_job(folder, model, data);
  const auto strategy = folder.write(
      "compare.lua",
      R"(local profiler, solver = require "perigee.profiler", require "perigee.solver"
return function()
)" + body +
          R"(  return {}
end
)");
  const auto planned = run("plan " + job + " " + arguments + " --strategy " + strategy,
                           own_cache(folder));
  INFO(planned.err);
  CHECK(planned.status == 0);
}

}  // namespace

TEST_CASE("auto predicts selective recomputation, also in 16 bits and in stages") {
  compare_with_model("kind = \"gpt\"\nlayers = 8\nwidth = 512\nheads = 8\nvocab = 512\n",
                     "sequence = 256\n", "--cluster 8xh100 --nproc 4",
                     R"(  for _, axes in ipairs { { 4, 1 }, { 1, 4 }, { 2, 2 } } do
    for _, methods in ipairs { {}, { { "half", { dtype = "bf16" } } }, { { "half", { dtype = "bf16", keep_weights = true } } } } do
      local before
      for _, how in ipairs { { false, 1 }, { "selective", 1 }, { "selective", 2 }, { "full", 1 } } do
        local pins = { tensor = axes[1], pipe = axes[2], micro = 1, checkpoint = how[1],
          every = how[2], sequence = axes[1] > 1, schedule = "1f1b", methods = methods }
        local found = assert(solver.candidates(pins, 1))[1]
        local taken = profiler.estimate(found.strategy)
        local bytes, seconds = found.bytes / taken.peak_bytes, found.seconds / taken.seconds
        local text = string.format("%s: bytes %.3f and seconds %.3f of its programs'", found.text, bytes, seconds)
        assert(0.9 < bytes and bytes < 1.1 and 0.8 < seconds and seconds < 1.2, text)
        assert(not before or (taken.peak_bytes < before.peak_bytes and taken.seconds > before.seconds), text)
        before = taken
      end
    end
  end
)");
}

TEST_CASE("auto predicts the memory of a stage with both ends of a tied model") {
  compare_with_model("kind = \"gpt\"\nlayers = 16\nwidth = 256\nheads = 4\nvocab = 4096\n",
                     "sequence = 128\n", "--cluster 8xh100 --nproc 8 --set batch.global=32",
                     R"(  for _, schedule in ipairs { "zbv", "v_half", "dualpipe_v" } do
    for zero = 0, 3 do
      local pins = { data = 2, pipe = 4, micro = 1, zero = zero, schedule = schedule, checkpoint = false }
      local found = assert(solver.candidates(pins, 1))[1]
      local taken = profiler.estimate(found.strategy)
      local bytes = found.bytes / taken.peak_bytes
      assert(0.8 < bytes and bytes < 1.25, string.format("%s: bytes %.3f of its programs'", found.text, bytes))
    end
  end
)");
}

TEST_CASE("auto predicts the waits between the reductions of buckets") {
  compare_with_model(
      "kind = \"gpt\"\nlayers = 8\nwidth = 2048\nheads = 16\nvocab = 512\n", "sequence = 2048\n",
      "--cluster 32x8xh100 --nproc 16 --set batch.global=64",
      R"(  for _, pins in ipairs { { data = 16 }, { data = 8, tensor = 2, sequence = true },
    { data = 8, pipe = 2, schedule = "interleaved", chunks = 2 } } do
    pins.micro, pins.zero, pins.checkpoint, pins.methods = 1, 2, false, { { "half", { dtype = "bf16" } } }
    local found = assert(solver.candidates(pins, 1))[1]
    local seconds = found.seconds / profiler.estimate(found.strategy).seconds
    assert(0.93 < seconds and seconds < 1.07, string.format("%s: seconds %.3f of its programs'", found.text, seconds))
  end
)");
}

TEST_CASE("if no plan fits the memory, plan exits with 3 and reports the missing bytes") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto with_memory = [&](double bytes) {
    return folder.write("tiny.toml", R"(format = "perigee.cluster/1"
name = "tiny"
[[device]]
name = "d"
count = 2
bandwidth = 1e9
peak = { float32 = 1e9 }
source = "a test"
memory = )" + std::to_string(bytes) +
                                         R"(
[[link]]
level = "host"
ranks = 2
latency = 1e-6
bandwidth = 1e9
source = "a test"
)");
  };
  auto cluster = with_memory(1e5);
  const auto refused = run("plan " + job + " --cluster " + cluster, own_cache(folder));
  CHECK(refused.status == 3);
  CHECK_THAT(refused.err, Catch::Contains("no plan fits"));
  CHECK_THAT(refused.err, Catch::Contains("more than the limit of 89.8 KiB"));
  // With the reported memory a plan fits; with a tenth less none does.
  std::smatch said;
  REQUIRE(std::regex_search(refused.err, said,
                            std::regex("and fits with ([0-9.]+) (KiB|MiB) more than")));
  const double more = std::stod(said[1]) * (said[2] == "KiB" ? 1 << 10 : 1 << 20);
  const double needed = 1e5 + more / 0.92;
  CHECK(run("plan " + job + " --cluster " + with_memory(needed), own_cache(folder)).status == 0);
  CHECK(run("plan " + job + " --cluster " + with_memory(0.9 * needed), own_cache(folder)).status ==
        3);
  cluster = with_memory(1e5);
  // The plan of a fixed strategy is refused as well.
  for (const std::string strategy : {"fsdp", "pipeline_parallel"}) {
    const auto given = run(
        "plan " + job + " --nproc 2 --cluster " + cluster + " --strategy " + strategy,
        own_cache(folder));
    CHECK(given.status == 2);
    CHECK(given.out == "");
    CHECK_THAT(given.err, Catch::Contains(" more than the 97.7 KiB of its device: use more ranks"));
    CHECK((given.err.find("(stage ") != given.err.npos) == (strategy == "pipeline_parallel"));
  }
  const auto script = folder.write("fits.lua",
                                   "-- Returns the solver's answer, or nil and why.\n"
                                   "local solver = require \"perigee.solver\"\n"
                                   "return function() return solver.plan {} end\n");
  const auto none = run("plan " + job + " --cluster " + cluster + " --strategy " + script,
                        own_cache(folder));
  CHECK(none.status == 3);
  CHECK_THAT(none.err, Catch::Contains("fits.lua returned nothing: ") &&
                           Catch::Contains("more than the limit of 89.8 KiB"));
  const auto unknown = run("plan " + job + " --cluster 8xh10", own_cache(folder));
  CHECK(unknown.status == 2);
  CHECK_THAT(unknown.err, Catch::Contains("did you mean \"8xh100\"?"));
  CHECK(run("train " + job + " --cluster 8xh100", own_cache(folder)).status == 2);
}

TEST_CASE("a plan that cannot be compiled is an error at the line of its method") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto strategy = folder.write("sliced.lua", R"(local m = require "perigee.methods"
return {
  m.parallel_mode { { "tensor", 2 }, { "data", 1 } },
  m.overlap { slices = 2 },
  m.grad_comm { bucket_mb = 1 },
}
)");
  for (const std::string command : {"plan ", "train ", "simulate "}) {
    INFO(command);
    const auto ran = run(command + job + " --nproc 2 --strategy " + strategy +
                             (command == "train " ? " --set train.output=" + (folder / "run") : ""),
                         own_cache(folder));
    CHECK(ran.status == 2);
    CHECK_THAT(ran.err, Catch::Contains("sliced.lua:4: [overlap] slices cut matrix products"));
  }
}

TEST_CASE("a plan's file marks estimates, and is refused without microbatches") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto told = run("plan " + job + " --cluster 8xh100 --explain", own_cache(folder));
  CHECK_THAT(told.out,
             Catch::Contains("predicted step time: ") && Catch::EndsWith(" s (estimate)\n"));
  const auto made = run("plan " + job + " --nproc 2 --strategy ddp --json", own_cache(folder));
  for (const int count : {0, -1}) {
    auto plan = json::parse(made.out);
    plan["microbatches"] = count;
    const auto file = folder.write("plan.json", plan.dump());
    const auto refused = run("plan " + job + " --plan " + file, own_cache(folder));
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, Catch::Contains("microbatches is at least 1"));
  }
}

TEST_CASE("only ranks of one of the hosts that a plan is for hold one copy of the weights") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto explained = [&](const std::string& ranks) {
    const auto ran = run("plan " + job + " --strategy zero1 --explain " + ranks, own_cache(folder));
    REQUIRE(ran.status == 0);
    return ran.out;
  };
  CHECK_THAT(explained("--nproc 4"), Catch::Contains("one copy in memory"));
  CHECK_THAT(explained("--nproc 2 --nodes 2"), !Catch::Contains("one copy in memory"));
}

TEST_CASE("simulate writes a trace with every rank's streams") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto ran = run(
      "simulate " + job + " --strategy 3d --nproc 8 --trace " + (folder / "trace.json"),
      own_cache(folder));
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.out, Catch::StartsWith("a step on this machine's CPU takes "));
  const auto trace = json::parse(read(folder / "trace.json"));
  CHECK(trace["traceEvents"].size() > 100);
}

TEST_CASE("one rank measures the ops of plans for several ranks, also of experts and stages") {
  Folder folder;
  const auto job = write_job(
      folder, "kind = \"moe\"\nlayers = 2\nwidth = 32\nheads = 2\nexperts = 4\ncapacity = 0\n",
      "sequence = 16\n");
  const auto script = [&](const std::string& methods) {
    return folder.write("ask.lua", R"(local profiler = require "perigee.profiler"
local strategy = )" + methods + R"(
return function(job, graph)
  local taken = profiler.measure(strategy, 20)
  assert(taken.ops > 20 and taken.measured == taken.ops, taken.measured .. " of " .. taken.ops)
  assert(taken.measured_share > 0.1)
  return strategy
end
)");
  };
  for (const std::string methods :
       {R"({ { "parallel_mode", { { "expert", 2 } } }, { "expert_parallel", {} } })",
        R"({ { "parallel_mode", { { "pipe", 2 } } }, { "pipeline_parallel", {} },
  { "gradient_accumulation", { microbatches = 4 } } })"}) {
    const auto ran = run("plan " + job + " --nproc 2 --strategy " + script(methods),
                         own_cache(folder));
    INFO(ran.err);
    CHECK(ran.status == 0);
  }
}

TEST_CASE("a strategy function asks for plans, candidates and times") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto strategy = folder.write("ask.lua", R"(-- Asks the planner.
local solver, profiler = require "perigee.solver", require "perigee.profiler"
return function(job, graph)
  local list = assert(solver.candidates({}, 5))
  assert(#list == 5 and list[1].seconds <= list[5].seconds)
  local best = assert(solver.plan { pipe = 2, zero = 0 })
  local taken = profiler.estimate(best)
  assert(taken.seconds > 0 and taken.peak_bytes > 0 and taken.measured_share == 0)
  local more = profiler.estimate(best, { reserve = 1, optimizer_resident = 100 })
  assert(more.peak_bytes > 10 * taken.peak_bytes and more.seconds == taken.seconds)
  local more = { { "parallel_mode", { { "pipe", 2 }, { "data", 1 } } }, { "pipeline_parallel", {} },
    { "checkpoint", { "blocks.*" } }, { "overlap", { receives = true } } }
  local costs = profiler.costs(more)
  assert(#costs == 3 and costs[1].method == "pipeline_parallel" and costs[1].refused)
  assert(costs[2].seconds > 0 and costs[2].bytes < 0)  -- recomputes, keeps less
  assert(costs[3].bytes > 0)  -- messages have memory of their own
  local tried = assert(solver.search({ data = 2 }, { algorithm = "combination", variables = {
    { { zero = 0 }, { zero = 1 }, { zero = 0, data = 1 } }, { { checkpoint = false }, { checkpoint = true } } } }))
  assert(tried.ended == "all" and tried.combinations == 6 and #tried.trials == 4)
  for _, trial in ipairs(tried.trials) do assert(trial.seconds >= tried.seconds and #trial.options == 2) end
  local few = assert(solver.search({}, { trials = 2, time_limit = 100, variables = { { { zero = 0 }, { zero = 1 } } } }))
  assert(#few.trials <= 2 and few.seconds > 0)
  local none, why = solver.search({ zero = 9 }, { variables = { { {} } } })
  assert(none == nil and why:find("zero is 0, 1, 2 or 3"))
  local products, exchanges = 0, 0
  for _, op in ipairs(profiler.op_times(more)) do
    assert(op.runs > 0 and op.seconds >= 0 and op.measured_share <= 1)
    if op.op == "aten::mm" and op.scope:find "^blocks" then products = products + op.flops end
    if op.stream then exchanges = exchanges + 1 end
  end
  assert(products > 0 and exchanges > 0)
  local one = profiler.costs(more, "checkpoint")
  assert(#one == 1 and one[1].seconds == costs[2].seconds)
  return best
end
)");
  const auto plan = run("plan " + job + " --nproc 2 --strategy " + strategy, own_cache(folder));
  INFO(plan.err);
  REQUIRE(plan.status == 0);
  CHECK(json::parse(plan.out)["pipeline"]["axis"] == "pipe");
}

TEST_CASE("a search keeps the placements of a script's methods") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto strategy = folder.write("placed.lua", R"(-- Splits the words over tensor ranks.
local m, solver = require "perigee.methods", require "perigee.solver"
local split = m.define { name = "split_words",
  apply = function(plan) plan:note(plan:place("embed.weight", "tensor", "S0") .. " placed") end }
return function()
  return (assert(solver.plan { tensor = 2, data = 1, methods = { split {} } }))
end
)");
  const auto plan = run("plan " + job + " --nproc 2 --strategy " + strategy, own_cache(folder));
  INFO(plan.err);
  REQUIRE(plan.status == 0);
  const auto value = json::parse(plan.out);
  CHECK(value["decisions"].dump().find("1 placed") != std::string::npos);
  CHECK(value["placements"]["embed.weight"].get<std::string>().starts_with("S0"));
}

TEST_CASE("a method that a script defines reports its cost, or its plan's cost counts") {
  Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto strategy = folder.write("costs.lua", R"(-- Prices methods of its own.
local m, profiler = require "perigee.methods", require "perigee.profiler"
local pieces = m.define { name = "pieces", fields = { count = "integer" },
  apply = function(plan, config) plan:microbatches(config.count) end }
local taxed = m.define { name = "taxed", fields = { tax = { type = "number", default = 2 } },
  apply = function(plan) plan:note "taxed" end,
  cost = function(config, request, with, without)
    assert(request.world == 2 and request.mesh[1][2] == 2)
    assert(with.seconds == without.seconds and with.bytes == without.bytes)
    return { seconds = config.tax }
  end }
local relies = m.define { name = "relies", apply = function(plan) plan:note "more" end }
local wrong = m.define { name = "wrong", apply = function(plan) plan:note "wrong" end,
  cost = function() return { second = 1 } end }
return function()
  local base = { "parallel_mode", { { "data", 2 } } }
  local costs = profiler.costs { base, pieces { count = 2 }, taxed {}, "local_sgd" }
  assert(#costs == 3 and costs[1].method == "pieces" and not costs[1].own)
  assert(costs[1].bytes < 0 and costs[1].seconds ~= 0)  -- half of the activations at once
  assert(costs[2].own and costs[2].seconds == 2 and costs[2].bytes == 0)
  assert(costs[3].method == "local_sgd" and costs[3].seconds ~= 0)
  assert(profiler.estimate { base, pieces { count = 2 } }.seconds > 0)
  local alone = profiler.costs({ base, relies {} }, "relies")
  assert(alone[1].seconds == 0 and alone[1].bytes == 0)
  local ok, why = pcall(profiler.costs, { base, wrong {} })
  assert(not ok and why:find("did you mean \"seconds\"?", 1, true), why)
  return { base, pieces { count = 2 }, taxed { tax = 1 } }
end
)");
  const auto plan = run("plan " + job + " --nproc 2 --strategy " + strategy, own_cache(folder));
  INFO(plan.err);
  REQUIRE(plan.status == 0);
  CHECK(json::parse(plan.out)["microbatches"] == 2);
  // Code within such a call counts as the script's time.
  const auto endless = folder.write("endless.lua", R"(-- Never ends.
local m, profiler = require "perigee.methods", require "perigee.profiler"
local endless = m.define { name = "endless", apply = function() while true do end end }
return function() return profiler.costs { endless {} } end
)");
  const auto stopped = run("plan " + job + " --script-seconds 0.2 --strategy " + endless,
                           own_cache(folder));
  CHECK(stopped.status == 2);
  CHECK_THAT(stopped.err, Catch::Contains("ran longer than 0.2"));
}

TEST_CASE("AutoDist's batch and mesh options determine the plans that the search looks at") {
  const Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto planned = [&](const std::string& more) {
    const auto ran = run("plan " + job + " --set batch.global=16 --explain -o " +
                             (folder / "plan.json") + " " + more,
                         own_cache(folder));
    INFO(more << "\n" << ran.err);
    REQUIRE(ran.status == 0);
    return ran.out;
  };
  planned(
      "--nproc 4 --set autodist.mesh_col=4 --set autodist.micro_batch_size=2 --set "
      "autodist.update_freq=8");
  const auto plan = perigee::plan::parse(read(folder / "plan.json"));
  CHECK(plan.microbatches == 8);
  CHECK(plan.mesh.size() == 4);
  CHECK(2 % plan.mesh.size_of("data") == 0);  // of the two samples of a microbatch
  // Eight ranks as hosts x devices of each: fewer devices of a host leave more to the network.
  double before = 0;
  for (const auto& [hosts, devices] : {std::pair(1, 8), {2, 4}, {4, 2}, {8, 1}}) {
    const auto out = planned(
        fmt::format("--cluster 32x8xh100 --set autodist.mesh_row={} --set autodist.mesh_col={}",
                    hosts, devices));
    const std::string mark = "a step takes ";
    const auto at = out.find(mark);
    REQUIRE(at != std::string::npos);
    std::istringstream text(out.substr(at + mark.size()));
    double time = 0;
    std::string unit;
    REQUIRE((text >> time >> unit));
    INFO(out);
    REQUIRE((unit == "us" || unit == "ms"));
    if (unit == "ms") time *= 1000;
    CHECK(time > before);
    before = time;
  }
}
