// The method amp_native: ops round as under LibTorch's autocast, ranks agree with one device and
// with each other on overflows, with negative controls.
//
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <set>

#include "capture/capture.h"
#include "compile/graph/autocast.h"
#include "exec/op_threads.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

namespace nn = torch::nn;
using compile::Instruction;
using compile::Program;

// All ops on which LibTorch's lists for CPU and CUDA agree; norms are float32 in both.
class Residual : public nn::Module {
 public:
  Residual() {
    torch::manual_seed(3);
    norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({12})));
    up_ = register_module("up", nn::Linear(12, 20));
    down_ = register_module("down", nn::Linear(20, 12));
    final_ = register_module("final", nn::LayerNorm(nn::LayerNormOptions({12})));
    wide_ = register_module("wide", nn::Linear(12, 20));
    back_ = register_module("back", nn::Linear(20, 12));
    image_ = register_module("image", nn::Conv1d(nn::Conv1dOptions(3, 5, 2)));
    head_ = register_module("head", nn::Linear(15, 6));
  }
  at::Tensor outputs(const at::Tensor& x) {
    const auto sum = x + down_(at::relu(up_(norm_(x))));
    const auto y = final_(sum);  // read twice: its gradients add up in its own type
    const auto branch = y + back_(at::relu(wide_(y)));
    return head_(at::tanh(image_(branch.view({-1, 3, 4}))).flatten(1));
  }
  at::Tensor loss(const Batch& batch) {
    return at::mse_loss(outputs(batch.at("x")), batch.at("targets"));
  }

 private:
  nn::LayerNorm norm_{nullptr}, final_{nullptr};
  nn::Linear up_{nullptr}, down_{nullptr}, wide_{nullptr}, back_{nullptr}, head_{nullptr};
  nn::Conv1d image_{nullptr};
};

// A linear layer on x, which a test fills.
class Regression : public nn::Module {
 public:
  Regression() {
    torch::manual_seed(4);
    linear_ = register_module("linear", nn::Linear(4, 4));
  }
  at::Tensor loss(const Batch& batch) {
    return at::mse_loss(linear_(batch.at("x")), batch.at("targets"));
  }

 private:
  nn::Linear linear_{nullptr};
};

template <class Net>
Given given_of(Net& net, Batch batch) {
  const auto captured = capture(net, batch, [&](const Batch& b) { return Result{net.loss(b)}; });
  Given given{captured.graph, {batch.begin(), batch.end()}};
  for (const auto& p : net.named_parameters()) given.inputs[p.key()] = p.value().detach().clone();
  return given;
}

Given regression(const std::function<void(at::Tensor& targets)>& edit) {
  Regression net;
  auto targets = at::randn({kRows, 4});
  edit(targets);
  return given_of(net, {{"x", at::randn({kRows, 4})}, {"targets", targets}});
}

graph::Graph cast_graph(const graph::Graph& graph, plan::Plan plan = {},
                        graph::DType dtype = graph::DType::bfloat16) {
  plan.precision.dtype = dtype;
  return compile::autocast(graph, plan);
}

std::string amp(const std::string& axes, const std::string& config, const std::string& more = "") {
  return R"([["parallel_mode", )" + axes + R"(], ["amp_native", )" + config + "]" + more + "]";
}

const std::string kOne = R"([["data", 1]])", kTwo = R"([["data", 2]])";

double number(const Outcome& outcome, const std::string& name) {
  return outcome.tensors.find("loss_scale:" + name)->second.first.item<double>();
}

void drop_collectives(Program& program, const std::string& name) {
  for (auto& section : program.sections) {
    if (section.name() != name) continue;
    std::erase_if(section.instructions, [](const Instruction& i) {
      return i.kind == Instruction::Kind::collective || i.kind == Instruction::Kind::wait;
    });
  }
}

