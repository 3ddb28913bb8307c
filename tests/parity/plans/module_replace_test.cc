// The method module_replace: replaced layers train as their primitive ops do, on one device and on
// several, with fewer ops and less memory; layers whose inner values other ops read stay.
#include "tests/support/torch_test.h"
//
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <limits>

#include "capture/capture.h"
#include "compile/compile.h"
#include "graph/rewrite/fusions.h"
#include "plan/rewrites.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"

namespace perigee::parity {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using Catch::Matchers::Contains;
using Norm = std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)>;

constexpr int64_t kReplaceRows = 4, kSequence = 6, kWidth = 12, kClasses = 10, kHeads = 2;
constexpr double kEps = 1e-5;

enum class Masked { no, causal, lower, filled, added };
enum class Loss { negated, squeezed, sums };

// How each layer is written.
struct Style {
  Norm norm;
  Masked mask = Masked::causal;
  Loss loss = Loss::negated;
  bool divides = true;  // the scores, by sqrt(d)
  bool silu = true;
  bool bias = true;  // whether the norm has one
};

Tensor centered(const Tensor& x) { return x - x.mean(-1, true); }

const Norm kLayerNorms[] = {[](const Tensor& x, const Tensor& w, const Tensor& b) {
                              const auto d = centered(x);
                              return d * at::rsqrt(d.pow(2).mean(-1, true) + kEps) * w + b;
                            },
                            [](const Tensor& x, const Tensor& w, const Tensor& b) {
                              const auto middle = x.mean(-1, true);
                              const auto variance = (x - middle).pow(2).mean(-1, true);
                              return w * ((x - middle) / at::sqrt(variance + kEps)) + b;
                            },
                            [](const Tensor& x, const Tensor& w, const Tensor& b) {
                              const auto middle = x.mean(-1, true);
                              const auto variance = x.var(-1, /*unbiased=*/false, /*keepdim=*/true);
                              return (x - middle) / at::sqrt(variance + kEps) * w + b;
                            },
                            [](const Tensor& x, const Tensor& w, const Tensor& b) {
                              const auto d = centered(x);
                              return b + d / at::sqrt((d * d).mean(-1, true) + kEps) * w;
                            }};

const Norm kRmsNorms[] = {[](const Tensor& x, const Tensor& w, const Tensor&) {
                            return x * at::rsqrt(x.pow(2).mean(-1, true) + kEps) * w;
                          },
                          [](const Tensor& x, const Tensor& w, const Tensor&) {
                            return w * (x / at::sqrt(x.square().mean(-1, true) + kEps));
                          },
                          [](const Tensor& x, const Tensor& w, const Tensor&) {
                            return x * at::rsqrt((x * x).mean(-1, true) + kEps) * w;
                          }};

// A transformer block in primitive ops between an embedding and a head.
class Written : public nn::Module {
 public:
  explicit Written(Style style) : style_(std::move(style)) {
    torch::manual_seed(7);
    embed_ = register_module("embed", nn::Embedding(kClasses, kWidth));
    for (const char* name : {"norm1", "norm2"}) {
      weights_.push_back(
          register_parameter(std::string(name) + "_weight", at::rand({kWidth}) + 0.5));
      biases_.push_back(style_.bias
                            ? register_parameter(std::string(name) + "_bias", at::randn({kWidth}))
                            : Tensor());
    }
    qkv_ = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
    out_ = register_module("out", nn::Linear(kWidth, kWidth));
    gate_ = register_module("gate", nn::Linear(kWidth, 16));
    up_ = register_module("up", nn::Linear(kWidth, 16));
    down_ = register_module("down", nn::Linear(16, kWidth));
    head_ = register_module("head", nn::Linear(kWidth, kClasses));
  }

  Tensor scores(const Tensor& q, const Tensor& k) const {
    const auto scores = at::matmul(q, k.transpose(-2, -1));
    return style_.divides ? scores / std::sqrt(double(q.size(-1))) : scores * 0.4;
  }

  Tensor masked(const Tensor& scores) const {
    const auto s = scores.size(-1);
    const double infinity = std::numeric_limits<double>::infinity();
    switch (style_.mask) {
      case Masked::no:
        return scores;
      case Masked::causal:
        return scores.masked_fill(at::ones({s, s}, scores.options().dtype(at::kBool)).triu(1),
                                  -infinity);
      case Masked::lower:
        return scores.masked_fill(at::ones({s, s}, scores.options()).tril() == 0, -infinity);
      case Masked::filled:  // all keys except a token's own
        return scores.masked_fill(at::eye(s, scores.options()) == 1, -infinity);
      case Masked::added:
        break;
    }
    const auto places = at::arange(s, scores.options());
    return scores + (places.unsqueeze(0) - places.unsqueeze(1)) * 0.25;
  }

