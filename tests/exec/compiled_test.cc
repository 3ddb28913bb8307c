// A module is captured, planned, compiled and run on ranks, and equals one rank and eager training.
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include "capture/capture.h"
#include "compile/compile.h"
#include "exec/comm/threads.h"
#include "exec/executor.h"
#include "exec/memory/allocator.h"
#include "exec/reference/reference.h"
#include "profile/traces.h"
#include "tests/exec/processes.h"
#include "tests/support/database_file.h"
#include "tests/support/test_device.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using Kind = compile::Binding::Kind;
namespace nn = torch::nn;

constexpr int64_t kRows = 16, kSequence = 6, kWidth = 16, kVocabulary = 11;

struct Block : nn::Module {
  nn::LayerNorm norm1{nn::LayerNormOptions({kWidth})}, norm2{nn::LayerNormOptions({kWidth})};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth}, up{kWidth, 2 * kWidth},
      down{2 * kWidth, kWidth};
  nn::Dropout drop{0.1};
  Block() {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
    register_module("drop", drop);
  }
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), s = x.size(1);
    const auto p = qkv(norm1(x)).view({b, s, 3, 2, kWidth / 2}).permute({2, 0, 3, 1, 4});
    const auto y = at::scaled_dot_product_attention(p[0], p[1], p[2], {}, 0.0, /*is_causal=*/true);
    x = x + drop(out(y.transpose(1, 2).reshape({b, s, kWidth})));
    return x + drop(down(torch::gelu(up(norm2(x)))));
  }
};

struct Net : nn::Module {
  nn::Embedding embed{kVocabulary, kWidth};
  std::shared_ptr<Block> a = std::make_shared<Block>(), b = std::make_shared<Block>();
  nn::Linear mix{kWidth, kWidth}, head{kWidth, kVocabulary};
  Net() {
    register_module("embed", embed);
    register_module("mix", mix);
    register_module("a", a);
    register_module("b", b);
    register_module("head", head);
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    auto x = b->forward(a->forward(embed(batch.at("tokens"))));
    // The gradient of mix's bias is one value, added up four times.
    for (int k = 0; k < 4; ++k) x = x + mix(embed(batch.at("tokens")) * (0.1 * k));
    return nn::functional::cross_entropy(head(x).flatten(0, 1), batch.at("labels").flatten(),
                                         nn::functional::CrossEntropyFuncOptions().ignore_index(0));
  }
};

// One model and its batch; label 0 is ignored, unevenly over the rows.
struct Job {
  std::shared_ptr<Net> net;
  Batch batch;

  Job() {
    at::manual_seed(4);
    net = std::make_shared<Net>();
    auto labels = at::randint(0, kVocabulary, {kRows, kSequence}, at::kLong);
    labels.narrow(0, 0, 3).fill_(0);
    batch = {{"tokens", at::randint(0, kVocabulary, {kRows, kSequence}, at::kLong)},
             {"labels", labels}};
  }

  graph::Graph graph(int64_t microbatches) const {
    Batch example;
    for (const auto& [name, tensor] : batch)
      example[name] = tensor.narrow(0, 0, kRows / microbatches);
    return capture(*net, example, [&](const Batch& b) { return Result{net->loss(b)}; }).graph;
  }
};

plan::Plan plan_for(const graph::Graph& graph, int64_t ranks, int64_t microbatches) {
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(graph);
  plan.mesh = {.axes = {{"data", ranks}}};
  plan.microbatches = microbatches;
  plan.communication.bucket_bytes = 4096;
  return plan;
}

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

