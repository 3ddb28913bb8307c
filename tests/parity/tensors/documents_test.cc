// Packed documents train as the documents apart do, under every parallelism of attention.
#include "tests/parity/support/documents.h"

#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "capture/composites/attention.h"
#include "compile/compile.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kDocumentsRows = 4;

const char* const kGptWithoutDropout =
    "kind = 'gpt'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\npositions = 12\n";
const char* const kGrouped =
    "kind = 'llama'\nlayers = 2\nwidth = 24\nheads = 6\nkv_heads = 2\nhidden = 40\nvocab = 11\n";
// Every expert has places for all tokens: documents do not compete for them.
const char* const kExpertsForAll =
    "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\nexperts = 4\n"
    "capacity = 0\nbalance = 0.0\npositions = 12\n";

std::string hf(const std::string& fixture) {
  return "kind = 'hf'\nfolder = 'tests/train/hf/fixtures/" + fixture + "'\n";
}

plan::Plan plan_of(const Given& given, const std::string& mesh, const std::string& methods) {
  return plan_of(given, fmt::format(R"([["parallel_mode", {}], {}])", mesh, methods),
                 kDocumentsRows);
}

Outcome on_one(const Given& given, int64_t microbatches = 1) {
  return train(given, plan_of(given, R"([["data", 1]])",
                              fmt::format(R"(["gradient_accumulation", {{"microbatches": {}}}])",
                                          microbatches)))[0];
}

TEST_CASE("gradients of packed documents are those of the documents apart") {
  // Mistral's attention has a window of three tokens.
  for (const auto& keys :
       {std::string(kGptWithoutDropout), std::string(kLlama), std::string(kGrouped),
        std::string(kExpertsForAll), hf("mistral"), hf("llama-yarn"), hf("gpt2"), hf("qwen3")}) {
    INFO(keys);
    torch::manual_seed(5);
    const auto model = packed(keys, 3, {5, 1, 4, 2});
    const auto wanted = apart(model);
    CHECK(wanted.size() > 10);
    CHECK(compare_packed(model, model.given.inputs, wanted) == "");
    auto inputs = model.given.inputs;
    inputs["documents"] = at::zeros_like(inputs["documents"]);
    CHECK(compare_packed(model, inputs, wanted) != "");
    inputs = model.given.inputs;
    inputs["positions"] = at::arange(12).expand({3, 12}).contiguous();
    // Rotary positions are relative: within a document, any first position gives the same scores.
    const bool learned = keys.find("gpt") != keys.npos || keys.find("moe") != keys.npos;
    CHECK((compare_packed(model, inputs, wanted, 1e-8) != "") == learned);
    inputs["positions"] = inputs["positions"].flip(1).contiguous();
    CHECK(compare_packed(model, inputs, wanted) != "");
    // The kernels of one device, too.
    const auto plan = parity::plan_of(model.given, strategy_on(R"(["data", 1])", ""), 3);
    const auto one = train(model.given, plan)[0];
    CHECK(std::abs(one.losses[0] - wanted.at("loss").item<double>()) < 1e-10);
  }
}

