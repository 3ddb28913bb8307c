// The method fp8 with native products of the device (aten::_scaled_mm, which LibTorch has on the
// CPU too): they equal the emulation's, sharded or not, and are emulated where the sizes do not
// allow native ones.
#include <fmt/format.h>

#include "base/error.h"
#include "compile/graph/fp8.h"
#include "exec/reference/reference.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/models.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using Catch::Matchers::Contains;
using compile::Instruction;
using compile::Program;
using graph::DType;

constexpr int64_t kNativeRows = 4, kSequence = 8;
constexpr double kFloat32 = 1e-5;
// All sizes are multiples of 16, and those of a half too.
const std::string kWide = "layers = 2\nwidth = 32\nheads = 4\nhidden = 64\nvocab = 32\n";
const std::string kWideGpt = "kind = 'gpt'\ntied = false\n" + kWide;
const std::string kWideLlama = "kind = 'llama'\nkv_heads = 4\n" + kWide;
constexpr const char* kNativeOne = R"(["data", 1])";
constexpr const char* kTensorwise = R"("fp8": "hybrid", "fp8_recipe": "tensorwise")";
constexpr const char* kDelayed = R"("fp8": "hybrid", "fp8_amax_history_len": 2)";
constexpr const char* kRowwise = R"("fp8_recipe": "rowwise", "fp8_margin": 1)";
constexpr double kBfloat16 = 3e-2;

Given model(const std::string& keys, const std::string& dtype = "float32") {
  torch::manual_seed(11);
  return built_in(keys, kNativeRows, 1, dtype, kSequence);
}

plan::Plan plan_for(const Given& given, const std::string& axes, const std::string& config,
                    const std::string& product, const std::string& more = "") {
  const auto fp8 = fmt::format(R"(["fp8", {{{}, "product": "{}"}}]{})", config, product, more);
  return plan_of(given, strategy_on(axes, fp8), kNativeRows);
}

Program program_of(const Given& given, const plan::Plan& plan) {
  compile::NoTraces none;
  return compile::compile(given.graph, plan, {}, 0, none);
}

// Steps whose updates equal the gradients.
compile::StepSpec plain_steps() { return {.optimizer = "sgd", .clip_norm = 0.5}; }

std::vector<Outcome> trained(const Given& given, const plan::Plan& plan,
                             const std::function<void(Program&)>& edit = {}) {
  return train(given, plan, edit, plain_steps(), 2);
}

// Returns "" if the losses and gradients of the rounded graphs differ by no more than the order of
// sums explains.
std::string first_difference(const exec::Tensors& a, const exec::Tensors& b) {
  for (const auto& [name, value] : a) {
    const auto other = b.at(name);
    const double most = std::max(1e-6, value.abs().max().to(at::kDouble).item<double>());
    const auto wrong = difference(value / most, other / most, 1e-5);
    if (!wrong.empty()) return name + ": " + wrong;
  }
  return "";
}

// The products of a graph by their result: "forward", "input" or "weight" gradients.
std::map<std::string, std::vector<size_t>> native_products(const graph::Graph& graph) {
  std::set<int32_t> gradients;
  for (const auto& output : graph.outputs) {
    if (output.kind == graph::Output::Kind::gradient) gradients.insert(output.value.index);
  }
  for (bool grew = true; grew;) {  // through views
    grew = false;
    for (const auto& node : graph.nodes) {
      if (node.op != "aten::t" || !gradients.contains(node.outputs[0].index)) continue;
      grew = gradients.insert(node.get<graph::ValueId>("self", {}).index).second || grew;
    }
  }
  std::map<std::string, std::vector<size_t>> found;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.op != "aten::_scaled_mm") continue;
    found[node.phase == graph::Phase::forward         ? "forward"
          : gradients.contains(node.outputs[0].index) ? "weight"
                                                      : "input"]
        .push_back(n);
  }
  return found;
}

// Returns the share of elements that differ by more than the order of sums explains. A few may:
// where a number is between two of eight bits, the order of sums decides which it becomes.
double share_apart(const exec::Tensors& a, const exec::Tensors& b) {
  double apart = 0, all = 0;
  for (const auto& [name, value] : a) {
    const double most = std::max(1e-6, value.abs().max().to(at::kDouble).item<double>());
    apart += ((value - b.at(name)).abs() > 1e-5 * most).sum().item<double>();
    all += static_cast<double>(value.numel());
  }
  return apart / all;
}

// Returns the graph with float32 in the place of bfloat16.
graph::Graph widened(graph::Graph graph) {
  for (auto& value : graph.values) {
    if (value.type.dtype == DType::bfloat16) value.type.dtype = DType::float32;
  }
  for (auto& node : graph.nodes) {
    for (auto& [name, arg] : node.args) {
      if (arg == graph::Arg(DType::bfloat16)) arg = DType::float32;
    }
  }
  return graph;
}