  Tensor attend(const Tensor& x) {
    const auto parts =
        qkv_(x).view({x.size(0), x.size(1), 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    inner = at::softmax(masked(scores(parts[0], parts[1])), -1);
    return out_(at::matmul(inner, parts[2]).transpose(1, 2).reshape(x.sizes()));
  }

  Tensor logits(const Tensor& tokens) {
    auto x = embed_(tokens);
    x = x + attend(style_.norm(x, weights_[0], biases_[0]));
    const auto y = style_.norm(x, weights_[1], biases_[1]);
    const auto gate = gate_(y);
    const auto bent = style_.silu ? at::silu(gate) : gate * at::sigmoid(gate);
    return head_(x + down_(bent * up_(y)));
  }

  Tensor loss(const Tensor& logits, const Tensor& labels) const {
    const auto at = labels.unsqueeze(-1);
    switch (style_.loss) {
      case Loss::negated:
        return (-at::log_softmax(logits, -1).gather(-1, at)).squeeze(-1).mean();
      case Loss::squeezed:
        return at::log_softmax(logits.flatten(0, 1), -1)
            .gather(1, at.flatten(0, 1))
            .squeeze(1)
            .neg()
            .mean();
      case Loss::sums:
        break;
    }
    return (at::logsumexp(logits, -1) - logits.gather(-1, at).squeeze(-1)).mean();
  }

  Tensor inner;  // the attention's weights

 private:
  Style style_;
  std::vector<Tensor> weights_, biases_;
  nn::Embedding embed_{nullptr};
  nn::Linear qkv_{nullptr}, out_{nullptr}, gate_{nullptr}, up_{nullptr}, down_{nullptr},
      head_{nullptr};
};

Given given_of(const Style& style, bool weights_are_a_result = false, bool wide = true,
               int64_t sequence = kSequence) {
  if (wide) c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  Written net(style);
  c10::set_default_dtype(caffe2::TypeMeta::Make<float>());
  const Batch batch = {{"tokens", at::randint(kClasses, {kReplaceRows, sequence})},
                       {"labels", at::randint(kClasses, {kReplaceRows, sequence})}};
  const auto captured = capture(net, batch, [&](const Batch& b) {
    const auto logits = net.logits(b.at("tokens"));
    Result result{net.loss(logits, b.at("labels"))};
    if (weights_are_a_result) result.results["weights"] = net.inner;
    return result;
  });
  Given given{captured.graph, {batch.begin(), batch.end()}};
  for (const auto& p : net.named_parameters()) given.inputs[p.key()] = p.value().detach().clone();
  return given;
}

const std::string kOneDevice =
    R"([["parallel_mode", [["data", 1]]], ["module_replace", {"enabled": false}]])";
std::string replaced(const std::string& axes = R"([["data", 1]])", const std::string& more = "",
                     const std::string& config = "{}") {
  return R"([["parallel_mode", )" + axes + R"(], ["module_replace", )" + config + "]" + more + "]";
}

std::map<std::string, int64_t> counts(const Given& given, const std::string& config = "{}") {
  const auto plan = plan_of(given, replaced(R"([["data", 1]])", "", config), kReplaceRows);
  std::vector<graph::Rewritten> done;
  plan::apply(plan.rewrites, given.graph, &done);
  std::map<std::string, int64_t> found;
  for (size_t r = 0; r < done.size(); ++r) found[plan.rewrites[r].name] = done[r].count;
  return found;
}

int64_t live_ops(const graph::Graph& graph) {
  return std::ssize(graph::eliminate_dead_code(graph).nodes);
}

using Counts = std::map<std::string, int64_t>;

}  // namespace

TEST_CASE("layers in primitive ops are replaced, and train as before") {
  std::vector<std::pair<Style, Counts>> cases;
  const Masked masks[] = {Masked::causal, Masked::lower, Masked::filled, Masked::added};
  const Loss losses[] = {Loss::negated, Loss::squeezed, Loss::sums};
  for (size_t k = 0; k < 4; ++k) {
    cases.push_back({{kLayerNorms[k], masks[k], losses[k % 3], k % 2 == 0, k % 2 == 1},
                     {{"attention", 1}, {"cross_entropy", 1}, {"layer_norm", 2}, {"swiglu", 1}}});
  }
  for (size_t k = 0; k < 3; ++k) {
    cases.push_back({{kRmsNorms[k], Masked::no, losses[k], k % 2 == 1, k % 2 == 0, false},
                     {{"attention", 1}, {"cross_entropy", 1}, {"rms_norm", 2}, {"swiglu", 1}}});
  }
  for (size_t k = 0; k < cases.size(); ++k) {
    INFO("style " << k);
    const auto& [style, expected] = cases[k];
    const auto given = given_of(style);
    CHECK(counts(given) == expected);
    const auto plan = plan_of(given, replaced(), kReplaceRows);
    const auto graph = plan::apply(plan.rewrites, given.graph);
    graph::verify(graph::eliminate_dead_code(graph));
    CHECK(live_ops(graph) < live_ops(given.graph) - 20);
    const auto one = train(given, plan_of(given, kOneDevice, kReplaceRows))[0];
    CHECK(one.losses[1] < one.losses[0]);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
    if (k % 2 == 0) continue;
    for (const auto& strategy :
         {replaced(R"([["tensor", 2], ["data", 2]])",
                   R"(, ["tensor_parallel", {"column": ["gate", "up"], "row": ["down"]}])"),
          replaced(R"([["data", 2]])", R"(, ["fsdp", {}])")}) {
      INFO(strategy);
      const auto sharded = plan_of(given, strategy, kReplaceRows);
      CHECK((sharded.rewrites == plan.rewrites));
      CHECK(compare(one, train(given, sharded)) == "");
    }
  }
}

TEST_CASE("rotary positions of llama become one op, sharded in any way") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, kReplaceRows);
  const auto plan = plan_of(
      given, strategy_on(R"(["data", 1])", R"(["module_replace", ["rotary"]])"), kReplaceRows);
  const auto graph = graph::eliminate_dead_code(plan::apply(plan.rewrites, given.graph));
  const auto of = [&](const std::string& op) {
    return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                         [&](const graph::Node& node) { return node.op == op; });
  };
  CHECK(of("perigee::rotary") == 2 * 2);  // queries and keys of two blocks
  CHECK(of("perigee::rotary_backward") == 2 * 2);
  CHECK(of("aten::split.Tensor") == 0);
  CHECK(of("aten::neg") == 0);
  const auto one = train(given, plan_of(given, kOneDevice, kReplaceRows))[0];
  const auto ranks = train(given, plan);
  CHECK(compare(one, ranks) == "");
  CHECK(compare_memory(given, plan, ranks) == "");
  for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
           {R"(["data", 2])", ""},
           {R"(["tensor", 2], ["data", 2])", R"(, ["tensor_parallel", {"sequence": true}])"},
           {R"(["sequence", 2])", R"(, ["sequence_parallel", {}])"},
           {R"(["context", 3])", R"(, ["context_parallel", {}])"},
           {R"(["pipe", 2])", R"(, ["pipeline_parallel", {}], ["checkpoint", ["blocks.*"]])"}}) {
    INFO(axes << more);
    const auto sharded = plan_of(
        given, strategy_on(axes, R"(["module_replace", ["rotary"]])" + more, 1), kReplaceRows);
    CHECK(compare(one, train(given, sharded)) == "");
  }
  // Rotated in the other direction.
  auto wrong = plan;
  for (const auto& rule : graph::fusions()) {
    if (rule.name != "rotary") continue;
    auto other = rule.replacement;
    for (auto& node : other.nodes) std::swap(node.args[1].second, node.args[2].second);
    wrong.rewrites = {{"wrong", graph::print(rule.pattern), graph::print(other)}};
  }
  CHECK(compare(one, train(given, wrong)) != "");
}