// Returns whether every rank skipped both steps: weights unchanged, the scale backed off twice.
bool all_skipped(const Given& given, const std::vector<Outcome>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [&](const Outcome& rank) {
    bool same = number(rank, "skipped_steps") == 2 && number(rank, "value") == 16384;
    for (const auto& [name, part] : rank.tensors) {
      if (name.find(':') != name.npos) {
        same = same && (name.starts_with("loss_scale:") || part.first.eq(0).all().item<bool>());
        continue;
      }
      auto whole = given.inputs.at(name);
      for (size_t d = 0; d < part.second.size(); ++d) {
        whole = whole.narrow(static_cast<int64_t>(d), part.second[d].begin, part.second[d].length);
      }
      same = same && part.first.equal(whole);
    }
    return same;
  });
}

}  // namespace

TEST_CASE("ops round as under LibTorch's autocast, in both passes") {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    INFO(type);
    Residual net;
    const Batch batch = {{"x", at::randn({kRows, 12})}, {"targets", at::randn({kRows, 6})}};
    const auto given = given_of(net, batch);
    const auto cast = cast_graph(
        given.graph, {}, type == at::kHalf ? graph::DType::float16 : graph::DType::bfloat16);
    graph::verify(cast);
    const auto ours = exec::evaluate(cast, given.inputs);

    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, type);
    const auto outputs = net.outputs(batch.at("x"));
    const auto loss = net.loss(batch);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    CHECK(outputs.scalar_type() == type);
    loss.backward();
    CHECK(ours.at("loss").equal(loss.detach()));
    for (const auto& p : net.named_parameters()) {
      INFO(p.key());
      const auto& gradient = ours.at("gradient:" + p.key());
      CHECK(gradient.scalar_type() == at::kFloat);
      CHECK(gradient.equal(p.value().grad()));
    }
    // It differs from the result without the method.
    CHECK(!exec::evaluate(given.graph, given.inputs).at("loss").equal(loss.detach()));
  }
}

TEST_CASE("autocast's lists of ops equal LibTorch's") {
#define PERIGEE_NAME(name, ...) #name,
  const std::set<std::string> low_ops = {AT_FORALL_LOWER_PRECISION_FP(PERIGEE_NAME)};
  const std::set<std::string> full_ops = {AT_FORALL_FP32(PERIGEE_NAME)
                                              AT_FORALL_FP32_SET_OPT_DTYPE(PERIGEE_NAME) "norm"};
  const std::set<std::string> widest_ops = {AT_FORALL_PROMOTE(PERIGEE_NAME)};
#undef PERIGEE_NAME
  // No graph has composites: the ops that they decompose into are looked up.
  const std::map<std::string, std::string> parts = {
      {"conv1d", "convolution"},
      {"conv2d", "convolution"},
      {"conv3d", "convolution"},
      {"conv_transpose1d", "convolution"},
      {"conv_transpose2d", "convolution"},
      {"conv_transpose3d", "convolution"},
      {"einsum", "bmm"},
      {"chain_matmul", "mm"},
      {"linalg_multi_dot", "mm"},
      {"_thnn_fused_lstm_cell", "mm"},
      {"_thnn_fused_gru_cell", "mm"},
      {"lstm_cell", "mm"},
      {"gru_cell", "mm"},
      {"rnn_tanh_cell", "mm"},
      {"rnn_relu_cell", "mm"},
      {"_scaled_dot_product_flash_attention", "attention"},
      {"scaled_dot_product_attention", "attention"},
      {"layer_norm", "native_layer_norm"},
      {"group_norm", "native_group_norm"},
      {"frobenius_norm", "linalg_vector_norm"},
      {"nuclear_norm", "sum"},
      {"linalg_matrix_norm", "linalg_vector_norm"},
      {"nll_loss", "nll"},
      {"nll_loss2d", "nll"},
      {"multilabel_margin_loss", "multilabel_margin_loss_forward"},
      {"pdist", "_pdist_forward"},
      {"cdist", "_cdist_forward"},
      {"softmax", "_softmax"},
      {"log_softmax", "_log_softmax"},
      {"grid_sampler", "grid_sampler_2d"},
  };
  // Composites whose parts follow their operands.
  const std::set<std::string> follow = {"cosine_similarity",
                                        "poisson_nll_loss",
                                        "cosine_embedding_loss",
                                        "hinge_embedding_loss",
                                        "kl_div",
                                        "l1_loss",
                                        "margin_ranking_loss",
                                        "triplet_margin_loss",
                                        "tensordot"};
  // In LibTorch's lists after 2.11, whose lists a plan has (runtime/installing.md).
  const std::set<std::string> later = {"rms_norm"};
  const auto check = [&](const std::set<std::string>& ops, plan::Rounding rounding) {
    for (auto name : ops) {
      if (follow.contains(name) || later.contains(name)) continue;
      if (const auto part = parts.find(name); part != parts.end()) name = part->second;
      INFO(name);
      CHECK(plan::built_in_rounding("aten::" + name, {}) == rounding);
    }
  };
  check(low_ops, plan::Rounding::low);
  check(full_ops, plan::Rounding::full);
  check(widest_ops, plan::Rounding::widest);
  for (const char* op : {"aten::add.Tensor", "aten::gelu", "aten::relu", "perigee::rms_norm"}) {
    CHECK(plan::built_in_rounding(op, {}) == plan::Rounding::follow);
  }
}

