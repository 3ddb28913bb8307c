// sequence_parallel and context_parallel: sharded sequences train as unsharded ones do.
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <map>

#include "base/error.h"
#include "graph/ops.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kSequenceRows = 4;

plan::Plan sequence_plan_of(const Given& given, const std::string& mesh,
                            const std::string& methods) {
  return plan_of(given, fmt::format(R"([["parallel_mode", {}], {}])", mesh, methods),
                 kSequenceRows);
}

namespace nn = torch::nn;

// Attention with a learnt bias of its scores, by head, query and key, or one for all queries.
struct Biased : nn::Module {
  static constexpr int64_t kWidth = 12, kHeads = 3, kLength = 8;
  nn::Embedding embed{11, kWidth};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, 11};
  at::Tensor bias;
  explicit Biased(bool for_each) {
    register_module("embed", embed);
    register_module("qkv", qkv);
    register_module("out", out);
    bias = register_parameter("bias", at::randn({kHeads, for_each ? kLength : 1, kLength}));
    to(at::kDouble);
    bias = named_parameters()["bias"];
  }
  at::Tensor loss(const Batch& batch) {
    const auto x = embed(batch.at("tokens"));
    const auto b = x.size(0), s = x.size(1);
    const auto p = qkv(x).view({b, s, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto y = at::scaled_dot_product_attention(p[0], p[1], p[2], bias);
    const auto scores = out(x + y.transpose(1, 2).reshape({b, s, kWidth}));
    return nn::functional::cross_entropy(scores.flatten(0, 1), batch.at("labels").flatten());
  }
};

Given biased(bool for_each) {
  torch::manual_seed(7);
  const auto net = std::make_shared<Biased>(for_each);
  const auto draw = [] { return at::randint(0, 11, {kSequenceRows, Biased::kLength}, at::kLong); };
  return capture_model({net, {{"tokens", draw()}, {"labels", draw()}}, [net](const Batch& b) {
                          return Result{net->loss(b)};
                        }});
}

TEST_CASE("an attention bias has the rows of a rank's queries in ring attention") {
  const auto given = biased(true);
  const auto one = train(given,
                         sequence_plan_of(given, R"([["data", 1]])", R"(["grad_comm", {}])"))[0];
  const std::string ring = R"(["context_parallel", {"attention": "ring"})";
  for (const auto& [mesh, method] : std::vector<std::pair<std::string, std::string>>{
           {R"([["context", 2]])", ring + "]"},
           {R"([["context", 4]])", ring + "]"},
           {R"([["context", 4]])", R"(["context_parallel", {"attention": "all_gather"}])"},
           {R"([["context", 2]])",
            R"(["context_parallel", {"attention": "ring", "load_balance": true}])"},
           {R"([["context", 2], ["data", 2]])", ring + R"(], ["fsdp", {"axis": "data"}])"}}) {
    INFO(mesh << method);
    const auto plan = sequence_plan_of(given, mesh, method);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
    if (method.find("ring") == method.npos) continue;
    // A block of the scores gets the bias of other keys.
    const auto wrong = [](Program& program) {
      graph::Arg first;
      for (auto& i : program.sections[0].instructions) {
        if (i.op != "perigee::attention") continue;
        for (auto& [name, arg] : i.args) {
          if (name != "bias") continue;
          if (std::holds_alternative<std::monostate>(first)) first = arg;
          const auto& type = [&](const graph::Arg& v) -> const graph::TensorType& {
            return program.values[std::get<graph::ValueId>(v).index].type;
          };
          if (type(arg) == type(first)) arg = first;
        }
      }
    };
    CHECK(compare(one, train(given, plan, wrong)) != "");
  }
  const auto broadcast = biased(false);
  CHECK_THROWS_WITH(sequence_plan_of(broadcast, R"([["context", 2]])", ring + "]"),
                    Catch::Contains("trained bias to have a number for each query and key"));
  const auto gathers = sequence_plan_of(broadcast, R"([["context", 2]])",
                                        R"(["context_parallel", {}])");
  CHECK(compare(train(broadcast,
                      sequence_plan_of(broadcast, R"([["data", 1]])", R"(["grad_comm", {}])"))[0],
                train(broadcast, gathers)) == "");
}

TEST_CASE("a sequence of too few pieces for two axes is refused with the order that has none") {
  const auto given = built_in(kGpt, kSequenceRows, 1, "float64", 12);
  const std::string mesh = R"([["sequence", 2], ["context", 2]])",
                    context = R"(["context_parallel", {"attention": "ring"}])",
                    sequence = R"(["sequence_parallel", {}])";
  CHECK_THROWS_WITH(sequence_plan_of(given, mesh, context + ", " + sequence),
                    Catch::Contains("must divide into 8 pieces, two for each rank of axes sequence "
                                    "and context, but has 12: list sequence_parallel before the "
                                    "method of axis context"));
  const auto one = train(given,
                         sequence_plan_of(given, R"([["data", 1]])", R"(["grad_comm", {}])"));
  CHECK(compare(one[0], train(given, sequence_plan_of(given, mesh, sequence + ", " + context))) ==
        "");
}

TEST_CASE("sharded sequences train as on one device") {
  const auto check = [](const std::string& keys, const std::string& mesh,
                        const std::string& methods, int64_t sequence = 6) {
    torch::manual_seed(5);
    const auto given = built_in(keys, kSequenceRows, 1, "float64", sequence);
    const auto one = train(given,
                           sequence_plan_of(given, R"([["data", 1]])", R"(["grad_comm", {}])"))[0];
    const auto plan = sequence_plan_of(given, mesh, methods);
    INFO(keys << mesh << methods);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  };
  const std::string grouped =
      "kind = 'llama'\nlayers = 2\nwidth = 24\nheads = 6\nkv_heads = 2\n"
      "hidden = 40\nvocab = 11\n";
  const std::string two = R"([["sequence", 2]])", three = R"([["sequence", 3], ["data", 2]])",
                    context = R"([["context", 2]])", both = R"([["tensor", 2], ["context", 3]])";
  const std::string ulysses = R"(["sequence_parallel", {}])",
                    gather = R"(["context_parallel", {}])";
  for (const char* keys : {kGpt, kLlama}) {
    check(keys, two, ulysses);
    check(keys, three, ulysses);
    check(keys, context, gather);
    check(keys, context, R"(["context_parallel", {"attention": "all_to_all"}])");
    check(keys, both, R"(["tensor_parallel", {}], ["context_parallel", {}])");
  }
  // Sequences of 8 divide into two pieces for each rank.
  const std::string ring = R"(["context_parallel", {"attention": "ring"}])",
                    plain = R"(["context_parallel", {"attention": "ring", "load_balance": false}])",
                    levels = R"(["context_parallel", {"attention": "hierarchical"}])",
                    nested = R"([["sequence", 2], ["context", 2]])";
  for (const std::string& keys : {std::string(kGpt), std::string(kLlama), grouped}) {
    check(keys, context, gather, 8);
    check(keys, context, ring, 8);
    check(keys, context, plain, 8);
    check(keys, R"([["context", 4]])", ring, 8);
    check(keys, nested, levels, 8);
  }
  check(kGpt, R"([["context", 3]])", ring);
  check(kGpt, R"([["context", 6]])", plain);
  check(kGpt, R"([["context", 2], ["sequence", 2]])", levels, 8);
  check(kGpt, R"([["tensor", 2], ["context", 2]])",
        R"(["tensor_parallel", {"sequence": true}], )" + ring, 8);
  check(kGpt, R"([["context", 2], ["pipe", 2]])",
        ring + R"(, ["pipeline_parallel", {"starts": ["blocks.1"]}],
            ["gradient_accumulation", {"microbatches": 1}])",
        8);
  check(kGpt, R"([["context", 2], ["data", 2]])",
        ring + R"(, ["fsdp", {"axis": "data"}], ["checkpoint", ["blocks.*"]])", 8);
  check(grouped, two, ulysses);
  // The tokens of a rank are several pieces of those that experts queue.
  const std::string experts =
      "kind = 'moe'\nlayers = 1\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\nexperts = 4\n"
      "top_k = 2\n";
  for (const std::string more : {"", "capacity = 0.8\n", "capacity = 0.0\ndropless = true\n"}) {
    check(experts + more, R"([["data", 2], ["sequence", 2]])", ulysses);
    check(experts + more, R"([["context", 2], ["data", 2]])", gather, 8);
  }
  check(experts, R"([["zero", 2], ["sequence", 2]])", ulysses + R"(, ["fsdp", {}])");
  // Some ranks have no head of keys and values: all make the same collectives again.
  check(grouped, R"([["sequence", 2], ["tensor", 2]])",
        R"(["tensor_parallel", {}], ["sequence_parallel", {}],
            ["checkpoint", {"1": "blocks.*", "keep": ["mm"]}])");
  check(grouped, R"([["context", 3]])", gather);
  check(kGpt, R"([["context", 2], ["pipe", 2]])",
        R"(["context_parallel", {}], ["pipeline_parallel", {"starts": ["blocks.1"]}],
            ["gradient_accumulation", {"microbatches": 1}])");
  check(kGpt, R"([["sequence", 2], ["data", 2]])",
        R"(["sequence_parallel", {}], ["zero2", {}], ["checkpoint", ["blocks.*"]])");
}