TEST_CASE("a pair for a module type is replaced in its modules only, and for its dtypes only") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, kReplaceRows);
  const auto plan_with = [&](const std::string& pairs, const std::string& more = "") {
    return plan_of(given, replaced(R"([["data", 1]])", more, pairs), kReplaceRows);
  };
  const auto of = [&](const plan::Plan& plan, const std::string& op) {
    const auto graph = graph::eliminate_dead_code(plan::apply(plan.rewrites, given.graph));
    return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                         [&](const graph::Node& node) { return node.op == op; });
  };
  const auto all = plan_with(R"([{"name": "swiglu", "within": ["Mlp"]}])");
  CHECK(of(all, "perigee::swiglu") == 2);
  const auto second = plan_with(R"([{"name": "swiglu", "within": ["blocks.1.mlp"]}])");
  CHECK(of(second, "perigee::swiglu") == 1);
  CHECK((plan::parse(plan::print(second)) == second));
  CHECK(compare(train(given, plan_of(given, kOneDevice, kReplaceRows))[0], train(given, second)) ==
        "");
  CHECK(plan_with(R"([{"name": "swiglu", "within": ["Attention"]}])").rewrites.empty());

  const auto sixteen = R"([{"name": "swiglu", "dtypes": ["float16", "bfloat16"]}])";
  const auto as_captured = plan_with(sixteen);
  CHECK(as_captured.rewrites.empty());
  CHECK_THAT(plan::print(as_captured),
             Contains("swiglu is for float16, bfloat16, but the model computes in float64"));
  CHECK(plan_with(sixteen, R"(, ["half", {"dtype": "bf16"}])").rewrites.size() == 1);
  CHECK(plan_with(R"([{"name": "swiglu", "dtypes": ["float64"]}])").rewrites.size() == 1);

  CHECK_THROWS_WITH(plan_with(R"([{"name": "swiglu", "within": ["Mlpp"]}])"),
                    Contains("did you mean \"Mlp\"?"));
  CHECK_THROWS_WITH(plan_with(R"([{"name": "swiglu", "dtypes": ["int8"]}])"),
                    Contains("dtypes are floating types, but one is \"int8\""));
  CHECK_THROWS_WITH(plan_with(R"([{"name": "swiglu", "inside": ["Mlp"]}])"),
                    Contains("with within and dtypes"));
  auto wrong = second;
  wrong.rewrites[0].within = {"blocks.7.mlp"};
  CHECK_THROWS_WITH(plan::verify(wrong, given.graph),
                    Contains("within of the rewrite swiglu names scopes of the graph"));
}

