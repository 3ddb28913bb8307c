// Automatic stages beside a sweep: no plan of given data, tensor and pipeline sizes takes a shorter
// simulated step, for the models and clusters of Alpa's evaluation (Zheng et al. 2022, section 8).
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/command/planning/planned_job.h"

using namespace perigee::test;
using nlohmann::json;

namespace {

struct Model {
  std::string name, keys, data;
  int64_t batch = 0, microbatches = 0;
  std::string methods = "";  // that every plan has
};

// The script prints a line for each plan of the sweep that is refused or needs too much memory, and
// then its figures. A plan may be refused because sizes do not divide, or for too few blocks.
std::string script(const Model& model, int64_t world) {
  return fmt::format(R"lua(
local profiler, solver = require "perigee.profiler", require "perigee.solver"
local world, microbatches, batch = {}, {}, {}

-- Returns the most microbatches, at most those of the stages, whose samples divide over the data ranks.
local function most_microbatches(data)
  for count = microbatches, 1, -1 do
    if batch % count == 0 and batch / count % data == 0 then return count end
  end
end

return function()
  local found = assert(solver.stage_table {{ microbatches = microbatches, views = "all",
    methods = {{ {} }} }})
  for _, judged in ipairs(found.judged) do
    assert(not (judged.refused or ""):find "matches none", judged.refused)
  end
  local chosen = profiler.estimate(found.strategy)
  local available, tried, count, best = found.rows[1].available, 0, 0, nil
  local skipped = {{ divide = 0, blocks = 0, memory = 0 }}
  assert(chosen.peak_bytes <= available, "the chosen plan needs too much memory")
  local size = {{}}
  for n = 1, world do if world % n == 0 then size[#size + 1] = n end end
  for _, tensor in ipairs(size) do
    for _, pipe in ipairs(size) do
      local data = world / tensor / pipe
      if data == math.floor(data) then
        for _, more in ipairs(data > 1 and {{ {{}}, {{ "zero2" }} }} or {{ {{}} }}) do
          local several = assert(most_microbatches(data), "the batch is smaller than the data ranks")
          local strategy = {{ {{ "parallel_mode", {{ {{ "tensor", tensor }}, {{ "data", data }}, {{ "pipe", pipe }} }} }},
            {{ "gradient_accumulation", {{ microbatches = several }} }}, {} }}
          if tensor > 1 then strategy[#strategy + 1] = {{ "tensor_parallel", {{}} }} end
          if pipe > 1 then strategy[#strategy + 1] = {{ "pipeline_parallel", {{}} }} end
          for _, method in ipairs(more) do strategy[#strategy + 1] = method end
          local text = string.format("data %d, tensor %d, pipe %d, %d microbatches%s", data, tensor, pipe, several,
            more[1] and ", zero2" or "")
          local ok, taken = pcall(profiler.estimate, strategy)
          tried = tried + 1
          if ok and taken.peak_bytes <= available then
            count = count + 1
            if not best or taken.seconds < best.seconds then best = {{ seconds = taken.seconds, text = text }} end
          else
            local why = ok and string.format("%.3g of %.3g bytes of memory", taken.peak_bytes, available) or taken
            local kind = ok and "memory" or why:find "must divide" and "divide"
              or why:find "stages of .* need .* blocks" and "blocks"
            assert(kind, text .. " is refused for another reason: " .. why)
            skipped[kind] = skipped[kind] + 1
            print("SKIPPED " .. text .. ": " .. why)
          end
        end
      end
    end
  end
  assert(count > 2, "only " .. count .. " plans of the sweep can be compiled and fit")
  print(string.format("FIGURES %.6g %.6g %d %d %d %d %d %d stages, best of the sweep: %s", chosen.seconds, best.seconds,
    tried, count, skipped.divide, skipped.blocks, skipped.memory, #found.stages, best.text))
  return found.strategy
end
)lua",
                     world, model.microbatches, model.batch, model.methods, model.methods);
}

// `seconds`: the hard time-out of the command.
void sweep(const Model& model, int64_t world, double seconds) {
  INFO(model.name << " on " << world);
  Folder folder;
  const auto job = folder.write(
      "job.toml",
      fmt::format(
          "[model]\n{}\n[data]\nsynthetic = true\n{}[batch]\nglobal = {}\n[optimizer]\nname "
          "= \"adam\"\n[cluster]\ndevice = \"cpu\"\n",
          model.keys, model.data, model.batch));
  auto how = own_cache(folder);
  how.seconds = seconds;
  const auto planned = run(
      fmt::format("plan {} --cluster 8x8xv100 --nproc {} --script-seconds 100000 --strategy {}",
                  job, world, folder.write("sweep.lua", script(model, world))),
      how);
  INFO(planned.err);
  REQUIRE(planned.status == 0);
  for (size_t at = 0; (at = planned.err.find("SKIPPED ", at)) != std::string::npos; ++at) {
    std::printf("  %s\n", planned.err.substr(at, planned.err.find('\n', at) - at).c_str());
  }
  const auto at = planned.err.find("FIGURES ");
  REQUIRE(at != std::string::npos);
  double chosen = 0, best = 0;
  int tried = 0, swept = 0, divide = 0, blocks = 0, memory = 0;
  REQUIRE(std::sscanf(planned.err.c_str() + at, "FIGURES %lf %lf %d %d %d %d %d", &chosen, &best,
                      &tried, &swept, &divide, &blocks, &memory) == 7);
  CHECK(chosen > 0);
  CHECK(chosen <= best);
  CHECK(swept + divide + blocks + memory == tried);
  const auto text = planned.err.substr(at, planned.err.find('\n', at) - at);
  std::printf(
      "%s, %ld ranks: %s\n  of %d plans %d are compared, %d skipped: sizes do not divide %d, more "
      "stages than blocks %d, memory %d\n",
      model.name.c_str(), static_cast<long>(world), text.c_str(), tried, swept, tried - swept,
      divide, blocks, memory);
}

const char* const kSmallGpt =
    "kind = \"gpt\"\nlayers = 4\nwidth = 256\nheads = 4\nvocab = 512\ndtype = \"float32\"";
const char* const kSmallMoe =
    "kind = \"moe\"\nlayers = 2\nwidth = 256\nheads = 4\nhidden = 1024\nvocab = 512\nexperts = "
    "4\ndtype = \"float32\"";

}  // namespace

TEST_CASE("automatic stages are not slower than any plan of a sweep over sizes") {
  sweep({"gpt", kSmallGpt, "sequence = 128\n", 32, 8}, 8, 60);
  sweep({"moe", kSmallMoe, "sequence = 128\n", 32, 8}, 8, 60);
}

TEST_CASE("automatic stages of Alpa's models are not slower than any plan of a sweep", "[.long]") {
  // Sizes of Alpa's table 5 (GPT-3 and GShard MoE) and wide ResNet; the batches are reduced.
  const std::string recompute = "{ \"checkpoint\", { \"blocks.*\" } }, { \"half\", {} }";
  const auto gpt = [&](const char* name, int64_t layers, int64_t width, int64_t heads) {
    return Model{fmt::format("GPT {}", name),
                 fmt::format("kind = \"gpt\"\nlayers = {}\nwidth = {}\nheads = {}\nvocab = 51200",
                             layers, width, heads),
                 "sequence = 1024\n",
                 128,
                 16,
                 recompute};
  };
  const auto moe = [&](const char* name, int64_t layers, int64_t width, int64_t experts) {
    return Model{fmt::format("MoE {}", name),
                 fmt::format("kind = \"moe\"\nlayers = {}\nwidth = {}\nheads = 16\nhidden = "
                             "{}\nvocab = 32000\nexperts = {}",
                             layers, width, 4 * width, experts),
                 "sequence = 1024\n",
                 128,
                 16,
                 recompute};
  };
  const auto resnet = [&](const char* name, int64_t depth, int64_t width) {
    return Model{fmt::format("wide ResNet {}", name),
                 fmt::format("kind = \"resnet\"\ndepth = {}\nwidth = {}\nimage = 224\nclasses = "
                             "1024\ndtype = \"float32\"",
                             depth, width),
                 "",
                 256,
                 8,
                 ""};
  };
  for (const auto& [world, models] : std::vector<std::pair<int64_t, std::vector<Model>>>{
           {8, {gpt("2.6B", 32, 2560, 32), moe("2.4B", 16, 1024, 16), resnet("1B", 50, 320)}},
           {16, {gpt("6.7B", 32, 4096, 32), moe("10B", 16, 1536, 32), resnet("2B", 50, 448)}},
           {32, {gpt("15B", 48, 5120, 32), moe("27B", 16, 2048, 48), resnet("4B", 101, 448)}}}) {
    for (const auto& model : models) {
      DYNAMIC_SECTION(model.name << " on " << world) { sweep(model, world, 3600); }
    }
  }
}
