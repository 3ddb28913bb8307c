// The built-in models sharded over an axis: results of one device, and the expected collectives.
#include <fmt/format.h>

#include "graph/ops.h"
#include "shard/layouts/tensor_parallel.h"
#include "tests/parity/rules/support_plan.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

bool ends_with_any(const std::string& name, std::initializer_list<const char*> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](const char* end) { return name.ends_with(end); });
}

// Megatron's sharding of a transformer's weights.
plan::Plan split_over(const graph::Graph& graph, const std::string& axes, bool sequence) {
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(graph);
  plan.mesh = mesh::parse_axes(axes);
  shard::TensorParallel layers{.sequence = sequence};
  for (const auto& input : graph.inputs) {
    if (input.kind != graph::Input::Kind::parameter) continue;
    const auto& name = input.name;
    if (name == "embed.weight") {
      layers.weights[name] = shard::WeightSplit::vocabulary;
    } else if (ends_with_any(name, {"qkv.weight", "q.weight", "k.weight", "v.weight", "up.weight",
                                    "gate.weight", "head.weight", "experts.up"})) {
      layers.weights[name] = shard::WeightSplit::column;
    } else if (ends_with_any(name, {"out.weight", "down.weight", "experts.down"})) {
      layers.weights[name] = shard::WeightSplit::row;
    }
  }
  shard::place(plan, graph, layers);
  plan::verify(plan, graph);
  return plan;
}

// The collectives over "tensor" by phase, kind and size of a rank's result: "forward: 5
// all_reduce[4, 6, 24]", a line each. Scalars and vectors are left out.
std::string collectives_of(const graph::Graph& local) {
  std::map<std::string, int> counts;
  for (const auto& node : local.nodes) {
    if (!graph::is_collective(node.op)) continue;
    const auto& shape = local.type(node.outputs[0]).shape;
    if (shape.size() < 2) continue;
    ++counts[fmt::format(
        "{} {}({}) [{}]", node.phase == graph::Phase::forward ? "forward" : "backward",
        node.op.substr(6), node.get<std::string>("axis", ""), fmt::join(shape, ", "))];
  }
  std::string text;
  for (const auto& [what, count] : counts) text += fmt::format("{} x {}\n", count, what);
  return text;
}

std::string collectives_of(const Given& given, const std::string& axes, bool sequence) {
  const auto plan = split_over(given.graph, axes, sequence);
  const auto sharding = shard::propagate(given.graph, plan);
  return collectives_of(shard::partition(given.graph, sharding, plan, 0).graph);
}

// Two blocks: in each pass one for attention and one for the MLP; one for the embedding and one for
// the head; the sums of the cross entropy for 24 tokens.
const char* const kWhole =
    "5 x backward all_reduce(tensor) [4, 6, 96]\n"
    "1 x forward all_reduce(tensor) [2, 24]\n"
    "4 x forward all_reduce(tensor) [24, 96]\n"
    "1 x forward all_reduce(tensor) [4, 6, 96]\n";
const char* const kScattered =
    "10 x backward all_gather(tensor) [4, 6, 96]\n"
    "5 x backward reduce_scatter(tensor) [4, 3, 96]\n"
    "5 x forward all_gather(tensor) [4, 6, 96]\n"
    "1 x forward all_reduce(tensor) [2, 24]\n"
    "5 x forward reduce_scatter(tensor) [4, 3, 96]\n";
// The same with the experts' results for 24 tokens, and the weights of two experts for each.
const char* const kExperts =
    "2 x backward all_reduce(tensor) [1, 24, 2]\n"
    "2 x backward all_reduce(tensor) [1, 24, 96]\n"
    "3 x backward all_reduce(tensor) [4, 6, 96]\n"
    "1 x forward all_reduce(tensor) [2, 24]\n"
    "2 x forward all_reduce(tensor) [24, 96]\n"
    "3 x forward all_reduce(tensor) [4, 6, 96]\n";