TEST_CASE("replaced layers take less memory") {
  for (const bool rms : {false, true}) {
    const Style style{.norm = rms ? kRmsNorms[0] : kLayerNorms[0], .bias = !rms};
    const auto given = given_of(style, false, /*wide=*/false, 64);
    const auto before = train(given, plan_of(given, kOneDevice, kReplaceRows))[0];
    const auto plan = plan_of(given, replaced(), kReplaceRows);
    const auto ranks = train(given, plan);
    CHECK(compare_memory(given, plan, ranks) == "");
    CHECK(ranks[0].losses[1] == Approx(before.losses[1]).epsilon(1e-5));
    CHECK(ranks[0].counted * 3 < before.counted * 2);
  }
}

TEST_CASE("a rewrite that computes another function is detected") {
  const auto given = given_of({.norm = kLayerNorms[0]});
  const auto one = train(given, plan_of(given, kOneDevice, kReplaceRows))[0];
  auto plan = plan_of(given, replaced(), kReplaceRows);
  for (const auto& rule : graph::fusions()) {
    if (rule.name != "swiglu") continue;
    auto wrong = rule.replacement;
    std::swap(wrong.outputs[1].value, wrong.outputs[2].value);  // the two gradients
    plan.rewrites = {{"wrong", graph::print(rule.pattern), graph::print(wrong)}};
    break;
  }
  CHECK(compare(one, train(given, plan)) != "");
}

TEST_CASE("a layer whose inner value another op reads is not replaced, and the plan says so") {
  const auto given = given_of({.norm = kLayerNorms[0]}, true);
  auto found = counts(given);
  CHECK(!found.contains("attention"));
  CHECK(found["layer_norm"] == 2);
  std::string sentences;
  for (const auto& decision : plan_of(given, replaced(), kReplaceRows).decisions) {
    sentences += decision.sentence + "\n";
  }
  CHECK_THAT(sentences, Contains("layer_norm is one op, forward and backward, at 2 places"));
  CHECK_THAT(sentences, Contains("aten::_softmax inside it is a result"));
}