TEST_CASE("packed documents train as on one device under every parallelism of attention") {
  const auto check = [](const std::string& keys, const std::string& mesh,
                        const std::string& methods, int64_t microbatches = 1) {
    torch::manual_seed(5);
    const auto model = packed(keys, kDocumentsRows, {3, 1, 3, 1}, microbatches);
    const auto& given = model.given;
    const auto one = on_one(given, microbatches);
    const auto plan = plan_of(given, mesh, methods);
    INFO(keys << mesh << methods);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    if (microbatches == 1) CHECK(compare_memory(given, plan, ranks) == "");
  };
  const std::string context = R"([["context", 2]])",
                    ring = R"(["context_parallel", {"attention": "ring"}])",
                    plain = R"(["context_parallel", {"attention": "ring", "load_balance": false}])",
                    levels = R"(["context_parallel", {"attention": "hierarchical"}])";
  for (const std::string& keys : {std::string(kGpt), std::string(kLlama), std::string(kGrouped)}) {
    check(keys, R"([["data", 2]])", R"(["grad_comm", {}])");
    check(keys, R"([["tensor", 2]])", R"(["tensor_parallel", {}])");
    check(keys, R"([["tensor", 2]])", R"(["tensor_parallel", {"sequence": true}])");
    check(keys, R"([["sequence", 2], ["data", 2]])", R"(["sequence_parallel", {}])");
    check(keys, context, R"(["context_parallel", {"load_balance": false}])");
    check(keys, context, R"(["context_parallel", {}])");
    check(keys, context, plain);
    check(keys, R"([["context", 4]])", ring);
    check(keys, R"([["sequence", 2], ["context", 2]])", levels);
    check(keys, R"([["pipe", 2]])",
          R"(["pipeline_parallel", {"starts": ["blocks.1"]}],
             ["gradient_accumulation", {"microbatches": 2}])",
          2);
  }
  check(kLlama, R"([["context", 2], ["pipe", 2]])",
        ring + R"(, ["pipeline_parallel", {"starts": ["blocks.1"]}],
             ["gradient_accumulation", {"microbatches": 2}])",
        2);
  check(kLlama, R"([["data", 2]])", R"(["fsdp", {}], ["checkpoint", ["blocks.*"]])");
  check(kLlama, R"([["data", 2]])", R"(["module_replace", {}])");
  check(kExpertsForAll, R"([["expert", 2], ["data", 2]])", R"(["expert_parallel", {}])");
  // A window is a bias of the scores.
  for (const auto& method :
       {R"(["context_parallel", {}])", R"(["sequence_parallel", {"axis": "context"}])",
        plain.c_str(), ring.c_str()}) {
    check(hf("mistral"), context, method);
  }
}

namespace nn = torch::nn;

