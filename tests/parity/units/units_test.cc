// Sharded parameters (zero1, zero2, fsdp) against one device, with negative controls.
#include <fmt/format.h>

#include <atomic>
#include <set>

#include "compile/compile.h"
#include "methods/method.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/training.h"

using namespace perigee;
using namespace perigee::parity;
using compile::Instruction;
using compile::Program;

namespace {

using Edit = std::function<void(plan::Plan&, const graph::Graph&)>;

// Applies a method with the config to a plan.
Edit with(const std::string& method, const char* config = "{}") {
  return [=](plan::Plan& plan, const graph::Graph& graph) {
    const auto strategy = methods::from_json(
        methods::Json::array({methods::Json::array({method, methods::Json::parse(config)})}),
        "test");
    strategy.methods[0].method->apply(plan, strategy.methods[0].config, {.graph = &graph});
  };
}

// The same after other methods, on a mesh of these axes.
Edit on(std::vector<mesh::Axis> axes, std::vector<Edit> edits) {
  return [=](plan::Plan& plan, const graph::Graph& graph) {
    plan.mesh.axes = axes;
    for (const auto& edit : edits) edit(plan, graph);
  };
}

bool erase(Program& program, const std::string& op) {
  std::set<int32_t> events;
  for (const auto& section : program.sections) {
    for (const auto& i : section.instructions) {
      if (i.op == op) events.insert(i.event);
    }
  }
  for (auto& section : program.sections) {
    std::erase_if(section.instructions,
                  [&](const Instruction& i) { return events.contains(i.event); });
  }
  return !events.empty();
}

const char* const kMethods[] = {"zero1", "zero2", "fsdp"};

// Sizes that no number of ranks divides.
const GptShape kShape{.vocabulary = 13, .sequence = 5, .width = 6, .heads = 3};

}  // namespace

TEST_CASE("sharded parameters train as on one device", "[device]") {
  for (bool tied : {false, true}) {
    auto shape = kShape;
    shape.tied = tied;
    shape.dropout = tied ? 0.2 : 0;
    const Recipe recipe{.batch = 12};
    const auto one = train_ranks(shape, recipe, {});
    for (const char* method : kMethods) {
      for (int64_t ranks : {2, 3, 4}) {
        for (int64_t microbatches : {1, 3}) {
          INFO(method << (tied ? ", tied, " : ", ") << ranks << " ranks, " << microbatches
                      << " microbatches");
          const auto parts = train_ranks(
              shape, recipe, {.count = ranks, .microbatches = microbatches, .plan = with(method)});
          CHECK(compare(parts, one) == "");
        }
      }
    }
  }
}

TEST_CASE("units, prefetch and resharding change no number", "[device]") {
  const Recipe recipe{.batch = 12};
  auto shape = kShape;
  shape.layers = 3;
  const auto one = train_ranks(shape, recipe, {});
  const auto same = [&](const std::string& what, const Ranks& ranks) {
    INFO(what);
    CHECK(compare(train_ranks(shape, recipe, ranks), one) == "");
  };
  for (const char* config :
       {R"({"match": ["blocks.*", "head"]})", R"({"match": "**"})", R"({"ignored": "**.bias"})",
        R"({"atorch_size_based_min_num_params": 1})",
        R"({"atorch_size_based_min_num_params": 300})", R"({"atorch_wrap_cls": "Linear"})",
        R"({"reshard_after_forward": false})", R"({"sharding_strategy": "SHARD_GRAD_OP"})",
        R"({"forward_prefetch": false, "backward_prefetch": "none"})",
        R"({"limit_all_gathers": false})",
        R"({"limit_all_gathers": false, "reshard_after_forward": false, "prefetch_mb": 0.003})"}) {
    for (int64_t microbatches : {1, 2}) {
      same(fmt::format("fsdp {} {}", config, microbatches),
           {.count = 3, .microbatches = microbatches, .plan = with("fsdp", config)});
    }
  }
  for (const char* config : {R"({"match": "blocks.*"})", R"({"ignored": "tokens.*"})",
                             R"({"atorch_size_based_min_num_params": 200})"}) {
    for (const char* method : {"zero1", "zero2"}) {
      same(fmt::format("{} {}", method, config),
           {.count = 2, .microbatches = 2, .plan = with(method, config)});
    }
  }
  const auto put_off = [](plan::Plan& plan, const graph::Graph&) {
    plan.communication.overlap = false;
  };
  for (const char* method : kMethods) {
    same(fmt::format("{} without overlap", method),
         {.count = 2, .microbatches = 2, .plan = on({{"data", 2}}, {put_off, with(method)})});
    same(fmt::format("{} with recomputation", method),
         {.count = 2,
          .microbatches = 2,
          .plan = on({{"data", 2}}, {with("checkpoint", R"(["blocks.*"])"), with(method)})});
  }
}