TEST_CASE(
    "a strategy without module_replace replaces all layers, unless it names one of their ops") {
  const auto given = built_in(kLlama, kReplaceRows);
  const auto plan_with = [&](const std::string& more) {
    return plan_of(given, R"([["parallel_mode", [["data", 1]]])" + more + "]", kReplaceRows);
  };
  const auto replaced_in = [&](const std::string& more) {
    std::vector<std::string> names;
    for (const auto& rewrite : plan_with(more).rewrites) names.push_back(rewrite.name);
    return names;
  };
  const std::vector<std::string> all = {"rotary", "swiglu"};
  CHECK(replaced_in("") == all);
  CHECK_THAT(plan::print(plan_with("")), Contains("swiglu is one op, forward and backward, at 2"));
  CHECK(replaced_in(R"(, ["checkpoint", {"1": "blocks.*", "keep": ["mm"]}])") == all);
  CHECK(replaced_in(R"(, ["checkpoint", {"1": "blocks.*", "keep": ["swiglu"]}])") == all);
  CHECK(replaced_in(R"(, ["module_replace", ["swiglu"]])") == std::vector<std::string>{"swiglu"});
  for (const auto* more : {R"(, ["module_replace", {"enabled": false}])",
                           R"(, ["checkpoint", {"1": "blocks.*", "keep": ["silu"]}])",
                           R"(, ["checkpoint", {"1": "blocks.*", "ops": ["silu"]}])"}) {
    INFO(more);
    CHECK(replaced_in(more).empty());
  }
  CHECK_THROWS_WITH(plan_with(R"(, ["module_replace", {"1": "swiglu", "enabled": false}])"),
                    Contains("enabled = false replaces no layer, but pairs are listed"));
  const auto pinned = plan_of(
      given,
      R"([["parallel_mode", [["tensor", 2], ["data", 1]]], ["tensor_parallel", {}],
          ["partition_constraints", [{"name": "aten::silu", "parent_module": "mlp",
            "allowed_partition_dims": [], "replica_allowed": true}]]])",
      kReplaceRows);
  CHECK(pinned.rewrites.empty());
  CHECK_THAT(plan::print(pinned), Contains("layers stay as the model writes them, since the "
                                           "strategy names blocks.0.mlp/silu.0"));
  // Placements of a replaced layer's result are those of the op that replaces it.
  for (const auto* more : {R"(["sequence", 2]]], ["sequence_parallel", {}])",
                           R"(["context", 2]]], ["context_parallel", {}])",
                           R"(["context", 2]]], ["context_parallel", {"attention": "ring"}])"}) {
    INFO(more);
    const auto shared = plan_of(given, R"([["parallel_mode", [)" + std::string(more) + "]",
                                kReplaceRows);
    CHECK(shared.rewrites.size() == 2);
  }
  const auto gpt = built_in(kGpt, kReplaceRows);
  const auto plan = plan_of(gpt, R"([["parallel_mode", [["data", 1]]]])", kReplaceRows);
  CHECK(plan.rewrites.empty());
  CHECK_THAT(plan::print(plan), !Contains("module_replace"));
}

TEST_CASE("users add pairs of their own, and pairs that do not match are refused") {
  const auto given = given_of({.norm = kLayerNorms[0]});
  const std::string inputs =
      "perigee.graph/1\\ninput parameter %0: float32[1009, 1013] = x\\n"
      "input data %1: float32[1009, 1013] = gradient:y\\n";
  const std::string outputs = "output result %2 = y\\noutput gradient %3 = x\\n";
  const auto config = [&](const std::string& pattern, const std::string& replacement) {
    return R"([{"name": "mine", "pattern": ")" + pattern + R"(", "replacement": ")" + replacement +
           "\"}]";
  };
  // The scores' scale, as a product.
  const auto divide = inputs +
                      "%2: float32[1009, 1013] = aten::div.Scalar(self=%0, other=\\\"?c\\\")   @ "
                      "forward\\n%3: float32[1009, 1013] = aten::div.Scalar(self=%1, "
                      "other=\\\"?c\\\")   @ backward of %2\\n" +
                      outputs;
  const auto multiply = inputs +
                        "%2: float32[1009, 1013] = aten::mul.Scalar(self=%0, "
                        "other=\\\"1/?c\\\")   @ forward\\n%3: float32[1009, 1013] = "
                        "aten::mul.Scalar(self=%1, other=\\\"1/?c\\\")   @ backward of %2\\n" +
                        outputs;
  CHECK(counts(given, config(divide, multiply)) == Counts{{"mine", 1}});
  const auto plan = plan_of(given, replaced(R"([["data", 2]])", "", config(divide, multiply)),
                            kReplaceRows);
  CHECK((plan::parse(plan::print(plan)) == plan));
  CHECK(compare(train(given, plan_of(given, kOneDevice, kReplaceRows))[0], train(given, plan)) ==
        "");

  const auto refusal = [&](const std::string& text) {
    try {
      counts(given, text);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refusal(config(multiply, divide)), Contains("matches nowhere"));
  const auto forward_only = inputs +
                            "%2: float32[1009, 1013] = aten::silu(self=%0)   @ forward\\n"
                            "output result %2 = y\\n";
  CHECK_THAT(refusal(config(forward_only, divide)),
             Contains("pattern and replacement have the same inputs and outputs"));
  CHECK_THAT(refusal(config("nonsense", divide)), Contains("the pattern of mine is a graph"));
  CHECK_THAT(refusal(R"(["atention"])"), Contains("did you mean \"attention\"?"));
  CHECK_THAT(refusal(R"([{"name": "mine"}])"), Contains("names must be among"));
  CHECK_THAT(refusal(R"([{"name": "mine", "pattern": "x"}])"),
             Contains("{name, pattern, replacement}"));
}

}  // namespace perigee::parity
