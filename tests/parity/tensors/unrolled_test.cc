// Planned shardings of graphs without repeated blocks: a recurrent network, step by step.
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>

#include "graph/ops.h"
#include "shard/solver/assignment.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/models.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

constexpr int64_t kUnrolledRows = 4, kInputs = 6, kHidden = 4;

// Two layers in both directions over a sequence; samples are the second dim within.
struct Recurrent : torch::nn::Module {
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(kInputs, kHidden).num_layers(2).bidirectional(true)};
  torch::nn::Linear head{2 * kHidden, 3};
  Recurrent() {
    register_module("lstm", lstm);
    register_module("head", head);
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    const auto x = std::get<0>(lstm(batch.at("x").transpose(0, 1)));
    return at::mse_loss(head(x.select(0, -1)), batch.at("y"));
  }
};

Given unrolled(int64_t steps) {
  torch::manual_seed(5);
  const auto net = std::make_shared<Recurrent>();
  return capture_model({net,
                        {{"x", at::randn({kUnrolledRows, steps, kInputs}, at::kDouble)},
                         {"y", at::randn({kUnrolledRows, 3}, at::kDouble)}},
                        [net](const Batch& b) { return Result{net->loss(b)}; }});
}

// Returns the solver's problem for two tensor ranks.
solve::AssignProblem problem_of(const Given& given) {
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(given.graph);
  plan.mesh = mesh::parse_axes("tensor=2");
  plan.batch_axes = "data";
  return shard::Assignment(given.graph, plan, {0}, {}).problem();
}

// Returns the number of variables that are nodes of the graph.
size_t nodes_of(const solve::AssignProblem& problem) {
  return std::ranges::count_if(problem.ops,
                               [](const auto& op) { return !op.name.starts_with("value "); });
}

TEST_CASE("steps of an unrolled network are one in the solver's problem, however many") {
  const auto some = unrolled(24), more = unrolled(40);
  CHECK(more.graph.nodes.size() > some.graph.nodes.size() + 2000);
  CHECK(nodes_of(problem_of(some)) < some.graph.nodes.size() / 8);
  CHECK(nodes_of(problem_of(more)) == nodes_of(problem_of(some)));
}

TEST_CASE("an unrolled network trains with planned shardings as on one device") {
  const int64_t steps = GENERATE(9, 12);
  const auto given = unrolled(steps);
  const auto plan = plan_of(given,
                            R"([["parallel_mode", [["tensor", 2], ["data", 1]]],
                                ["tensor_parallel", {"planned": true}]])",
                            kUnrolledRows);
  bool said = false;
  for (const auto& decision : plan.decisions) {
    said = said || decision.sentence.find(steps == 9 ? "with a lower bound of"
                                                     : "which is optimal") != std::string::npos;
  }
  CHECK(said);
  const auto one_device = plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kUnrolledRows);
  CHECK(compare(train(given, one_device)[0], train(given, plan)) == "");
}

}  // namespace
}  // namespace perigee::parity