// For each of two layers: queries, keys and values, and the result of attention, in each pass; or
// keys and values, and their gradients.
TEST_CASE("sharded sequences move the expected bytes") {
  torch::manual_seed(5);
  const auto counts = [&](const char* keys, const char* mesh, const char* methods) {
    const auto given = built_in(keys, kSequenceRows, 1, "float64", 12);
    DryRuns traces;
    const auto program = compile::compile(given.graph, sequence_plan_of(given, mesh, methods), {},
                                          0, traces);
    std::string text;
    for (const auto& [what, count] : exchanges_of(program))
      text += fmt::format("{} x {}\n", count, what);
    return text;
  };
  for (const char* keys : {kGpt, kLlama}) {
    INFO(keys);
    CHECK(counts(keys, R"([["sequence", 2]])", R"(["sequence_parallel", {}])") ==
          "8 x backward all_to_all\n8 x forward all_to_all\n");
    CHECK(counts(keys, R"([["context", 2]])", R"(["context_parallel", {}])") ==
          "4 x backward all_gather\n4 x backward reduce_scatter\n4 x forward all_gather\n");
    // Keys and values are sent to each other rank; their gradients around the ring and back.
    CHECK(counts(keys, R"([["context", 3]])", R"(["context_parallel", {"attention": "ring"}])") ==
          "10 x backward shift\n4 x forward shift\n");
    CHECK(counts(keys, R"([["sequence", 2], ["context", 3]])",
                 R"(["context_parallel", {"attention": "hierarchical"}])") ==
          "8 x backward all_to_all\n10 x backward shift\n8 x forward all_to_all\n4 x forward "
          "shift\n");
  }
}

