// Each method changes the program, and methods that save memory save the expected bytes. A golden
// file has the collectives of each shipped method's program.
#include <fmt/format.h>

#include <set>

#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/golden.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

const std::string kEffectsDeep =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\n";

// A method of a strategy, its mesh, and another model if it requires one.
struct Effect {
  std::string method, config, axes;
  std::string model = kEffectsDeep;
  std::string beside = "";  // further methods, as data
  int64_t rank = 0;         // the rank whose program the method changes
};

const std::string kEffectsExperts =
    "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 12\nexperts = 6\n"
    "top_k = 1\ncapacity_per = 'sample'\n";
const std::string kEffectsTwo = R"(["data", 2])";

const std::vector<Effect>& effects() {
  static const std::vector<Effect> rows = {
      {"tensor_parallel", "{}", R"(["tensor", 2])"},
      {"tensor_parallel", R"({"sequence": true})", R"(["tensor", 2])"},
      {"sequence_parallel", "{}", R"(["sequence", 2])"},
      {"context_parallel", "{}", R"(["context", 2])"},
      {"context_parallel", R"({"attention": "ring"})", R"(["context", 2])"},
      {"pipeline_parallel", "{}", R"(["pipe", 2])"},
      {"pipeline_parallel", R"({"schedule": "gpipe"})", R"(["pipe", 2])"},
      {"mixed_parallel", "{}", R"(["tensor", 2], ["pipe", 2])"},
      {"ds_3d_parallel", "{}", R"(["tensor", 2], ["pipe", 2], ["data", 1])"},
      {"gradient_accumulation", R"({"microbatches": 2})", kEffectsTwo},
      {"grad_comm", R"({"bucket_mb": 0.01})", kEffectsTwo},
      {"grad_comm", R"({"bucket_mb": 0.01, "buckets": 2})", kEffectsTwo},
      {"grad_comm", R"({"bucket_mb": 0.01, "communicators": 2})", kEffectsTwo},
      {"grad_comm", R"({"dtype": "bf16"})", kEffectsTwo},
      {"grad_comm", R"({"clip": "before"})", kEffectsTwo},
      {"grad_comm", R"({"sparse": "gathered"})", kEffectsTwo, kEffectsDeep + "tied = false\n"},
      {"checkpoint", R"(["blocks.*"])", kEffectsTwo},
      {"checkpoint", R"({"1": "blocks.*", "kept_microbatches": 1})", R"(["pipe", 2])", kEffectsDeep,
       R"(, ["pipeline_parallel", {}], ["gradient_accumulation", {"microbatches": 4}])"},
      {"zero1", "{}", kEffectsTwo},
      {"zero2", "{}", kEffectsTwo},
      {"fsdp", "{}", kEffectsTwo},
      {"amp_native", R"({"dtype": "bf16"})", kEffectsTwo},
      {"half", R"({"dtype": "bf16"})", kEffectsTwo},
      {"local_sgd", R"({"every": 4})", kEffectsTwo},
      {"expert_parallel", "{}", R"(["expert", 2])", kEffectsExperts},
      {"module_replace", R"(["swiglu"])", kEffectsTwo, kLlama},
      {"module_replace", R"(["rotary"])", kEffectsTwo, kLlama},
      {"lora", R"({"match": ["qkv", "down"]})", kEffectsTwo},
      {"fp8", "{}", kEffectsTwo},
      {"fp8", R"({"fp8_recipe": "rowwise"})", kEffectsTwo},
      {"fp8", R"({"fp8_recipe": "blockwise"})", kEffectsTwo},
      {"fp8", R"({"fp8_interval": 4})", kEffectsTwo},
      {"fp8", R"({"fp8_reduce_amax": false})", kEffectsTwo},
      {"partition_constraints",
       R"([{"name": "aten::mm", "parent_module": "mlp", "allowed_partition_dims": ["0,0"], )"
       R"("replica_allowed": false}])",
       R"(["tensor", 2])", kEffectsDeep, R"(, ["tensor_parallel", {}])"},
      {"auto_sharding", R"({"memory": "1MB"})", R"(["tensor", 2])"},
      {"auto_sharding", R"({"memory": "130KB"})", R"(["tensor", 2], ["data", 2])", kEffectsDeep},
      {"offload", R"({"optimizer": true})", kEffectsTwo},
      {"offload", R"({"layers": 1})", kEffectsTwo},
      {"chunked_loss", "{}", kEffectsTwo, kEffectsDeep},
      {"chunked_loss", R"({"chunks": 3})", R"(["tensor", 2])", kEffectsDeep,
       R"(, ["tensor_parallel", {}])"},
      {"overlap", R"({"accumulate": true})", kEffectsTwo, kEffectsDeep,
       R"(, ["gradient_accumulation", {"microbatches": 4}])"},
      {"overlap", R"({"deferred_head": true})", R"(["pipe", 2])", kEffectsDeep,
       R"(, ["pipeline_parallel", {}], ["gradient_accumulation", {"microbatches": 4}])", 1},
      {"overlap", R"({"experts": true})", R"(["expert", 2])", kEffectsExperts,
       R"(, ["expert_parallel", {}], ["gradient_accumulation", {"microbatches": 4}])"},
  };
  return rows;
}

struct Captured {
  Given given;
  plan::Plan plan;
};

// Captures the model at the size that the strategy asks for.
Captured captured(const std::string& model, const std::string& strategy,
                  const std::string& dtype = "float32") {
  for (int64_t pieces = 1;;) {
    torch::manual_seed(5);
    auto given = built_in(model, kRows, pieces, dtype);
    const methods::PlanRequest request{.graph = &given.graph, .global_batch = kRows};
    auto plan = plan_of(given, strategy, kRows);
    const auto wanted = kRows / methods::graph_batch(plan, request);
    if (wanted == pieces) {
      if (plan.adapters) given.graph = graph::adapt(std::move(given.graph), *plan.adapters);
      return {std::move(given), std::move(plan)};
    }
    pieces = wanted;
  }
}