void set(graph::Node& node, const std::string& name, const graph::Arg& arg) {
  for (auto& [key, value] : node.args) {
    if (key == name) value = arg;
  }
}

}  // namespace

TEST_CASE("a device's eight-bit products equal the emulation's") {
  for (const auto& keys : {kWideGpt, kWideLlama}) {
    const auto given = model(keys);
    for (const char* config : {kTensorwise, kDelayed, R"("fp8": "e4m3")"}) {
      INFO(keys << config);
      const auto graph_with = [&](const char* product) {
        return compile::round_to_fp8(given.graph, plan_for(given, kNativeOne, config, product), {});
      };
      auto inputs = given.inputs;
      const auto native = graph_with("native"), emulated = graph_with("emulated");
      graph::verify(native);
      for (const auto& input : native.inputs) {  // histories: scales that are neither 1 nor equal
        if (input.name.starts_with(compile::kFp8History)) {
          inputs[input.name] = at::rand(native.type(input.value).shape) + 0.5;
        }
      }
      const auto expected = exec::evaluate(emulated, inputs);
      CHECK(first_difference(expected, exec::evaluate(native, inputs)) == "");
      const auto products = native_products(native);
      REQUIRE(products.size() == 3);
      const auto layers = products.at("forward").size();
      CHECK(layers == (keys == kWideGpt ? 9u : 15u));
      CHECK(products.at("input").size() == layers);  // embeddings precede all layers
      CHECK(products.at("weight").size() == layers);
      for (const auto& [kind, nodes] : products) {
        INFO(kind);
        auto wrong = native;  // one product uses a factor's scale for both
        auto& node = wrong.nodes[nodes.back()];
        set(node, "scale_a", *node.find("scale_b"));
        CHECK(first_difference(expected, exec::evaluate(wrong, inputs)) != "");
      }
    }
  }
}

TEST_CASE("a device's eight-bit products with a scale for each row equal the emulation's") {
  for (const auto& keys : {kWideGpt, kWideLlama}) {
    INFO(keys);
    const auto given = model(keys), low = model(keys, "bfloat16");
    const auto native_with = [&](const char* config) {
      return compile::round_to_fp8(low.graph, plan_for(low, kNativeOne, config, "native"), {});
    };
    const auto expected = exec::evaluate(
        compile::round_to_fp8(given.graph, plan_for(given, kNativeOne, kRowwise, "emulated"), {}),
        given.inputs);
    const auto native = widened(native_with(kRowwise));
    graph::verify(native);
    CHECK(share_apart(expected, exec::evaluate(native, given.inputs)) < 5e-3);
    const auto products = native_products(native);
    REQUIRE(products.size() == 3);
    for (const auto& [kind, nodes] : products) {
      INFO(kind);
      CHECK(nodes.size() == (keys == kWideGpt ? 9u : 15u));
      auto wrong = native;  // the magnitudes of rows in the place of their scales
      auto& node = wrong.nodes[nodes.back()];
      const auto factor = node.get<graph::ValueId>("self", {});
      set(node, "scale_a", *wrong.nodes[wrong.values[factor.index].producer].find("amax"));
      CHECK(share_apart(expected, exec::evaluate(wrong, given.inputs)) > 2e-2);
    }
  }
  const auto wide = model(kWideGpt);  // products of 32 bits are emulated
  CHECK(native_products(
            compile::round_to_fp8(wide.graph, plan_for(wide, kNativeOne, kRowwise, "native"), {}))
            .empty());
}

TEST_CASE("with scales of rows, gradients in E5M2 are first factors of native products only") {
  struct Columns : torch::nn::Module {  // read as it is stored: its gradient is x^T times another
    at::Tensor weight = register_parameter("weight", at::randn({32, 48}, at::kBFloat16));
  };
  const auto net = std::make_shared<Columns>();
  const auto given = capture_model(
      {net, {{"x", at::randn({16, 32}, at::kBFloat16)}}, [net](const Batch& batch) {
         const auto y = batch.at("x").mm(net->weight);
         return Result{y.to(at::kFloat).pow(2).mean()};
       }});
  const auto native = [&](const char* config) {
    return native_products(
        compile::round_to_fp8(given.graph, plan_for(given, kNativeOne, config, "native"), {}));
  };
  CHECK(native(kRowwise).at("forward").size() == 1);
  CHECK(native(kRowwise).at("weight").size() == 1);
  const auto hybrid = native(R"("fp8": "hybrid", "fp8_recipe": "rowwise")");
  CHECK(hybrid.at("forward").size() == 1);
  CHECK(hybrid.count("weight") == 0);
  CHECK(native(kTensorwise).at("weight").size() == 1);
}