// Wide enough that moving activations is cheaper than moving weights.
std::string wide(std::string keys) {
  const auto put = [&](const std::string& from, const std::string& to) {
    const auto at = keys.find(from);
    if (at != std::string::npos) keys.replace(at, from.size(), to);
  };
  put("width = 24", "width = 96");
  put("hidden = 40", "hidden = 160");
  put("vocab = 11", "vocab = 110");
  return keys;
}

TEST_CASE("rules: sharded transformers compute the result of one device") {
  for (const char* keys : {kGpt, kLlama, kMoe}) {
    torch::manual_seed(3);
    const auto given = built_in(keys, 4);
    const auto expected = exec::evaluate(given.graph, given.inputs, {.seed = 3});
    for (const char* axes : {"tensor=2", "tensor=3,data=2", "data=3,tensor=2"}) {
      for (bool sequence : {false, true}) {
        const auto plan = split_over(given.graph, axes, sequence);
        INFO(keys << axes << " sequence " << sequence << "\n" << plan::print(plan));
        CHECK(compare(given, plan, expected) == "");
      }
    }
  }
}

TEST_CASE("rules: a sharded GPT all-reduces once for each attention and MLP in each pass") {
  const auto given = built_in(wide(kGpt), 4);
  CHECK(collectives_of(given, "tensor=2", false) == kWhole);
}

TEST_CASE("rules: a sequence-sharded GPT gathers and scatters twice a block in each pass") {
  const auto given = built_in(wide(kGpt), 4);
  CHECK(collectives_of(given, "tensor=2", true) == kScattered);
}

TEST_CASE("rules: a sharded Llama all-reduces once for each attention and MLP in each pass") {
  const auto given = built_in(wide(kLlama), 4);
  CHECK(collectives_of(given, "tensor=2", false) == kWhole);
  CHECK(collectives_of(given, "tensor=2", true) == kScattered);
}

TEST_CASE("rules: experts sharded by tensor parallelism all-reduce once a block") {
  const auto given = built_in(wide(kMoe), 4);
  CHECK(collectives_of(given, "tensor=2", false) == kExperts);
}

// All weights replicated, the sequence sharded everywhere.
plan::Plan split_sequence(const graph::Graph& graph, const std::string& axes) {
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(graph);
  plan.mesh = mesh::parse_axes(axes);
  for (const char* name : {"tokens", "labels"}) {
    auto& placements = plan.placements[name];
    placements.assign(plan.mesh.axes.size(), mesh::Placement::open());
    placements[plan.mesh.find("context")] = mesh::Placement::shard(1);
  }
  plan::verify(plan, graph);
  return plan;
}

TEST_CASE("rules: a sharded sequence computes the result of one device") {
  for (const char* keys : {kGpt, kLlama}) {
    torch::manual_seed(4);
    const auto given = built_in(keys, 4);
    const auto expected = exec::evaluate(given.graph, given.inputs, {.seed = 3});
    for (const char* axes : {"context=2", "context=3,data=2", "data=2,context=2"}) {
      INFO(keys << axes);
      CHECK(compare(given, split_sequence(given.graph, axes), expected) == "");
    }
  }
}

TEST_CASE("rules: built-in models compute the same on random meshes with random placements") {
  const std::map<std::string, std::string> models = {
      {"gpt", kGpt},
      {"llama", "kind = 'llama'\nlayers = 1\nwidth = 24\nheads = 6\nkv_heads = 2\nvocab = 11\n"},
      {"moe", kMoe},
      {"mlp", kMlp},
      {"resnet", kResnet}};
  for (const auto& [name, keys] : models) {
    torch::manual_seed(5);
    const auto given = built_in(keys, 4);
    const auto expected = exec::evaluate(given.graph, given.inputs, {.seed = 3});
    for (uint64_t seed = 0; seed < 4; ++seed) {
      std::mt19937_64 random(seed);
      const auto plan = random_plan(given.graph, random, seed % 2 == 1);
      INFO(name << " seed " << seed << "\n" << plan::print(plan));
      CHECK(compare(given, plan, expected) == "");
    }
  }
}

}  // namespace
}  // namespace perigee::parity
