// All optimizers: sharded training gives the weights of one device and of the paper's formulas.
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

const compile::StepSpec kLion{
    .optimizer = "lion", .options = {{"beta2", 0.98}}, .weight_decay = 0.1, .clip_norm = 0.5};
const std::string kOneDevice = R"([["parallel_mode", [["data", 1]]]])";

}  // namespace

// A model without gradients that are zero up to rounding, whose sign would be arbitrary.
TEST_CASE("lion trains sharded parameters as one device does") {
  torch::manual_seed(5);
  const auto given = built_in(kMlp, kRows);
  const auto one = train(given, plan_of(given, kOneDevice, kRows), {}, kLion)[0];
  CHECK(one.losses[1] < one.losses[0]);
  CHECK(compare(one, train(given, plan_of(given, kOneDevice, kRows))[0]) != "");  // adamw
  for (const std::string strategy :
       {R"([["parallel_mode", [["data", 4]]]])",
        R"([["parallel_mode", [["tensor", 2], ["data", 2]]], ["tensor_parallel", {}]])",
        R"([["parallel_mode", [["data", 2]]], ["zero1", {}]])",
        R"([["parallel_mode", [["data", 4]]], ["fsdp", {}]])"}) {
    INFO(strategy);
    CHECK(compare(one, train(given, plan_of(given, strategy, kRows), {}, kLion)) == "");
  }
  const auto drop = [](Program& program) {
    for (auto& section : program.sections) {
      if (section.name() != "micro") continue;
      std::erase_if(section.instructions, [](const Instruction& i) {
        return i.kind == Instruction::Kind::collective || i.kind == Instruction::Kind::wait;
      });
    }
  };
  const auto plan = plan_of(given, R"([["parallel_mode", [["data", 2]]]])", kRows);
  CHECK(compare(one, train(given, plan, drop, kLion)) != "");
}