TEST_CASE("mixed-precision ranks are bit-equal to one device where sums are exact") {
  // Small integers, in which every product and sum is exact in bfloat16.
  Regression net;
  const auto integers = [](std::vector<int64_t> shape) {
    return at::randint(-1, 2, shape, at::kFloat);
  };
  auto given = given_of(net, {{"x", integers({kRows, 4})}, {"targets", integers({kRows, 4})}});
  given.inputs["linear.weight"] = integers({4, 4});
  given.inputs["linear.bias"] = integers({4});
  const auto cast = cast_graph(given.graph);
  const auto one = exec::evaluate(cast, given.inputs);
  for (const int64_t ranks : {2, 4}) {
    for (const char* placement : {"", "S0", "S1"}) {
      plan::Plan plan;
      plan.mesh.axes = {{"data", ranks}};
      if (*placement) plan.placements["linear.weight"] = mesh::parse_placements(placement);
      const auto many = evaluate_ranks(partition_all(cast, plan), plan.mesh, given.inputs);
      INFO(ranks << " ranks " << placement);
      for (const auto& [name, value] : one) {
        INFO(name);
        CHECK(many.at(name).equal(value));
      }
    }
  }
}

TEST_CASE("sharded parameters are cast before they are gathered") {
  Regression net;
  const auto given = given_of(net,
                              {{"x", at::randn({kRows, 4})}, {"targets", at::randn({kRows, 4})}});
  plan::Plan plan;
  plan.mesh.axes = {{"data", 2}};
  plan.placements["linear.weight"] = mesh::parse_placements("S0");
  const auto cast = cast_graph(given.graph, plan);
  int gathered = 0;
  for (const auto& local : partition_all(cast, plan)) {
    for (const auto& node : local.graph.nodes) {
      if (node.op != "comm::all_gather") continue;
      ++gathered;
      CHECK(local.graph.type(node.outputs[0]).dtype == graph::DType::bfloat16);
    }
  }
  CHECK(gathered >= 2);
}