TEST_CASE("units sharded over one axis are replicated over others", "[device]") {
  const Recipe recipe{.batch = 12};
  const auto one = train_ranks(kShape, recipe, {});
  const std::vector<std::vector<mesh::Axis>> meshes = {
      {{"zero", 2}, {"data", 2}}, {{"data", 2}, {"zero", 2}}, {{"zero", 3}, {"data", 2}}};
  for (const auto& axes : meshes) {
    for (const char* method : kMethods) {
      for (const char* config : {"{}", R"({"axis": "data,zero"})"}) {
        for (int64_t microbatches : {1, 2}) {
          INFO(method << " " << config << ", " << axes[0].name << " " << axes[0].size << ", "
                      << microbatches << " microbatches");
          const auto parts = train_ranks(kShape, recipe,
                                         {.count = axes[0].size * axes[1].size,
                                          .microbatches = microbatches,
                                          .plan = on(axes, {with(method, config)})});
          CHECK(compare(parts, one) == "");
        }
      }
    }
  }
}

TEST_CASE("groups, frozen parameters and optimizers work with sharded parameters", "[device]") {
  Recipe recipe{.batch = 12};
  for (const char* optimizer : {"adamw", "sgd"}) {
    recipe.spec.optimizer = optimizer;
    recipe.spec.options["momentum"] = 0.9;
    recipe.spec.frozen = {"tokens.weight", "blocks.0.up.weight", "blocks.1.norm1.bias"};
    recipe.spec.groups = {{{"blocks.0.qkv.bias", "blocks.1.down.weight", "norm.weight"}, 0.0},
                          {{"blocks.1.qkv.weight"}, 0.5}};
    const auto one = train_ranks(kShape, recipe, {});
    for (const char* method : kMethods) {
      for (int64_t ranks : {2, 3}) {
        INFO(optimizer << ", " << method << ", " << ranks << " ranks");
        const auto parts = train_ranks(kShape, recipe,
                                       {.count = ranks, .microbatches = 2, .plan = with(method)});
        CHECK(compare(parts, one) == "");
      }
    }
  }
}

TEST_CASE("weights sharded over one axis are stored in parts over another") {
  for (const char* keys : {kGpt, kLlama, kMoe, kMlp}) {
    torch::manual_seed(5);
    const int64_t microbatches = std::string_view(keys) == kMoe ? 1 : 2;
    const auto given = built_in(keys, 6, microbatches);
    const auto plan = [&](const std::string& methods) {
      auto made = plan_of(given, "[" + methods + "]", 6);
      made.microbatches = microbatches;
      return made;
    };
    const auto one = train(given, plan(R"(["parallel_mode", [["data", 1]]])"))[0];
    for (const char* mesh : {R"([["tensor", 2], ["data", 2]])", R"([["data", 2], ["tensor", 3]])",
                             R"([["tensor", 2], ["zero", 2], ["data", 1]])"}) {
      for (const char* method : kMethods) {
        for (const char* sequence : {"false", "true"}) {
          if (std::string_view(keys) == kMlp && *sequence == 't') continue;  // no sequence
          INFO(keys << mesh << " " << method << ", sequence " << sequence);
          const auto both = fmt::format(
              R"(["parallel_mode", {}], ["{}", {{"atorch_size_based_min_num_params": 500}}],
                 ["tensor_parallel", {{"sequence": {}}}])",
              mesh, method, sequence);
          CHECK(compare(one, train(given, plan(both))) == "");
        }
      }
    }
  }
}