TEST_CASE("ranks that multiply rows of eight-bit floats train as one device does") {
  for (const auto& keys : {kWideGpt, kWideLlama}) {
    INFO(keys);
    const auto given = model(keys, "bfloat16");
    const auto one_device = plan_for(given, kNativeOne, kRowwise, "native");
    const auto one = trained(given, one_device)[0];
    const auto emulated = trained(given, plan_for(given, kNativeOne, kRowwise, "emulated"));
    CHECK(compare(one, emulated, kBfloat16) == "");
    CHECK(compare_memory(given, one_device, train(given, one_device)) == "");
    const auto products = count(program_of(given, one_device), "aten::_scaled_mm");
    CHECK(products == (keys == kWideGpt ? 27 : 45));
    // Each factor of a rank with whole rows finds its magnitudes itself.
    CHECK(count(program_of(given, one_device), "perigee::fp8_amax_rows") == 0);
    for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
             {R"(["data", 2])", ""},
             {R"(["tensor", 2])", R"(, ["tensor_parallel", {}], ["overlap", {"slices": 2}])"},
             {R"(["tensor", 2], ["data", 2])", R"(, ["tensor_parallel", {"sequence": true}])"},
             {R"(["pipe", 2], ["data", 1])", R"(, ["pipeline_parallel", {}])"},
             {R"(["data", 2])", R"(, ["fsdp", {}], ["checkpoint", ["blocks.*"]])"}}) {
      INFO(axes << more);
      const auto plan = plan_for(given, axes, kRowwise, "native", more);
      CHECK(count(program_of(given, plan), "aten::_scaled_mm") > 0);
      CHECK(compare(one, trained(given, plan), kBfloat16) == "");
      if (!more.empty()) continue;
      const auto least = [](Program& edited) {  // magnitudes of the rank with the least
        for (auto& section : edited.sections) {
          for (auto& i : section.instructions) {
            for (auto& [name, arg] : i.args) {
              if (name == "op" && arg == graph::Arg(std::string("max"))) arg = std::string("min");
            }
          }
        }
      };
      CHECK(compare(one, trained(given, plan, least), kBfloat16) != "");
    }
  }
}

TEST_CASE("ranks that multiply eight-bit floats train as one device does") {
  for (const auto& keys : {kWideGpt, kWideLlama}) {
    const auto given = model(keys);
    for (const char* config : {kTensorwise, kDelayed}) {
      INFO(keys << config);
      const auto emulated = trained(given, plan_for(given, kNativeOne, config, "emulated"))[0];
      const auto one_device = plan_for(given, kNativeOne, config, "native");
      CHECK((plan::parse(plan::print(one_device)) == one_device));
      const auto one = trained(given, one_device);
      CHECK(compare(emulated, one, kFloat32) == "");
      CHECK(compare_memory(given, one_device, train(given, one_device)) == "");
      const auto products = count(program_of(given, one_device), "aten::_scaled_mm");
      CHECK(products == (keys == kWideGpt ? 27 : 45));
      if (config == kDelayed) {  // each of a layer's three factors is read once for both
        CHECK(count(program_of(given, one_device), "perigee::fp8_cast_amax") == products);
        CHECK(count(program_of(given, one_device), "perigee::fp8_amax") == 0);
      }
      for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
               {R"(["data", 2])", ""},
               {R"(["tensor", 2])", R"(, ["tensor_parallel", {}], ["overlap", {"slices": 2}])"},
               {R"(["tensor", 2], ["data", 2])", R"(, ["tensor_parallel", {"sequence": true}])"},
               {R"(["data", 2])", R"(, ["fsdp", {}], ["checkpoint", ["blocks.*"]])"}}) {
        INFO(axes << more);
        const auto plan = plan_for(given, axes, config, "native", more);
        const auto program = program_of(given, plan);
        CHECK(count(program, "aten::_scaled_mm") >= products);
        CHECK(compare(emulated, trained(given, plan), kFloat32) == "");
        const auto wrong = [](Program& edited) {
          for (auto& section : edited.sections) {
            for (auto& i : section.instructions) {
              if (i.op != "aten::_scaled_mm" || i.phase != graph::Phase::backward) continue;
              for (auto& [name, arg] : i.args) {
                if (name == "scale_b") arg = i.args[2].second;
              }
              return;
            }
          }
        };
        CHECK(compare(emulated, trained(given, plan, wrong), kFloat32) != "");
      }
    }
  }
}

