// The method grad_comm: buckets and streams change no number; rounding, sums and clipping before
// the reduction have their defined results, each with a negative control.
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <set>
#include <stdexcept>

#include "capture/capture.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

namespace nn = torch::nn;
using compile::Instruction;
using compile::Program;

const std::string kUntied =
    "kind = 'gpt'\nlayers = 2\nwidth = 24\nheads = 6\nvocab = 12\ntied = false\n";

std::string grad_comm_strategy(const std::string& axes, const std::string& config,
                               const std::string& more = "") {
  return R"([["parallel_mode", )" + axes + R"(], ["grad_comm", )" + config + "]" + more + "]";
}

const std::string kOne = R"([["data", 1]])", kTwo = R"([["data", 2]])",
                  kGradCommFour = R"([["data", 4]])", kHybrid = R"([["zero", 2], ["data", 2]])";

std::string accumulate(int64_t microbatches) {
  return fmt::format(R"(, ["gradient_accumulation", {{"microbatches": {}}}])", microbatches);
}

// Calls f(instruction, its stream) for each collective of the first rank's program.
void each_collective(const Given& given, const plan::Plan& plan, auto f) {
  DryRuns traces;
  const auto program = compile::compile(given.graph, plan, {.clip_norm = 0.5}, 0, traces);
  for (const auto& section : program.sections) {
    for (const auto& i : section.instructions) {
      if (i.kind == Instruction::Kind::collective) f(program, i, program.streams[i.stream].name());
    }
  }
}

void drop_stream(Program& program, const std::string& stream) {
  size_t dropped = 0;
  std::set<int32_t> events;
  for (auto& section : program.sections) {
    for (const auto& i : section.instructions) {
      if (i.kind == Instruction::Kind::collective && program.streams[i.stream].name() == stream) {
        events.insert(i.event);
      }
    }
    dropped += std::erase_if(section.instructions, [&](const Instruction& i) {
      return i.kind != Instruction::Kind::op && events.contains(i.event);
    });
  }
  if (dropped == 0) throw std::runtime_error("no collective of the stream " + stream);
}

// Two linear layers, in float64.
class Net : public nn::Module {
 public:
  Net() {
    torch::manual_seed(6);
    up_ = register_module("up", nn::Linear(5, 9));
    down_ = register_module("down", nn::Linear(9, 4));
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    return at::mse_loss(down_(at::tanh(up_(batch.at("x")))), batch.at("targets"));
  }

 private:
  nn::Linear up_{nullptr}, down_{nullptr};
};

// Captured at the batch's rows over `microbatches`.
Given regression(const Batch& batch, int64_t microbatches = 1) {
  Net net;
  Batch piece;
  for (const auto& [name, tensor] : batch) {
    piece[name] = tensor.narrow(0, 0, tensor.size(0) / microbatches);
  }
  const auto captured = capture(net, piece, [&](const Batch& b) { return Result{net.loss(b)}; });
  Given given{captured.graph, {batch.begin(), batch.end()}};
  for (const auto& p : net.named_parameters()) given.inputs[p.key()] = p.value().detach().clone();
  return given;
}

Batch batch_of(double size = 1) {
  torch::manual_seed(7);
  return {{"x", at::randn({kRows, 5}, at::kDouble)},
          {"targets", at::randn({kRows, 4}, at::kDouble) * size}};
}

const compile::StepSpec kSgd{.optimizer = "sgd"};
constexpr double kRate = 0.01;  // of run_rank

using Gradients = std::map<std::string, at::Tensor>;

// LibTorch's own gradients of the rows.
Gradients gradients_of(const Batch& batch, int64_t begin, int64_t rows) {
  Net net;
  Batch piece;
  for (const auto& [name, tensor] : batch) piece[name] = tensor.narrow(0, begin, rows);
  const at::AutoGradMode with(true);
  net.loss(piece).backward();
  Gradients gradients;
  for (const auto& p : net.named_parameters()) gradients[p.key()] = p.value().grad().clone();
  return gradients;
}

double norm_of(const Gradients& gradients) {
  double squared = 0;
  for (const auto& [name, g] : gradients) squared += g.pow(2).sum().item<double>();
  return std::sqrt(squared);
}