// All ranks' attention reads equally many keys, or that of later ranks more.
TEST_CASE("zigzag shards of a sequence balance the work under a causal mask") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, kSequenceRows, 1, "float64", 16);
  const auto work = [&](const std::string& method, int64_t rank) {
    DryRuns traces;
    const auto plan = sequence_plan_of(given, R"([["context", 4]])", method);
    const auto program = compile::compile(given.graph, plan, {}, rank, traces);
    int64_t pairs = 0;  // of a query and a key
    for (const auto& section : program.sections) {
      for (const auto& i : section.instructions) {
        if (i.op != "perigee::attention") continue;
        const graph::Node node{.op = i.op, .args = i.args};
        const auto size = [&](const char* name) {
          return program.values[node.get<graph::ValueId>(name, {}).index].type.shape[2];
        };
        const bool causal = node.get<bool>("causal", false);
        pairs += causal ? size("query") * (size("query") + 1) / 2 : size("query") * size("key");
      }
    }
    return pairs;
  };
  for (const char* attention : {"all_gather", "ring"}) {
    const auto method = fmt::format(R"(["context_parallel", {{"attention": "{}"}}])", attention);
    INFO(method);
    CHECK(work(method, 0) == work(method, 3));
    const auto plain = fmt::format(
        R"(["context_parallel", {{"attention": "{}", "load_balance": false}}])", attention);
    CHECK(7 * work(plain, 0) < 2 * work(plain, 3));
    int64_t all = 0, all_plain = 0;
    for (int64_t rank = 0; rank < 4; ++rank) {
      all += work(method, rank);
      all_plain += work(plain, rank);
    }
    CHECK(all == all_plain);
  }
}