TEST_CASE("built-in models train on ranks as on one device, within bfloat16's rounding") {
  const auto check = [](const std::string& keys, const std::string& axes, const std::string& more) {
    INFO(keys << axes << more);
    torch::manual_seed(5);
    const int64_t microbatches = more.find("accumulation") == more.npos ? 1 : 2;
    const auto given = built_in(keys, kRows, microbatches, "float32");
    const auto plan = plan_of(given, amp(axes, R"({"dtype": "bf16"})", more), kRows);
    auto one_device = plan_of(given, amp(kOne, R"({"dtype": "bf16"})"), kRows);
    one_device.microbatches = microbatches;
    const auto one = train(given, one_device)[0];
    const auto ranks = train(given, plan);
    auto plain = plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kRows);
    plain.microbatches = microbatches;
    const auto full = train(given, plain)[0];
    for (const auto& rank : ranks) {
      for (size_t step = 0; step < one.losses.size(); ++step) {
        CHECK(rank.losses[step] == Approx(one.losses[step]).epsilon(step == 0 ? 2e-3 : 1e-2));
        CHECK(rank.norms[step] == Approx(one.norms[step]).epsilon(3e-2));
        CHECK(rank.losses[step] == ranks[0].losses[step]);
      }
    }
    CHECK(one.losses[0] != full.losses[0]);
    CHECK(one.losses[0] == Approx(full.losses[0]).epsilon(2e-2));
    CHECK(one.losses[1] < one.losses[0]);
  };
  check(kGpt, kTwo, "");
  check(kGpt, R"([["tensor", 2]])", R"(, ["tensor_parallel", {"sequence": true}])");
  check(kLlama, R"([["data", 2], ["tensor", 2]])", R"(, ["tensor_parallel", {}])");
  check(kMoe, kTwo, "");
  check(kMlp, R"([["data", 4]])", R"(, ["gradient_accumulation", {"microbatches": 2}])");
  check(kGpt, kTwo, R"(, ["checkpoint", ["blocks.*"]])");
  check(kResnet, kTwo, "");
  check(kGpt, kTwo, R"(, ["zero1", {}])");
  check(kGpt, kTwo, R"(, ["fsdp", {"match": "blocks.*"}])");
  check(kGpt, R"([["data", 2], ["tensor", 2]])",
        R"(, ["tensor_parallel", {}], ["fsdp", {"match": "blocks.*"}])");
  check(kGpt, kTwo, R"(, ["fsdp", {"match": "blocks.*"}], ["checkpoint", ["blocks.*"]])");
  check(kLlama, kTwo,
        R"(, ["fsdp", {"match": "blocks.*"}], ["gradient_accumulation", {"microbatches": 2}])");
  check(kMlp, kTwo, R"(, ["zero2", {}], ["gradient_accumulation", {"microbatches": 2}])");
}

TEST_CASE("a unit that is re-gathered is cast anew") {
  torch::manual_seed(5);
  exec::set_op_threads(1);       // as ranks: some ops allocate by the number of threads
  constexpr int64_t kMany = 64;  // the peak lies where the backward pass begins
  const auto given = built_in(kGpt, kMany, 1, "float32");
  const auto peak = [&](const char* reshard) {
    const auto plan = plan_of(given,
                              amp(kTwo, R"({"dtype": "bf16"})",
                                  std::string(R"(, ["fsdp", {"match": "blocks.*", )") +
                                      R"("reshard_after_forward": )" + reshard + "}]"),
                              kMany);
    DryRuns traces;
    return compile::compile(given.graph, plan, {}, 0, traces).peak_bytes;
  };
  CHECK(peak("true") < peak("false"));
}

TEST_CASE("units are gathered in the low precision, their gradients scattered in their own") {
  torch::manual_seed(5);
  const auto given = built_in(kGpt, kRows, 1, "float32");
  const std::string fsdp = R"(, ["fsdp", {"match": "blocks.*"}])";
  DryRuns traces;
  const auto moved = [&](const std::string& strategy, const std::string& op) {
    const auto program = compile::compile(given.graph, plan_of(given, strategy, kRows), {}, 1,
                                          traces);
    int64_t bytes = 0;
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.op != op) continue;
        bytes += program.values[instruction.outputs[0].index].type.bytes();
      }
    }
    return bytes;
  };
  const auto plain = R"([["parallel_mode", [["data", 2]]])" + fsdp + "]";
  const auto low = amp(kTwo, R"({"dtype": "bf16"})", fsdp);
  CHECK(2 * moved(low, "comm::all_gather") == moved(plain, "comm::all_gather"));
  CHECK(moved(low, "comm::reduce_scatter") == moved(plain, "comm::reduce_scatter"));
  // Limited to scopes of the model, parameters are gathered in their own precision.
  const auto within = amp(kTwo, R"({"dtype": "bf16", "match": "blocks.0"})", fsdp);
  CHECK(moved(within, "comm::all_gather") == moved(plain, "comm::all_gather"));
}

TEST_CASE("an overflow in one rank's part of a unit makes all ranks skip the step") {
  const auto given = regression([](at::Tensor& targets) { targets[kRows - 1][3] = 1e6; });
  for (const char* method : {"zero1", "zero2", "fsdp"}) {
    INFO(method);
    const auto plan = plan_of(
        given, amp(kTwo, R"({"dtype": "fp16"})", std::string(", [\"") + method + "\", {}]"), kRows);
    CHECK(all_skipped(given, train(given, plan)));
    CHECK(!all_skipped(
        given, train(given, plan, [](Program& program) { drop_collectives(program, "step"); })));
  }
}