// Returns "" if each rank's weights were stepped by these gradients.
std::string stepped(const Given& given, const std::vector<Outcome>& ranks,
                    const Gradients& gradients, double tolerance = 1e-10) {
  for (const auto& rank : ranks) {
    for (const auto& [name, gradient] : gradients) {
      const auto& weight = rank.tensors.find(name)->second.first;
      const auto wrong = difference(weight, given.inputs.at(name) - kRate * gradient, tolerance);
      if (!wrong.empty()) return name + ": " + wrong;
    }
  }
  return "";
}

}  // namespace

TEST_CASE("the number of buckets and streams changes no result") {
  torch::manual_seed(5);
  const auto given = built_in(kGpt, kRows, 2);
  const auto one = train(given,
                         plan_of(given, grad_comm_strategy(kOne, "{}", accumulate(2)), kRows))[0];
  for (const std::string config : {R"({"bucket_mb": 0.001, "communicators": 3})",
                                   R"({"bucket_mb": 0.001, "communicators": 2, "overlap": false})",
                                   R"({"bucket_mb": 0.001, "buckets": 2})"}) {
    for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
             {kTwo, ""},
             {kTwo, R"(, ["zero1", {}])"},
             {kTwo, R"(, ["zero2", {}])"},
             {kTwo, R"(, ["fsdp", {}])"},
             {kHybrid, R"(, ["zero1", {}])"},
             {R"([["pipe", 2], ["data", 2]])", R"(, ["pipeline_parallel", {}])"}}) {
      INFO(config << axes << more);
      const auto plan = plan_of(given, grad_comm_strategy(axes, config, accumulate(2) + more),
                                kRows);
      const auto ranks = train(given, plan);
      CHECK(compare(one, ranks) == "");
      CHECK(compare_memory(given, plan, ranks) == "");
    }
  }
  const auto plan = plan_of(
      given, grad_comm_strategy(kTwo, R"({"bucket_mb": 0.001, "communicators": 2})", accumulate(2)),
      kRows);
  CHECK(compare(one, train(given, plan, [](Program& p) { drop_stream(p, "data#1"); })) != "");
}

TEST_CASE("there are at most as many buckets as asked for, alternating over the streams") {
  torch::manual_seed(5);
  const auto given = built_in(kUntied, kRows);
  const auto counts = [&](const std::string& config) {
    std::map<std::string, int> found;
    each_collective(given, plan_of(given, grad_comm_strategy(kTwo, config), kRows),
                    [&](const Program& program, const Instruction& i, const std::string& stream) {
                      const auto& type = program.values[i.outputs[0].index].type;
                      if (type.shape.size() == 1) ++found[stream];
                    });
    return found;
  };
  using Counts = std::map<std::string, int>;
  CHECK(counts("{}") == Counts{{"data", 1}});
  CHECK(counts(R"({"bucket_mb": 0.0001, "buckets": 4})")["data"] <= 4);
  CHECK(counts(R"({"bucket_mb": 0.0001, "buckets": 4})")["data"] >= 3);
  const auto many = counts(R"({"bucket_mb": 0.0001})")["data"];
  CHECK(many > 20);
  const auto turns = counts(R"({"bucket_mb": 0.0001, "communicators": 3})");
  CHECK(turns.size() == 3);
  for (const auto& [stream, count] : turns) CHECK(std::abs(3 * count - many) <= 3);
}