// Runs three steps of one rank.
Outcome run_steps(const Job& job, const graph::Graph& graph, int64_t microbatches,
                  Communicator& communicator, compile::TraceSource& traces,
                  const compile::StepSpec& spec, bool check_memory = false) {
  const auto plan = plan_for(graph, communicator.world(), microbatches);
  auto program = compile::compile(graph, plan, spec, communicator.rank(), traces);
  const TestRank on(communicator);
  must(program.exact_memory, "every op has a trace");
  if (communicator.world() == 1) compile::verify(program);
  Executor executor(program, *on.communicator, plan.mesh, {.seed = 9, .device = on.device});
  must(executor.frame_bytes() == program.peak_bytes, "peak");
  for (const auto& parameter : job.net->named_parameters()) {
    executor.tensor(Kind::parameter, parameter.key()).copy_(parameter.value().detach());
  }
  Outcome outcome;
  for (int64_t step = 1; step <= 3; ++step) {
    const int64_t rows = kRows / microbatches;
    std::map<std::pair<std::string, int64_t>, at::Tensor> parts;
    for (const auto& [name, tensor] : job.batch) {
      for (int64_t m = 0; m < microbatches; ++m)
        parts[{name, m}] = tensor.narrow(0, m * rows, rows);
    }
    reset_peak();
    const auto before = memory_count();
    executor.run({.step = step,
                  .scalars = {{"lr.0", 0.01}},
                  .data = [&](const std::string& name, int64_t m) {
                    return parts.at({name, m});
                  }});
    if (check_memory && on.device->plans_memory())
      must(memory_count().peak == before.arenas + before.others,
           "nothing is allocated beside the frames");
    outcome.losses.push_back(executor.tensor(Kind::result, "loss").item<double>());
    outcome.norms.push_back(executor.tensor(Kind::result, "grad_norm").item<double>());
  }
  for (const auto& name : executor.names(Kind::parameter))
    outcome.weights[name] =
        executor.tensor(Kind::parameter, name).to(at::kCPU, false, /*copy=*/true);
  return outcome;
}

std::string difference(const Outcome& a, const Outcome& b, double tolerance) {
  for (size_t i = 0; i < a.losses.size(); ++i) {
    if (std::abs(a.losses[i] - b.losses[i]) > tolerance)
      return fmt::format("loss {}: {} and {}", i, a.losses[i], b.losses[i]);
    if (std::abs(a.norms[i] - b.norms[i]) > tolerance)
      return fmt::format("norm {}: {} and {}", i, a.norms[i], b.norms[i]);
  }
  for (const auto& [name, tensor] : a.weights) {
    if (!at::allclose(tensor, b.weights.at(name), tolerance, tolerance)) return name;
  }
  return "";
}

struct Profile {
  DatabaseFile file{"compiled"};
  profile::Database database{file.path};
  profile::TraceDatabase traces{database, 1, test_device()};
};

const compile::StepSpec kAdamW = {.optimizer = "adamw", .weight_decay = 0.1, .clip_norm = 0.5};