// Attention within documents: by a mask that the model computes, or by the op of built-in models.
struct Masked : nn::Module {
  static constexpr int64_t kWidth = 12, kHeads = 2, kLength = 8;
  nn::Embedding embed{11, kWidth};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, 11};
  bool by_mask;
  explicit Masked(bool by_mask) : by_mask(by_mask) {
    register_module("embed", embed);
    register_module("qkv", qkv);
    register_module("out", out);
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    const auto x = embed(batch.at("tokens"));
    const auto b = x.size(0), s = x.size(1);
    const auto p = qkv(x).view({b, s, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto& documents = batch.at("documents");
    at::Tensor y;
    if (by_mask) {
      const auto own = documents.unsqueeze(-1) == documents.unsqueeze(-2);
      const auto past = at::ones({s, s}, documents.options().dtype(at::kBool)).tril();
      y = at::scaled_dot_product_attention(p[0], p[1], p[2], own.logical_and(past).unsqueeze(1));
    } else {
      y = attention(p[0], p[1], p[2], {.documents = documents, .causal = true});
    }
    const auto scores = out(x + y.transpose(1, 2).reshape({b, s, kWidth}));
    return nn::functional::cross_entropy(scores.flatten(0, 1), batch.at("labels").flatten());
  }
};

Given masked(bool by_mask) {
  torch::manual_seed(7);
  const auto net = std::make_shared<Masked>(by_mask);
  const auto draw = [] { return at::randint(0, 11, {kDocumentsRows, Masked::kLength}, at::kLong); };
  auto documents =
      at::tensor({0, 0, 0, 1, 2, 2, 2, 3}, at::kLong).expand({kDocumentsRows, 8}).contiguous();
  documents[1] = at::tensor({0, 1, 1, 1, 1, 1, 2, 2}, at::kLong);
  return capture_model({net,
                        {{"tokens", draw()}, {"labels", draw()}, {"documents", documents}},
                        [net](const Batch& b) { return Result{net->loss(b)}; }});
}

TEST_CASE("a mask of documents that a model computes trains as on one device") {
  const auto given = masked(true);
  const auto one = on_one(given);
  CHECK(compare(one, on_one(masked(false))) == "");
  for (const auto& [mesh, method] : std::vector<std::pair<std::string, std::string>>{
           {R"([["sequence", 2]])", R"(["sequence_parallel", {}])"},
           {R"([["context", 2]])", R"(["context_parallel", {}])"},
           {R"([["context", 4]])", R"(["context_parallel", {"attention": "ring"}])"},
           {R"([["context", 2]])",
            R"(["context_parallel", {"attention": "ring", "load_balance": true}])"},
           {R"([["sequence", 2], ["context", 2]])",
            R"(["context_parallel", {"attention": "hierarchical"}])"}}) {
    INFO(mesh << method);
    const auto plan = plan_of(given, mesh, method);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("numbers of documents that do not travel with their keys are detected") {
  torch::manual_seed(5);
  const auto model = packed(kLlama, kDocumentsRows, {3, 1, 3, 1});
  const auto& given = model.given;
  const auto one = on_one(given);
  const auto ring = plan_of(given, R"([["context", 2]])",
                            R"(["context_parallel", {"attention": "ring"}])");
  CHECK(compare(one, train(given, ring)) == "");
  const auto is_number = [](const Program& program, const graph::ValueId v) {
    return program.values[v.index].type.dtype == graph::DType::int64;
  };
  // Keys that pass by are taken for those of the rank's own documents.
  int64_t changed = 0;
  const auto own = [&](Program& program) {
    graph::Arg first;
    for (auto& section : program.sections) {
      for (auto& i : section.instructions) {
        if (!i.op.starts_with("perigee::attention")) continue;
        for (auto& [name, arg] : i.args) {
          if (name != "key_documents") continue;
          if (std::holds_alternative<std::monostate>(first)) first = arg;
          const auto& type = [&](const graph::Arg& v) -> const graph::TensorType& {
            return program.values[std::get<graph::ValueId>(v).index].type;
          };
          if (type(arg) == type(first) && arg != first) {
            arg = first;
            ++changed;
          }
        }
      }
    }
  };
  CHECK(compare(one, train(given, ring, own)) != "");
  CHECK(changed > 0);
  // The numbers stay where they are while keys travel.
  int64_t dropped = 0;
  const auto stay = [&](Program& program) {
    for (auto& section : program.sections) {
      dropped += std::erase_if(section.instructions, [&](const Instruction& i) {
        return i.op == "comm::shift" && !i.outputs.empty() && is_number(program, i.outputs[0]);
      });
    }
  };
  CHECK(compare(one, train(given, ring, stay)) != "");
  CHECK(dropped > 0);
}

// Each numbers once in a step, whatever the number of layers.
TEST_CASE("numbers of documents are exchanged once for all layers") {
  torch::manual_seed(5);
  for (const int64_t layers : {1, 3}) {
    std::string keys = kLlama;
    keys.replace(keys.find("layers = 2"), 10, fmt::format("layers = {}", layers));
    const auto model = packed(keys, kDocumentsRows, {3, 1, 3, 1});
    for (const char* methods :
         {R"(["sequence_parallel", {"axis": "context"}])", R"(["context_parallel", {}])"}) {
      INFO(layers << methods);
      DryRuns traces;
      const auto program = compile::compile(
          model.given.graph, plan_of(model.given, R"([["context", 2]])", methods), {}, 0, traces);
      int64_t gathers = 0;
      for (const auto& section : program.sections) {
        for (const auto& i : section.instructions) {
          gathers += i.op == "comm::all_gather" && !i.outputs.empty() &&
                     program.values[i.outputs[0].index].type.dtype == graph::DType::int64;
        }
      }
      CHECK(gathers == 1);
    }
  }
}

}  // namespace
}  // namespace perigee::parity