// A rank of a ring has its own part of a layer's keys and values and two parts in transit.
TEST_CASE("no rank of a ring ever has all keys and values") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, kSequenceRows, 1, "float64", 32);
  for (const char* attention : {"all_gather", "ring"}) {
    DryRuns traces;
    const auto plan = sequence_plan_of(
        given, R"([["context", 8]])",
        fmt::format(R"(["context_parallel", {{"attention": "{}"}}])", attention));
    const auto program = compile::compile(given.graph, plan, {}, 0, traces);
    int64_t most = 0;
    for (const auto& section : program.sections) {
      for (const auto& i : section.instructions) {
        if (!i.op.starts_with("perigee::attention")) continue;
        const graph::Node node{.op = i.op, .args = i.args};
        const auto key = node.get<graph::ValueId>("key", {});
        most = std::max(most, program.values[key.index].type.shape[2]);
      }
    }
    INFO(attention);
    CHECK(most == (attention == std::string("ring") ? 4 : 30));
  }
}

TEST_CASE("a missing exchange or sum of a sharded sequence is detected") {
  torch::manual_seed(5);
  const auto given = built_in(kGpt, kSequenceRows);
  const auto one = train(given,
                         sequence_plan_of(given, R"([["data", 1]])", R"(["grad_comm", {}])"))[0];
  for (const auto& [axis, method] : std::map<std::string, std::string>{
           {"sequence", R"(["sequence_parallel", {}])"},
           {"context", R"(["context_parallel", {}])"},
           {"tensor", R"(["context_parallel", {"axis": "tensor", "attention": "ring"}])"}}) {
    const auto plan = sequence_plan_of(given, fmt::format(R"([["{}", 2]])", axis), method);
    for (const char* op : {"comm::all_to_all", "comm::all_gather", "comm::reduce_scatter",
                           "comm::all_reduce", "comm::shift"}) {
      bool any = false;
      const auto ranks = train(given, plan, [&](Program& program) {
        for (auto& section : program.sections) {
          any = std::erase_if(section.instructions,
                              [&](const Instruction& i) { return i.op == op; }) > 0 ||
                any;
        }
      });
      INFO(method << " without " << op);
      CHECK((compare(one, ranks) != "") == any);
    }
  }
}

TEST_CASE("sequence_parallel and context_parallel refuse models that they cannot shard") {
  const auto refused = [](const std::string& keys, const std::string& mesh,
                          const std::string& method) -> std::string {
    const auto given = built_in(keys, kSequenceRows);
    try {
      sequence_plan_of(given, mesh, method);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  CHECK(refused(kGpt, R"([["data", 2]])", R"(["sequence_parallel", {}])") ==
        "[sequence_parallel] the sequence is sharded over an axis of the mesh (data), but got "
        "\"sequence\"");
  CHECK(refused(kGpt, R"([["sequence", 4]])", R"(["sequence_parallel", {}])") ==
        "[sequence_parallel] a sequence must divide over the 4 ranks of axis sequence, but has 6");
  CHECK(refused("kind = 'gpt'\nlayers = 1\nwidth = 8\nheads = 4\nvocab = 11\n",
                R"([["sequence", 3]])", R"(["sequence_parallel", {}])") ==
        "[sequence_parallel] attention heads must divide over the 3 ranks of axis sequence, but "
        "blocks.0.attn has 4: context_parallel gathers keys and values instead");
  CHECK(refused(kGpt, R"([["context", 2]])", R"(["context_parallel", {"attention": "rings"}])") ==
        "[context_parallel] attention must be one of all_gather, ring, all_to_all, hierarchical, "
        "but got "
        "\"rings\", did you mean \"ring\"?");
  CHECK(refused(kGpt, R"([["context", 2]])", R"(["context_parallel", {"load_balance": true}])") ==
        "[context_parallel] with load_balance a sequence must divide into 4 pieces, two for each "
        "rank of axis context, but has 6 (load_balance = false needs one for each)");
  CHECK(refused(kGpt, R"([["context", 2]])", R"(["context_parallel", {"inner": "sequence"}])") ==
        "[context_parallel] inner requires attention = \"hierarchical\", but attention is "
        "all_gather");
  CHECK(refused(kGpt, R"([["sequence", 2], ["context", 2]])",
                R"(["context_parallel", {"attention": "hierarchical"}])") ==
        "[context_parallel] a sequence must divide over the 4 ranks of axis context and sequence, "
        "but has 6");
  CHECK(refused(kMlp, R"([["context", 3]])", R"(["context_parallel", {}])") ==
        "[context_parallel] attention over the sequence of 9 is needed, but the model has none");
}

}  // namespace
}  // namespace perigee::parity