TEST_CASE("a compiled program's steps equal those of the reference and torch.optim", "[device]") {
  const Job job;
  const auto graph = job.graph(1);
  Profile profile;
  const auto outcome = run_steps(job, graph, 1, *single_communicator(), profile.traces, kAdamW,
                                 /*check_memory=*/true);

  std::vector<at::Tensor> leaves;
  Tensors inputs(job.batch.begin(), job.batch.end());
  for (const auto& parameter : job.net->named_parameters()) {
    leaves.push_back(parameter.value().detach().clone().requires_grad_(true));
    inputs[parameter.key()] = leaves.back();
  }
  torch::optim::AdamW optimizer(leaves, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  for (int64_t step = 1; step <= 3; ++step) {
    const auto out = evaluate(graph, inputs, {.seed = 9, .step = step});
    INFO("step " << step);
    REQUIRE(outcome.losses[step - 1] == Approx(out.at("loss").item<double>()).epsilon(1e-12));
    size_t next = 0;
    for (const auto& parameter : job.net->named_parameters())
      leaves[next++].mutable_grad() = out.at("gradient:" + parameter.key()).clone();
    REQUIRE(outcome.norms[step - 1] ==
            Approx(nn::utils::clip_grad_norm_(leaves, 0.5)).epsilon(1e-10));
    optimizer.step();
  }
  for (const auto& [name, tensor] : outcome.weights) {
    INFO(name);
    REQUIRE(at::allclose(tensor, inputs.at(name).detach(), 1e-10, 1e-10));
  }
}

TEST_CASE(
    "data parallelism over threads gives the same losses and weights for any microbatches, "
    "bit-equal "
    "twice",
    "[device]") {
  const Job job;
  Profile profile;
  const auto expected = run_steps(job, job.graph(1), 1, *single_communicator(), profile.traces,
                                  kAdamW);
  for (int64_t microbatches : {1, 2, 4}) {
    const auto graph = job.graph(microbatches);
    for (int64_t ranks : {1, 2, 4}) {
      Outcome first;
      for (int round = 0; round < 2; ++round) {
        std::vector<Outcome> outcomes(ranks);
        run_ranks(ranks,
                  [&](Communicator& c) {
                    outcomes[c.rank()] = run_steps(job, graph, microbatches, c, profile.traces,
                                                   kAdamW);
                  },
                  {.timeout = std::chrono::seconds(60)});
        INFO(ranks << " ranks, " << microbatches << " microbatches");
        for (const auto& outcome : outcomes) {
          REQUIRE(difference(expected, outcome, 1e-10) == "");
          REQUIRE(difference(outcomes[0], outcome, 0) == "");
        }
        if (round == 0) first = outcomes[0];
        REQUIRE(difference(first, outcomes[0], 0) == "");
      }
    }
  }
}

TEST_CASE(
    "data parallelism over processes gives the same losses and weights, through shared memory and "
    "over Gloo") {
  const Job job;
  Profile profile;
  const auto graph = job.graph(2);
  const auto expected = run_steps(job, job.graph(1), 1, *single_communicator(), profile.traces,
                                  kAdamW);
  const auto carrier = GENERATE(Carrier::shared, Carrier::gloo);
  const auto body = [&](Communicator& c) {
    // Opened in the child: SQLite connections do not survive a fork.
    profile::Database database(profile.file.path);
    profile::TraceDatabase traces(database);
    must(difference(expected, run_steps(job, graph, 2, c, traces, kAdamW), 1e-10) == "", "outcome");
  };
  const auto errors = fork_ranks(2, body, std::chrono::seconds(20), carrier);
  for (const auto& error : errors) REQUIRE(error == "");
}

TEST_CASE("data parallelism without its all-reduces, or with another reduction, is detected",
          "[device]") {
  const Job job;
  Profile profile;
  const auto graph = job.graph(1);
  const auto expected = run_steps(job, graph, 1, *single_communicator(), profile.traces, kAdamW);
  const bool drop = GENERATE(true, false);
  run_ranks(
      2,
      [&](Communicator& c) {
        const auto plan = plan_for(graph, 2, 1);
        auto program = compile::compile(graph, plan, kAdamW, c.rank(), profile.traces);
        for (auto& section : program.sections) {
          auto& list = section.instructions;
          for (auto& instruction : list) {
            if (instruction.op != "comm::all_reduce") continue;
            for (auto& [name, arg] : instruction.args) {
              if (name == "op" && !drop) arg = std::string("max");
            }
          }
          if (drop) std::erase_if(list, [](const auto& i) { return i.op == "comm::all_reduce"; });
        }
        const TestRank on(c);
        Executor executor(program, *on.communicator, plan.mesh, {.seed = 9, .device = on.device});
        for (const auto& p : job.net->named_parameters())
          executor.tensor(Kind::parameter, p.key()).copy_(p.value().detach());
        executor.run(
            {.step = 1, .scalars = {{"lr.0", 0.01}}, .data = [&](const std::string& name, int64_t) {
               return job.batch.at(name);
             }});
        must(std::abs(executor.tensor(Kind::result, "grad_norm").item<double>() -
                      expected.norms[0]) > 1e-6,
             "negative control");
      },
      {.timeout = std::chrono::seconds(60)});
}

}  // namespace
}  // namespace perigee::exec