// The program's summary for a rank: memory as an estimate, so that it is the same on any machine.
std::string summary_of(const std::string& model, const std::string& strategy, int64_t rank) {
  const auto [given, plan] = captured(model, strategy);
  plan::verify(plan, given.graph);
  compile::NoTraces none;
  return compile::summary(compile::compile(given.graph, plan, {.clip_norm = 0.5}, rank, none));
}

std::string strategy_of(const Effect& row) {
  return fmt::format(R"([["parallel_mode", [{}]], ["{}", {}]{}])", row.axes, row.method, row.config,
                     row.beside);
}

// Returns the lines of sections, without the number of their ops.
std::string collectives_of(const std::string& summary) {
  std::istringstream lines(summary);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const auto ops = line.find(" ops");
    const auto count = line.rfind(": ", ops);
    if (ops == std::string::npos || count == std::string::npos) continue;
    text += "  " + line.substr(0, count) + ":" +
            (ops + 4 < line.size() ? line.substr(ops + 5) : "") + "\n";
  }
  return text;
}

int64_t counted(const std::string& model, const std::string& strategy) {
  const auto [given, plan] = captured(model, strategy);
  int64_t most = 0;
  const auto ranks = train(given, plan);
  CHECK(compare_memory(given, plan, ranks) == "");
  for (const auto& rank : ranks) most = std::max(most, rank.counted);
  return most;
}

int64_t parameter_bytes(const std::string& model) {
  const auto given = built_in(model, kRows, 1, "float32");
  int64_t bytes = 0;
  for (const auto& input : given.graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) {
      bytes += given.graph.type(input.value).bytes();
    }
  }
  return bytes;
}

std::string with(const std::string& more, int64_t ranks = 2) {
  return fmt::format(R"([["parallel_mode", [["data", {}]]]{}])", ranks, more);
}

}  // namespace

TEST_CASE("every method changes the program") {
  std::set<std::string> tried = {"parallel_mode"};
  for (const auto& row : effects()) {
    INFO(row.method << row.config);
    tried.insert(row.method);
    const auto plain = summary_of(
        row.model, fmt::format(R"([["parallel_mode", [{}]]{}])", row.axes, row.beside), row.rank);
    CHECK(summary_of(row.model, strategy_of(row), row.rank) != plain);
  }
  for (const auto& method : methods::all()) {
    INFO(method->name() << " must stand among the rows of this test");
    CHECK(tried.contains(std::string(method->name())));
  }
}

TEST_CASE("the collectives of each method's program match the golden file") {
  std::string text;
  for (const auto& row : effects()) {
    text += strategy_of(row) + "\n" +
            collectives_of(summary_of(row.model, strategy_of(row), row.rank));
  }
  CHECK(test::golden_difference("tests/parity/collectives.txt", text) == "");
}

TEST_CASE("zero1, zero2 and fsdp lower the counted peak by the sharded bytes") {
  // Weights count for more than activations here.
  const std::string model =
      "kind = 'gpt'\nlayers = 6\nwidth = 192\nheads = 6\nvocab = 64\ntied = false\n";
  const auto bytes = static_cast<double>(parameter_bytes(model));
  const double unit = 4.0 * 192 * 768 + 200000;  // a matrix, and the small parameters before it
  for (const int64_t ranks : {2, 4}) {
    const std::string more =
        R"(, ["gradient_accumulation", {"microbatches": 2}], ["grad_comm", {"bucket_mb": 0.2}])";
    const auto plain = counted(model, with(more, ranks));
    const auto rest = 1 - 1.0 / static_cast<double>(ranks);
    // Other ranks' contributions are received in pieces, of two units at a time.
    const double workspace = 2 * static_cast<double>(ranks - 1) * (256 << 10);
    const auto check = [&](const std::string& method, double saved_times, double whole_units) {
      const auto saved = static_cast<double>(plain - counted(model, with(more + method, ranks)));
      INFO(method << " on " << ranks << " ranks saves " << saved / bytes << " times the weights");
      CHECK(saved < saved_times * rest * bytes + unit);
      CHECK(saved >= saved_times * rest * bytes - workspace - whole_units * unit);
    };
    check(R"(, ["zero1", {}])", 2, 0);  // adamw's states
    check(R"(, ["zero2", {}])", 3, 3);  // and gradients, except those in reduction
    // And weights, except the gathered ones.
    check(R"(, ["fsdp", {"atorch_size_based_min_num_params": 50000}])", 4, 6);
  }
}

TEST_CASE("checkpoint keeps only a block's input") {
  const auto model = [](int layers) {
    return fmt::format(
        "kind = 'gpt'\nlayers = {}\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\n", layers);
  };
  const auto growth = [&](const std::string& more) {
    return static_cast<double>(counted(model(8), with(more)) - counted(model(4), with(more))) / 4;
  };
  const auto weights = static_cast<double>(parameter_bytes(model(8)) - parameter_bytes(model(4))) /
                       4;
  // Beside weight, gradient and two states a block adds, on a rank of 4 samples of 6 tokens:
  const double input = 4 * 6 * 24 * 4;
  const double with_checkpoint = growth(R"(, ["checkpoint", ["blocks.*"]])") - 4 * weights;
  const double without = growth("") - 4 * weights;
  INFO(with_checkpoint / input << " and " << without / input << " inputs");
  CHECK(with_checkpoint == Approx(input).epsilon(0.02));
  CHECK(without > 5 * input);
}

}  // namespace perigee::parity
