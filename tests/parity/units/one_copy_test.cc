// Ranks that hold one copy of weights (zero1 and zero2 with one_copy) against ranks with a copy
// each and one device, with negative controls.
#include <fmt/format.h>

#include "base/error.h"
#include "methods/method.h"
#include "tests/parity/support/training.h"

using namespace perigee;
using namespace perigee::parity;
using compile::Program;

namespace {

using Edit = std::function<void(plan::Plan&, const graph::Graph&)>;

Edit with(const std::string& method, const std::string& config) {
  return [=](plan::Plan& plan, const graph::Graph& graph) {
    const auto strategy = methods::from_json(
        methods::Json::array({methods::Json::array({method, methods::Json::parse(config)})}),
        "test");
    strategy.methods[0].method->apply(plan, strategy.methods[0].config, {.graph = &graph});
  };
}

Edit on(std::vector<mesh::Axis> axes, const Edit& edit) {
  return [=](plan::Plan& plan, const graph::Graph& graph) {
    plan.mesh.axes = axes;
    edit(plan, graph);
  };
}

// Sizes that no number of ranks divides.
const GptShape kShape{.vocabulary = 13, .sequence = 5, .width = 6, .heads = 3};
constexpr const char* kOneCopy = R"({"one_copy": true})";
constexpr const char* kEach = R"({"one_copy": false})";

}  // namespace

TEST_CASE("one copy of the weights gives each bit of a copy on each rank, in less memory") {
  const Recipe recipe{.batch = 12};
  const auto one = train_ranks(kShape, recipe, {});
  for (const char* method : {"zero1", "zero2"}) {
    for (int64_t ranks : {2, 3, 4}) {
      for (int64_t microbatches : {1, 3}) {
        INFO(method << ", " << ranks << " ranks, " << microbatches << " microbatches");
        const auto train = [&](const char* config) {
          return train_ranks(
              kShape, recipe,
              {.count = ranks, .microbatches = microbatches, .plan = with(method, config)});
        };
        const auto together = train(kOneCopy), apart = train(kEach);
        CHECK(compare(together, one) == "");
        CHECK(compare(together, apart, 0) == "");
        CHECK(together.peak_bytes < apart.peak_bytes);
      }
    }
  }
}

TEST_CASE("one copy of the weights is exact for any units, meshes and optimizers") {
  Recipe recipe{.batch = 12};
  const auto same = [&](const std::string& what, const Ranks& ranks) {
    INFO(what);
    CHECK(compare(train_ranks(kShape, recipe, ranks), train_ranks(kShape, recipe, {})) == "");
  };
  for (const char* config : {R"({"one_copy": true, "match": "blocks.*"})",
                             R"({"one_copy": true, "ignored": "tokens.*"})",
                             R"({"one_copy": true, "atorch_size_based_min_num_params": 200})"}) {
    same(config, {.count = 2, .microbatches = 2, .plan = with("zero1", config)});
  }
  for (const char* config : {kOneCopy, R"({"one_copy": true, "axis": "data,zero"})"}) {
    same(fmt::format("mesh {}", config),
         {.count = 4,
          .microbatches = 2,
          .plan = on({{"zero", 2}, {"data", 2}}, with("zero1", config))});
  }
  recipe.spec.clip_norm = {};
  for (const char* optimizer : {"sgd", "lion", "adafactor", "muon"}) {
    recipe.spec.optimizer = optimizer;
    recipe.spec.options = {};
    INFO(optimizer);
    const auto train = [&](const char* config) {
      return train_ranks(kShape, recipe,
                         {.count = 3, .microbatches = 2, .plan = with("zero2", config)});
    };
    // Against one device the sign of a gradient that is zero but for rounding differs (lion).
    CHECK(compare(train(kOneCopy), train(kEach), 0) == "");
  }
}

TEST_CASE("ranks with memory of their own in the place of one copy differ from one device") {
  const Recipe recipe{.batch = 12};
  const auto own = [](Program& program) {
    for (auto& frame : program.frames) {
      frame.held_by = -1;
      frame.holders = 1;
    }
  };
  const Ranks ranks{.count = 2, .edit = own, .plan = with("zero1", kOneCopy)};
  CHECK(compare(train_ranks(kShape, recipe, ranks), train_ranks(kShape, recipe, {})) != "");
}