TEST_CASE("ranks gather the factors of products in eight bits") {
  torch::manual_seed(11);
  const auto given = built_in(kWideLlama, kNativeRows, 1, "float32",
                              32);  // weights are cheap to gather
  const auto plan_of_product = [&](const char* product) {
    return plan_for(given, R"(["tensor", 2])", kTensorwise, product,
                    R"(, ["tensor_parallel", {}])");
  };
  const auto gathered = [&](const plan::Plan& plan) {
    const auto program = program_of(given, plan);
    std::pair<int64_t, int64_t> found;  // elements, and bytes
    for (const auto& section : program.sections) {
      for (const auto& i : section.instructions) {
        if (i.op != "comm::all_gather") continue;
        const auto& type = program.values[i.outputs[0].index].type;
        found.first += type.numel();
        found.second += type.bytes();
      }
    }
    return found;
  };
  const auto wide = gathered(plan_of_product("emulated")),
             narrow = gathered(plan_of_product("native"));
  CHECK(narrow.first == wide.first);  // the same sharding of products
  CHECK(narrow.second < wide.second / 2);
  const auto emulated = trained(given, plan_for(given, kNativeOne, kTensorwise, "emulated"))[0];
  CHECK(compare(emulated, trained(given, plan_of_product("native")), 1e-3) == "");
}

TEST_CASE("products of unsupported sizes are emulated on all ranks") {
  // 24 is no multiple of 16, and half of 48 is none.
  const std::string odd =
                        "kind = 'llama'\nlayers = 1\nwidth = 24\nheads = 4\nkv_heads = 4\n"
                        "hidden = 40\nvocab = 12\n",
                    half =
                        "kind = 'llama'\nlayers = 1\nwidth = 48\nheads = 4\nkv_heads = 4\n"
                        "hidden = 48\nvocab = 48\n";
  const auto small = model(odd);
  CHECK(count(program_of(small, plan_for(small, kNativeOne, kTensorwise, "native")),
              "aten::_scaled_mm") == 0);
  const auto doubles = model(kWideLlama, "float64");
  CHECK(count(program_of(doubles, plan_for(doubles, kNativeOne, kTensorwise, "native")),
              "aten::_scaled_mm") == 0);
  const auto given = model(half);
  const auto emulated = trained(given, plan_for(given, kNativeOne, kTensorwise, "emulated"))[0];
  const auto one_device = plan_for(given, kNativeOne, kTensorwise, "native");
  const auto plan = plan_for(given, R"(["tensor", 2])", kTensorwise, "native",
                             R"(, ["tensor_parallel", {}])");
  const auto all = count(program_of(given, one_device), "aten::_scaled_mm"),
             some = count(program_of(given, plan), "aten::_scaled_mm");
  CHECK(all == 24);
  CHECK(some < all);
  int64_t emulated_products = 0;
  for (const auto* op : {"aten::mm", "perigee::mm_", "perigee::addmm_"}) {
    emulated_products += count(program_of(given, plan), op);
  }
  CHECK(some + emulated_products >= all);
  CHECK(compare(emulated, trained(given, plan), kFloat32) == "");
}

TEST_CASE("native products on a device without them are refused, and auto emulates") {
  const auto given = model(kWideLlama);
  const auto plan_on = [&](const std::string& config, bool eight_bits) {
    const auto data = methods::Json::parse(fmt::format(
        R"([["parallel_mode", [["data", 1]]], ["fp8", {{"fp8_recipe": {}}}]])", config));
    return methods::make_plan(
        methods::from_json(data, "test"),
        {.graph = &given.graph, .global_batch = kNativeRows, .eight_bits = eight_bits});
  };
  using Product = plan::Fp8::Product;
  CHECK(plan_on(R"("tensorwise")", true).fp8->product == Product::native);
  CHECK_THAT(plan::explain(plan_on(R"("tensorwise")", true)),
             Contains("the device multiplies them itself where sizes are multiples of 16"));
  CHECK(plan_on(R"("tensorwise")", false).fp8->product == Product::emulated);
  CHECK(plan_on(R"("tensorwise", "product": "emulated")", true).fp8->product == Product::emulated);
  CHECK(plan_on(R"("blockwise")", true).fp8->product == Product::emulated);
  CHECK_THROWS_WITH(plan_on(R"("tensorwise", "product": "native")", false),
                    Contains("needs devices that multiply eight-bit floats"));
  CHECK_THROWS_WITH(plan_on(R"("blockwise", "product": "native")", true),
                    Contains("or each of its rows, but fp8_recipe is blockwise"));
  CHECK_THROWS_WITH(plan_on(R"("tensorwise", "product": "nativ")", true),
                    Contains("must be one of auto, emulated, native, but got \"nativ\", did you"));
}

}  // namespace perigee::parity