namespace {

// Each elementwise optimizer with every state that it may keep.
std::vector<compile::StepSpec> elementwise_specs() {
  std::vector<compile::StepSpec> specs;
  for (const auto& optimizer : optim::optimizers()) {
    if (!optimizer.is_elementwise()) continue;
    compile::StepSpec spec{
        .optimizer = std::string(optimizer.name), .weight_decay = 0.1, .clip_norm = 0.5};
    for (const auto& state : optimizer.states) {
      if (state.needs) spec.options[state.needs] = state.needs == std::string("centered") ? 1 : 0.9;
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace

TEST_CASE("every elementwise optimizer trains sharded parameters as one device does") {
  torch::manual_seed(5);
  const auto given = built_in(kMlp, kRows);
  const auto one_device = plan_of(given, kOneDevice, kRows);
  for (const auto& spec : elementwise_specs()) {
    INFO(spec.optimizer);
    const auto one = train(given, one_device, {}, spec)[0];
    for (const std::string strategy :
         {R"([["parallel_mode", [["tensor", 2], ["data", 2]]], ["tensor_parallel", {}]])",
          R"([["parallel_mode", [["data", 2]]], ["zero1", {}]])",
          R"([["parallel_mode", [["data", 4]]], ["fsdp", {}]])"}) {
      INFO(strategy);
      CHECK(compare(one, train(given, plan_of(given, strategy, kRows), {}, spec)) == "");
    }
    for (const auto& other : elementwise_specs()) {
      if (other.optimizer == spec.optimizer) continue;
      INFO("with the update of " << other.optimizer);
      CHECK(compare(one, train(given, one_device, {}, other)[0]) != "");
    }
  }
}

TEST_CASE("lion combines with mixed precision, masters and stochastic rounding") {
  torch::manual_seed(5);
  const auto given = built_in(kMlp, kRows, 1, "float32");
  const auto full = train(given, plan_of(given, kOneDevice, kRows), {}, kLion)[0];
  for (const std::string method :
       {R"(["amp_native", "bf16"])", R"(["half", "bf16"])",
        R"(["half", {"dtype": "bf16", "masters": false}])", R"(["amp_native", "fp16"])"}) {
    INFO(method);
    const auto strategy = R"([["parallel_mode", [["data", 2]]], )" + method + "]";
    for (const auto& rank : train(given, plan_of(given, strategy, kRows), {}, kLion)) {
      CHECK(rank.losses[0] == Approx(full.losses[0]).epsilon(1e-2));
      CHECK(rank.losses[1] == Approx(full.losses[1]).epsilon(5e-2));
    }
  }
}

namespace {

// The weights by name after some steps of an optimizer that requires whole parameters.
using Weights = std::map<std::string, at::Tensor>;
using Update = std::function<void(const std::string& name, at::Tensor& weight,
                                  const at::Tensor& gradient, int64_t step)>;

// Trains with gradients of the reference interpreter and the given update.
Weights reference(const Given& given, double clip, int64_t steps, const Update& update) {
  auto inputs = given.inputs;
  Weights weights;
  for (const auto& input : given.graph.inputs) {
    if (input.kind != graph::Input::Kind::parameter) continue;
    weights[input.name] = inputs[input.name] = inputs.at(input.name).clone();
  }
  for (int64_t step = 1; step <= steps; ++step) {
    const auto results = exec::evaluate(given.graph, inputs);
    double squares = 0;
    for (const auto& [name, weight] : weights) {
      squares += results.at("gradient:" + name).square().sum().item<double>();
    }
    const double scale = std::min(1.0, clip / (std::sqrt(squares) + 1e-6));
    for (auto& [name, weight] : weights) {
      update(name, weight, results.at("gradient:" + name) * scale, step);
    }
  }
  return weights;
}

// Returns the largest difference between the weights of a rank that holds whole tensors.
double difference(const Weights& weights, const Outcome& outcome) {
  double most = 0;
  for (const auto& [name, weight] : weights) {
    const auto found = outcome.tensors.find(name);
    if (found == outcome.tensors.end()) return 1e9;
    most = std::max(most, (found->second.first - weight).abs().max().item<double>());
  }
  return most;
}

constexpr double kOptimizersRate = 1e-2;  // of train()

// Shazeer and Stern 2018, algorithms 4 and 5, with the constants of torch.optim.Adafactor.
struct Adafactor {
  double decay = -0.8, threshold = 1.0, weight_decay = 0;
  std::map<std::string, std::pair<at::Tensor, at::Tensor>> moments;

  void operator()(const std::string& name, at::Tensor& w, const at::Tensor& g, int64_t step) {
    const double least = 2.220446049250313e-16, beta = 1 - std::pow(double(step), decay);
    auto& [rows, columns] = moments[name];
    at::Tensor estimate;
    if (w.dim() > 1) {
      const auto row = g.square().mean(-1, true), column = g.square().mean(-2, true);
      if (!rows.defined()) rows = at::zeros_like(row), columns = at::zeros_like(column);
      rows = beta * rows + (1 - beta) * row;
      columns = beta * columns + (1 - beta) * column;
      estimate = at::matmul(rows, columns) / rows.mean(-2, true).clamp_min(least);
    } else {
      if (!rows.defined()) rows = at::zeros_like(g);
      rows = beta * rows + (1 - beta) * g.square();
      estimate = rows;
    }
    const auto update = g / estimate.clamp_min(least * least).sqrt();
    const auto rms = [](const at::Tensor& t) { return t.square().mean().sqrt().item<double>(); };
    const double alpha = std::max(1e-3, rms(w)) *
                         std::min(kOptimizersRate, 1 / std::sqrt(double(step)));
    w.mul_(1 - kOptimizersRate * weight_decay);
    w.sub_(update * (alpha / std::max(1.0, rms(update) / threshold)));
  }
};

// Jordan et al. 2024: orthogonalised Nesterov momentum; AdamW for the named parameters.
struct Muon {
  double momentum = 0.95, weight_decay = 0.1;
  std::set<std::string> by_adamw;
  std::map<std::string, at::Tensor> buffer, first, second;

  static at::Tensor orthogonal(const at::Tensor& g) {
    const bool tall = g.size(0) > g.size(1);
    auto x = tall ? g.t() : g;
    x = x / (x.norm() + 1e-7);
    for (int k = 0; k < 5; ++k) {
      const auto a = at::mm(x, x.t());
      const auto b = -4.7750 * a + 2.0315 * at::mm(a, a);
      x = 3.4445 * x + at::mm(b, x);
    }
    return tall ? x.t() : x;
  }

  void operator()(const std::string& name, at::Tensor& w, const at::Tensor& g, int64_t step) {
    const auto state = [&](auto& of) -> at::Tensor& {
      auto& t = of[name];
      if (!t.defined()) t = at::zeros_like(w);
      return t;
    };
    w.mul_(1 - kOptimizersRate * weight_decay);
    if (w.dim() == 2 && !by_adamw.contains(name)) {
      auto& m = state(buffer);
      m = momentum * m + (1 - momentum) * g;
      const auto update = momentum * m + (1 - momentum) * g;
      const double tall = double(w.size(0)) / double(w.size(1));
      w.sub_(orthogonal(update) * (kOptimizersRate * std::sqrt(std::max(1.0, tall))));
      return;
    }
    auto &m = state(first), &v = state(second);
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g.square();
    const auto root = (v / (1 - std::pow(0.95, step))).sqrt() + 1e-8;
    w.sub_(m / (1 - std::pow(0.9, step)) / root * kOptimizersRate);
  }
};

const compile::StepSpec kAdafactor{.optimizer = "adafactor", .weight_decay = 0.1, .clip_norm = 0.5};
const compile::StepSpec kMuon{.optimizer = "muon",
                              .options = {{"beta2", 0.95}, {"momentum", 0.95}, {"nesterov", 1}},
                              .weight_decay = 0.1,
                              .clip_norm = 0.5};

const std::string kSharded[] = {
    R"([["parallel_mode", [["data", 4]]]])",
    R"([["parallel_mode", [["tensor", 2], ["data", 2]]], ["tensor_parallel", {}]])",
    R"([["parallel_mode", [["data", 4]]], ["zero1", {}]])",
    R"([["parallel_mode", [["data", 2]]], ["zero2", {}]])",
    R"([["parallel_mode", [["tensor", 2], ["data", 2]]], ["tensor_parallel", {}], ["fsdp", {}]])"};

void without_step_reductions(Program& program) {
  for (auto& section : program.sections) {
    if (section.name() != "step") continue;
    std::erase_if(section.instructions, [&](const Instruction& i) {
      return i.kind == Instruction::Kind::collective && i.op == "comm::all_reduce";
    });
    std::erase_if(section.instructions,
                  [](const Instruction& i) { return i.kind == Instruction::Kind::wait; });
  }
}

}  // namespace

TEST_CASE("adafactor and muon train as in their papers, on one device and sharded") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, 4);
  for (const auto& spec : {kAdafactor, kMuon}) {
    INFO(spec.optimizer);
    const auto one_device = plan_of(given, kOneDevice, 4);
    const auto one = train(given, one_device, {}, spec);
    Adafactor adafactor{.weight_decay = 0.1};
    Muon muon{.by_adamw = {"embed.weight", "head.weight"}};
    const auto expected = spec.optimizer == "muon" ? reference(given, 0.5, 2, std::ref(muon))
                                                   : reference(given, 0.5, 2, std::ref(adafactor));
    CHECK(difference(expected, one[0]) < 1e-10);
    CHECK(compare(one[0], one) == "");
    CHECK(compare(one[0], train(given, one_device)[0]) != "");  // adamw
    for (const auto& strategy : kSharded) {
      INFO(strategy);
      CHECK(compare(one[0], train(given, plan_of(given, strategy, 4), {}, spec)) == "");
    }
    const auto parts = plan_of(given, kSharded[4], 4);
    CHECK(compare(one[0], train(given, parts, without_step_reductions, spec)) != "");
  }
}

TEST_CASE("groups select muon's parameters, and parameters it cannot step are refused") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, 4);
  auto spec = kMuon;
  spec.groups = {{{"head.weight"}, std::nullopt, false}, {{"blocks.0.mlp.up.weight"}, {}, true}};
  const auto plan = plan_of(given, kOneDevice, 4);
  const auto one = train(given, plan, {}, spec)[0];
  Muon muon{.by_adamw = {"embed.weight", "blocks.0.mlp.up.weight"}};
  CHECK(difference(reference(given, 0.5, 2, std::ref(muon)), one) < 1e-10);
  spec.groups = {{{"norm.weight"}, std::nullopt, false}};
  CHECK_THROWS_WITH(train(given, plan, {}, spec),
                    Catch::Contains("muon steps matrices, but a group wants it to step "
                                    "norm.weight, which has 1 dims"));
  const auto low = built_in(kMlp, kRows, 1, "float32");
  const std::string half =
      R"([["parallel_mode", [["data", 1]]], ["half", {"dtype": "bf16", "masters": false}]])";
  CHECK_THROWS_WITH(train(low, plan_of(low, half, kRows), {}, kAdafactor),
                    Catch::Contains("adafactor steps float32 parameters"));
}

}  // namespace perigee::parity