TEST_CASE("gradients rounded before the reduction are sums of rounded values") {
  const auto batch = batch_of();
  const auto given = regression(batch);
  for (const auto& [config, type, scale] :
       std::vector<std::tuple<std::string, at::ScalarType, double>>{
           {R"({"dtype": "bf16"})", at::kBFloat16, 1},
           {R"({"dtype": "bf16", "scale": 3})", at::kBFloat16, 3},
           {R"({"dtype": "fp16"})", at::kHalf, 128},
           {R"({"dtype": "float16", "scale": 0.5, "bucket_mb": 0.0001, "communicators": 2})",
            at::kHalf, 0.5}}) {
    INFO(config);
    Gradients expected;
    const auto first = gradients_of(batch, 0, 4), second = gradients_of(batch, 4, 4);
    for (const auto& [name, gradient] : first) {
      const auto rounded = [&](const at::Tensor& g) {
        return (g.div(2).to(at::kFloat) * scale).to(type).to(at::kFloat);
      };
      expected[name] = (rounded(gradient) + rounded(second.at(name))).to(type).to(at::kDouble) /
                       scale;
    }
    const auto plan = plan_of(given, grad_comm_strategy(kTwo, config), kRows);
    const auto ranks = train(given, plan, {}, kSgd, 1);
    CHECK(stepped(given, ranks, expected) == "");
    CHECK(stepped(given, ranks, gradients_of(batch, 0, 8), 1e-7) != "");
    CHECK(stepped(given, ranks, gradients_of(batch, 0, 8), 1e-3) == "");
    // Units of two ranks add the same numbers.
    for (const std::string more :
         {R"(, ["zero1", {}])", R"(, ["zero2", {}])", R"(, ["fsdp", {}])"}) {
      INFO(more);
      const auto parts = train(given,
                               plan_of(given, grad_comm_strategy(kTwo, config, more), kRows));
      const auto whole = train(given, plan);
      CHECK(compare(whole[0], parts, 1e-10) == "");
    }
    if (scale == 1) continue;
    // The scale is divided out.
    const auto kept = train(
        given, plan,
        [](Program& program) {
          for (auto& section : program.sections) {
            for (auto& i : section.instructions) {
              if (section.name() != "step" || i.op != "perigee::copy_") continue;
              for (auto& [name, arg] : i.args) {
                if (name == "scale") arg = 1.0;
              }
            }
          }
        },
        kSgd, 1);
    CHECK(stepped(given, kept, expected) != "");
  }
}

TEST_CASE("a rounded reduction holds with microbatches, hybrid sharding and stages") {
  torch::manual_seed(5);
  const auto given = built_in(kGpt, kRows, 2, "float32");
  const auto one = train(given,
                         plan_of(given, grad_comm_strategy(kOne, "{}", accumulate(2)), kRows))[0];
  for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
           {kTwo, ""},
           {kTwo, R"(, ["zero1", {}])"},
           {kTwo, R"(, ["zero2", {}])"},
           {kHybrid, R"(, ["zero1", {}])"},
           {kHybrid, R"(, ["zero2", {}])"},
           {kHybrid, R"(, ["fsdp", {}])"},
           {R"([["tensor", 2], ["data", 2]])", R"(, ["tensor_parallel", {}])"},
           {R"([["pipe", 2], ["data", 2]])", R"(, ["pipeline_parallel", {}])"}}) {
    INFO(axes << more);
    const auto plan = plan_of(
        given, grad_comm_strategy(axes, R"({"dtype": "bf16"})", accumulate(2) + more), kRows);
    const auto ranks = train(given, plan);
    CHECK(compare_memory(given, plan, ranks) == "");
    for (const auto& rank : ranks) {
      for (size_t step = 0; step < one.losses.size(); ++step) {
        CHECK(rank.losses[step] == Approx(one.losses[step]).epsilon(1e-3));
        CHECK(rank.norms[step] == Approx(one.norms[step]).epsilon(1e-2));
        CHECK(rank.norms[step] != one.norms[step]);
      }
    }
    // The reductions over the data axis have half the size.
    int reductions = 0;
    each_collective(
        given, plan, [&](const Program& program, const Instruction& i, const std::string& stream) {
          const bool gradients = i.op == "comm::reduce_scatter" || i.op == "comm::all_reduce";
          if (stream != "data" || !gradients) return;
          const auto& type = program.values[i.outputs[0].index].type;
          if (type.shape.size() != 1) return;
          ++reductions;
          CHECK(type.dtype == graph::DType::bfloat16);
        });
    CHECK(reductions > 0);
  }
}

TEST_CASE("a scale keeps small gradients from underflow in float16") {
  const auto batch = batch_of();
  auto given = regression(batch);
  for (const char* name : {"down.weight", "down.bias"}) given.inputs[name].mul_(1e-9);
  given.inputs["targets"].mul_(1e-9);
  const auto moved = [&](const std::string& config) {
    const auto rank = train(given, plan_of(given, grad_comm_strategy(kTwo, config), kRows), {},
                            kSgd, 1)[0];
    return !rank.tensors.find("down.bias")->second.first.equal(given.inputs["down.bias"]);
  };
  CHECK(moved("{}"));
  CHECK(!moved(R"({"dtype": "fp16", "scale": 1})"));
  CHECK(moved(R"({"dtype": "fp16", "scale": 1e6})"));
}