TEST_CASE("peaks fall by ZeRO's formulas") {
  const GptShape shape{.vocabulary = 16, .sequence = 4, .width = 24, .layers = 12};
  const Recipe recipe{.steps = 1, .batch = 8};
  const int64_t ranks = 4, width = shape.width;
  // Bytes of a block, the largest unit, and of all parameters.
  const int64_t block = (12 * width * width + 13 * width) * 8;
  const int64_t all = shape.layers * block +
                      (2 * shape.vocabulary + shape.sequence + 2) * width * 8;
  const auto peak = [&](const Edit& edit) {
    return train_ranks(shape, recipe, {.count = ranks, .microbatches = 2, .plan = edit}).peak_bytes;
  };
  const char* const blocks = R"({"match": "blocks.*"})";
  const auto whole = peak({}), states = peak(with("zero1", blocks)),
             gradients = peak(with("zero2", blocks)), weights = peak(with("fsdp", blocks)),
             kept = peak(with("fsdp", R"({"match": "blocks.*", "reshard_after_forward": false})"));
  // Some units are unsharded for a while: prefetched, or in reduction, with their buffers.
  const int64_t saved = all - all / ranks, some = 4 * block;
  CHECK(std::abs(whole - states - 2 * saved) < some);
  CHECK(std::abs(states - gradients - saved) < some);
  CHECK(std::abs(gradients - weights - saved) < some);
  CHECK(std::abs(kept - weights - all) < some);
}

TEST_CASE("a dropped reduction, a wrong scale and a skipped part are detected", "[device]") {
  const Recipe recipe{.batch = 12};
  const auto one = train_ranks(kShape, recipe, {});
  // Returns whether the numbers differ if every rank's program is damaged.
  const auto wrong = [&](const char* method, const std::function<bool(Program&)>& spoil) {
    std::atomic<int> spoiled = 0;
    const Ranks ranks{.count = 2,
                      .microbatches = 2,
                      .edit = [&](Program& program) { spoiled += spoil(program); },
                      .plan = with(method)};
    const auto first_difference = compare(train_ranks(kShape, recipe, ranks), one);
    REQUIRE(spoiled == 2);
    return first_difference != "";
  };
  const auto average = [](Program& program) {
    bool found = false;
    for (auto& section : program.sections) {
      for (auto& instruction : section.instructions) {
        if (instruction.op != "comm::reduce_scatter") continue;
        for (auto& [name, arg] : instruction.args) {
          if (name == "op") arg = std::string("avg");
        }
        found = true;
      }
    }
    return found;
  };
  // The last of its kind: the accumulation over microbatches, the part of a step.
  const auto skip = [](const std::string& op) {
    return [=](Program& program) {
      for (auto section = program.sections.rbegin(); section != program.sections.rend();
           ++section) {
        auto& list = section->instructions;
        const auto at = std::find_if(list.rbegin(), list.rend(),
                                     [&](const Instruction& i) { return i.op == op; });
        if (at == list.rend()) continue;
        list.erase(std::next(at).base());
        return true;
      }
      return false;
    };
  };
  for (const char* method : kMethods) {
    INFO(method);
    CHECK_FALSE(wrong(method, [](Program&) { return true; }));
    CHECK(wrong(method, [](Program& program) { return erase(program, "comm::reduce_scatter"); }));
    CHECK(wrong(method, [](Program& program) { return erase(program, "comm::all_gather"); }));
    CHECK(wrong(method, average));
    CHECK(wrong(method, skip("perigee::adamw_")));
    CHECK(wrong(method, skip("perigee::accumulate_")));
  }
}