TEST_CASE("amp_native leaves float64 unchanged") {
  torch::manual_seed(5);
  const auto given = built_in(kMlp, kRows);
  const auto plain = train(given, plan_of(given, R"([["parallel_mode", [["data", 2]]]])", kRows));
  const auto both = train(given, plan_of(given, amp(kTwo, R"({"dtype": "bf16"})"), kRows));
  CHECK(compare(plain[0], both, 0) == "");
}

TEST_CASE("a gradient that overflows on one rank makes all ranks skip the step") {
  const auto given = regression([](at::Tensor& targets) { targets[kRows - 1][3] = 1e6; });
  const auto plan = plan_of(given, amp(kTwo, R"({"dtype": "fp16"})"), kRows);
  CHECK(all_skipped(given, train(given, plan)));
  CHECK(!all_skipped(
      given, train(given, plan, [](Program& program) { drop_collectives(program, "micro"); })));
}

TEST_CASE("a gradient that overflows in one shard of a parameter makes all ranks skip the step") {
  const auto given = regression([](at::Tensor& targets) { targets[kRows - 1][3] = 1e6; });
  auto plan = plan_of(given, amp(R"([["tensor", 2]])", R"({"dtype": "fp16"})"), kRows);
  plan.placements["linear.weight"] = plan.placements["linear.bias"] = mesh::parse_placements("S0");
  CHECK(all_skipped(given, train(given, plan)));
  CHECK(!all_skipped(
      given, train(given, plan, [](Program& program) { drop_collectives(program, "step"); })));
}

TEST_CASE("the loss scale grows, stays or backs off as in torch.amp.GradScaler") {
  const auto given = regression([](at::Tensor&) {});
  const auto scale_after = [&](const std::string& config) {
    const auto rank = train(given, plan_of(given, amp(kTwo, config), kRows))[1];
    return std::pair(number(rank, "value"), number(rank, "skipped_steps"));
  };
  using Pair = std::pair<double, double>;
  CHECK(scale_after(R"({"init_scale": 8, "growth_interval": 1})") == Pair{32, 0});
  CHECK(scale_after(R"({"init_scale": 8, "growth_interval": 2, "growth_factor": 3})") ==
        Pair{24, 0});
  CHECK(scale_after(R"({"init_scale": 8})") == Pair{8, 0});
  CHECK(scale_after(R"({"loss_scale": 4})") == Pair{4, 0});
  // 1e30 times a gradient is infinite in float16.
  CHECK(scale_after(R"({"init_scale": 1e30, "backoff_factor": 0.25})").second == 2);
  CHECK(scale_after(R"({"loss_scale": 1e30})") == Pair{static_cast<float>(1e30), 2});
  // Two finite steps: both are within the patience of three, or the second is not.
  CHECK(scale_after(R"({"init_scale": 1e30, "hysteresis": 3})") ==
        Pair{static_cast<float>(1e30), 2});
  CHECK(scale_after(R"({"init_scale": 1e30, "hysteresis": 2})") ==
        Pair{static_cast<float>(5e29), 2});
  CHECK(scale_after(R"({"init_scale": 1e30, "min_scale": 6e29})") ==
        Pair{static_cast<float>(6e29), 2});
}

TEST_CASE("the loss scale changes neither gradients, norm nor clipping") {
  const auto given = regression([](at::Tensor&) {});
  const auto with = [&](const std::string& config) {
    return train(given, plan_of(given, amp(kTwo, config), kRows))[0];
  };
  const auto plain = with(R"({"dtype": "bf16"})");
  auto scaled = with(R"({"dtype": "bf16", "loss_scale": 1024})");
  std::erase_if(scaled.tensors, [](const auto& t) { return t.first.starts_with("loss_scale:"); });
  CHECK(compare(plain, scaled, 1e-6) == "");
}

}  // namespace perigee::parity