TEST_CASE("reduce = sum gives the mean times data ranks and microbatches") {
  const auto batch = batch_of();
  const auto given = regression(batch, 2);
  auto expected = gradients_of(batch, 0, 8);
  for (auto& [name, gradient] : expected) gradient = gradient * 4;
  std::optional<Outcome> whole;
  for (const std::string more : {"", R"(, ["zero1", {}])", R"(, ["zero2", {}])"}) {
    INFO(more);
    const auto plan = plan_of(
        given, grad_comm_strategy(kTwo, R"({"reduce": "sum"})", accumulate(2) + more), kRows);
    const auto ranks = train(given, plan, {}, kSgd, 1);
    CHECK(ranks[1].norms[0] == Approx(norm_of(expected)).epsilon(1e-10));
    if (!whole) {
      CHECK(stepped(given, ranks, expected) == "");
      whole = ranks[0];
    }
    CHECK(compare(*whole, ranks) == "");
    CHECK(ranks[0].losses[0] ==
          Approx(train(given, plan_of(given, grad_comm_strategy(kTwo, "{}", accumulate(2)), kRows),
                       {}, kSgd, 1)[0]
                     .losses[0]));
  }
}

TEST_CASE("ranks that clip before the reduction clip the gradients of their own samples") {
  auto batch = batch_of(20);
  batch["targets"].narrow(0, 0, 4).mul_(0.01);  // the ranks' norms differ widely
  const auto given = regression(batch);
  compile::StepSpec spec = kSgd;
  spec.clip_norm = 0.5;
  Gradients expected;
  double norms = 0;
  for (int64_t begin : {0, 4}) {
    const auto own = gradients_of(batch, begin, 4);
    const auto norm = norm_of(own);
    norms += norm / 2;
    for (const auto& [name, gradient] : own) {
      const auto clipped = gradient * std::min(1.0, 0.5 / (norm + 1e-6)) / 2;
      expected[name] = expected.contains(name) ? expected[name] + clipped : clipped;
    }
  }
  const auto check = [&](const std::string& axes, const std::string& more, int64_t microbatches) {
    INFO(axes << more);
    const auto cut = regression(batch, microbatches);
    auto plan = plan_of(cut, grad_comm_strategy(axes, R"({"clip": "before"})", more), kRows);
    if (axes.find("tensor") != std::string::npos) {
      plan.placements["up.weight"] = plan.placements["up.bias"] = mesh::parse_placements("S0,R");
    }
    // A rank's samples are its parts of each microbatch: with two they are other samples.
    const auto ranks = train(cut, plan, {}, spec, 1);
    if (microbatches > 1) return ranks;
    CHECK(ranks[0].norms[0] == Approx(norms).epsilon(1e-10));
    if (axes.find("tensor") == std::string::npos) CHECK(stepped(given, ranks, expected) == "");
    for (const auto& rank : ranks) CHECK(rank.norms == ranks[0].norms);
    return ranks;
  };
  const auto whole = check(kTwo, "", 1);
  const auto sharded = check(R"([["tensor", 2], ["data", 2]])", "", 1);
  CHECK(compare(whole[0], sharded) == "");
  // Clipping after the reduction gives another step.
  const auto after = train(given, plan_of(given, grad_comm_strategy(kTwo, "{}"), kRows), {}, spec,
                           1);
  CHECK(stepped(given, after, expected) != "");
  // Without clipping there is no difference.
  spec.clip_norm = 1e9;
  const auto none = check(kTwo, accumulate(2), 2);
  CHECK(stepped(given, none, gradients_of(batch, 0, 8)) == "");
}

TEST_CASE("stages and data ranks that clip before the reduction step as data ranks do") {
  torch::manual_seed(5);
  const auto given = built_in(kGpt, kRows, 2);
  const auto config = R"({"clip": "before", "bucket_mb": 0.001, "communicators": 2})";
  const auto data = train(
      given, plan_of(given, grad_comm_strategy(kTwo, config, accumulate(2)), kRows))[0];
  const auto plan = plan_of(given,
                            grad_comm_strategy(R"([["pipe", 2], ["data", 2]])", config,
                                               accumulate(2) + R"(, ["pipeline_parallel", {}])"),
                            kRows);
  CHECK(compare(data, train(given, plan)) == "");
  const auto one = train(given,
                         plan_of(given, grad_comm_strategy(kOne, "{}", accumulate(2)), kRows))[0];
  CHECK(compare(one, data, 1e-6) != "");
}

TEST_CASE("an embedding's gradient is computed from gathered rows") {
  torch::manual_seed(5);
  const auto given = built_in(kUntied, kRows, 2);
  const auto one = train(given,
                         plan_of(given, grad_comm_strategy(kOne, "{}", accumulate(2)), kRows))[0];
  const auto config = R"({"sparse": "gathered"})";
  for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
           {kTwo, ""},
           {kGradCommFour, ""},
           {kTwo, R"(, ["zero1", {}])"},
           {R"([["tensor", 2], ["data", 2]])", R"(, ["tensor_parallel", {}])"}}) {
    INFO(axes << more);
    const auto plan = plan_of(given, grad_comm_strategy(axes, config, accumulate(2) + more), kRows);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
  const auto moved = [&](const std::string& c, const std::string& op) {
    int64_t bytes = 0;
    each_collective(given, plan_of(given, grad_comm_strategy(kTwo, c, accumulate(2)), kRows),
                    [&](const Program& program, const Instruction& i, const std::string&) {
                      if (i.op == op) bytes += program.values[i.outputs[0].index].type.bytes();
                    });
    return bytes;
  };
  // The rows of 4 samples of 6 tokens, of width 24, and their indices, in each kind of microbatch;
  // the table of 12 rows is not reduced.
  CHECK(moved("{}", "comm::all_gather") == 0);
  CHECK(moved(config, "comm::all_gather") == 2 * (4 * 6 * 24 * 8 + 4 * 6 * 8));
  CHECK(moved("{}", "comm::all_reduce") - moved(config, "comm::all_reduce") >= 12 * 24 * 8);
  const auto plan = plan_of(given, grad_comm_strategy(kTwo, config, accumulate(2)), kRows);
  CHECK(compare(one, train(given, plan, [](Program& program) {
                  for (auto& section : program.sections) {
                    for (auto& i : section.instructions) {
                      if (i.op == "comm::all_gather") i.op = "perigee::none";
                    }
                    std::erase_if(section.instructions,
                                  [](const Instruction& i) { return i.op == "perigee::none"; });
                  }
                })) != "");
}

TEST_CASE("unsupported options of grad_comm are refused") {
  torch::manual_seed(5);
  const auto given = built_in(kGpt, kRows);
  const auto why = [&](const std::string& config, const std::string& more = "") -> std::string {
    try {
      train(given, plan_of(given, grad_comm_strategy(kTwo, config, more), kRows));
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing";
  };
  using Catch::Contains;
  CHECK_THAT(why(R"({"buckets": 0})"), Contains("buckets must be from 1 to"));
  CHECK_THAT(why(R"({"communicators": 65})"), Contains("communicators must be from 1 to 64"));
  CHECK_THAT(why(R"({"dtype": "fp8"})"), Contains("dtype must be one of fp16, bf16"));
  CHECK_THAT(why(R"({"scale": 2})"), Contains("no") && Contains("dtype"));
  CHECK_THAT(why(R"({"dtype": "fp16", "scale": 0})"), Contains("above 0"));
  CHECK_THAT(why(R"({"reduce": "men"})"), Contains("mean"));
  CHECK_THAT(why(R"({"clip": "before"})", R"(, ["zero1", {}])"), Contains("zero1"));
  CHECK_THAT(why(R"({"clip": "before"})", R"(, ["amp_native", {"dtype": "fp16"}])"),
             Contains("bfloat16"));
  CHECK_THAT(why(R"({"sparse": "gathered"})"), Contains("dense"));
}

}  // namespace perigee::parity
