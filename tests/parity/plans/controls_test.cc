// Negative controls: under every method, a program that omits a collective, averages instead of
// summing, skips an accumulation or draws dropout's numbers twice is detected.
#include <fmt/format.h>

#include <atomic>
#include <set>

#include "tests/parity/support/adapters.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/copies.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kMicrobatches = 2;
const compile::StepSpec kSpec{.clip_norm = 0.5};

// A method of a strategy. `changes`: the reference on one device uses it, too; `low`: it rounds to
// 16 bits, so that sums depend on their order.
struct Row {
  std::string method, config, axes;
  std::string model = kGpt;
  std::string beside = "";  // further methods, as data
  bool changes = false, low = false;
};

const std::string kTwo = R"(["data", 2])";
const std::string kExperts =
    "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 12\nexperts = 6\n"
    "capacity_per = 'sample'\n";
const std::string kDropless = kExperts + "top_k = 1\ncapacity = 0\ndropless = true\n";

const std::string kUntied = std::string(kGpt) + "tied = false\n";
const std::string kDeep =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\n";

const std::vector<Row>& rows() {
  static const std::vector<Row> rows = {
      {"parallel_mode", "", kTwo},
      {"gradient_accumulation", R"({"microbatches": 2})", kTwo},
      {"tensor_parallel", "{}", R"(["tensor", 2])"},
      {"tensor_parallel", R"({"sequence": true})", R"(["tensor", 2])"},
      {"partition_constraints",
       R"([{"name": "aten::mm", "parent_module": "mlp", "allowed_partition_dims": ["0,0"],
            "replica_allowed": false}])",
       R"(["tensor", 2])", kLlama, R"(, ["tensor_parallel", {}])"},
      {"auto_sharding", R"({"memory": "1MB"})", R"(["tensor", 2])"},
      {"sequence_parallel", "{}", R"(["sequence", 2])"},
      {"context_parallel", "{}", R"(["context", 2])"},
      {"context_parallel", R"({"attention": "ring"})", R"(["context", 2])"},
      {"context_parallel", R"({"attention": "hierarchical"})",
       R"(["sequence", 3], ["context", 2])"},
      {"expert_parallel", "{}", R"(["expert", 2])", kExperts},
      {"expert_parallel", "{}", R"(["expert", 2])", kDropless},
      {"pipeline_parallel", "{}", R"(["pipe", 2])"},
      {"pipeline_parallel", R"({"schedule": "zb1p"})", R"(["pipe", 2])"},
      {"pipeline_parallel", R"({"schedule": "interleaved", "chunks": 2})", R"(["pipe", 2])", kDeep},
      {"mixed_parallel", "{}", R"(["tensor", 2], ["pipe", 2])"},
      {"ds_3d_parallel", "{}", R"(["tensor", 2], ["pipe", 2], ["data", 1])"},
      {"grad_comm", R"({"bucket_mb": 0.01, "communicators": 2})", kTwo},
      {"grad_comm", R"({"sparse": "gathered"})", kTwo, kUntied},
      {"grad_comm", R"({"dtype": "bf16"})", kTwo, kGpt, "", true, true},
      {"checkpoint", R"(["blocks.*"])", kTwo},
      {"checkpoint", R"({"1": "blocks.*", "kept_microbatches": 1})", R"(["pipe", 2])", kGpt,
       R"(, ["pipeline_parallel", {}])"},
      {"zero1", "{}", kTwo},
      {"zero2", "{}", kTwo},
      {"fsdp", "{}", kTwo},
      {"fsdp", R"({"reshard_after_forward": false})", kTwo},
      {"fsdp", R"({"cpu_offload": true})", kTwo},
      {"offload", R"({"1": "blocks.*", "optimizer": true})", R"(["data", 1])"},
      {"chunked_loss", R"({"chunks": 3})", R"(["tensor", 2])", kGpt,
       R"(, ["tensor_parallel", {}])"},
      {"overlap", R"({"accumulate": true})", kTwo},
      {"overlap", R"({"receives": true})", R"(["pipe", 2])", kGpt,
       R"(, ["pipeline_parallel", {}])"},
      {"overlap", R"({"deferred_head": true})", R"(["pipe", 2])", kGpt,
       R"(, ["pipeline_parallel", {}])"},
      {"overlap", R"({"slices": 2})", R"(["tensor", 2])", kGpt, R"(, ["tensor_parallel", {}])"},
      {"overlap", R"({"slices": 2})", R"(["tensor", 2])", kLlama,
       R"(, ["tensor_parallel", {"sequence": true}])"},
      {"overlap", R"({"experts": true})", R"(["expert", 2])", kExperts,
       R"(, ["expert_parallel", {}])"},
      {"module_replace", R"(["swiglu"])", kTwo, kLlama},
      {"module_replace", R"(["rotary"])", kTwo, kLlama},
      {"fp8", R"({"fp8_recipe": "tensorwise"})", kTwo, kLlama, "", true},
      {"fp8", R"({"fp8_recipe": "delayed"})", kTwo, kLlama, "", true},
      {"fp8", R"({"fp8_recipe": "rowwise"})", kTwo, kLlama, "", true},
      {"fp8", R"({"fp8_recipe": "blockwise"})", kTwo, kLlama, "", true},
      {"amp_native", R"({"dtype": "bf16"})", kTwo, kGpt, "", true, true},
      {"half", R"({"dtype": "bf16"})", kTwo, kGpt, "", true, true},
      {"lora", R"({"match": ["qkv", "up", "down"], "rank": 3, "dropout": 0.2})", R"(["tensor", 2])",
       kGpt, R"(, ["tensor_parallel", {}])"},
      {"local_sgd", R"({"every": 2})", kTwo, kLlama},
  };
  return rows;
}

// Damages a program; returns whether it found an instruction to damage.
struct Control {
  std::string name;
  std::function<bool(Program&)> spoil;
};

bool erase(Program& program, const std::function<bool(const Instruction&)>& wanted) {
  size_t erased = 0;
  for (auto& section : program.sections) erased += std::erase_if(section.instructions, wanted);
  return erased > 0;
}

Control without(const std::vector<std::string>& ops) {
  return {fmt::format("without {}", ops[0]), [=](Program& program) {
            return erase(program, [&](const Instruction& i) {
              return std::find(ops.begin(), ops.end(), i.op) != ops.end();
            });
          }};
}

// Turns sums into averages and averages into sums, except the prologue's, which counts the
// denominator of the others.
bool scale_by_group(Program& program) {
  bool found = false;
  for (auto& section : program.sections) {
    if (section.name().starts_with("prologue")) continue;
    for (auto& i : section.instructions) {
      if (i.kind != Instruction::Kind::collective) continue;
      for (auto& [name, arg] : i.args) {
        auto* op = std::get_if<std::string>(&arg);
        if (name != "op" || !op || (*op != "sum" && *op != "avg")) continue;
        *op = *op == "sum" ? "avg" : "sum";
        found = true;
      }
    }
  }
  return found;
}

// The first gradient that is added to the sum of earlier microbatches.
bool skip_accumulation(Program& program) {
  for (auto& section : program.sections) {
    if (section.name().starts_with("prologue") || section.name().ends_with("_first")) continue;
    auto& list = section.instructions;
    const auto at = std::find_if(list.begin(), list.end(), [](const Instruction& i) {
      return i.op == "perigee::accumulate_" || i.op == "perigee::addmm_";
    });
    if (at == list.end()) continue;
    list.erase(at);
    return true;
  }
  return false;
}

// All draw with one seed.
bool reuse_seed(Program& program) {
  bool found = false;
  for (auto& section : program.sections) {
    for (auto& i : section.instructions) {
      for (auto& [name, arg] : i.args) {
        auto* key = std::get_if<int64_t>(&arg);
        if (!key || *key < 0 || (name != "key" && name != "random_key")) continue;
        found = found || *key != 1;
        *key = 1;
      }
    }
  }
  return found;
}

std::vector<Control> controls() {
  std::vector<Control> all;
  for (const char* op :
       {"comm::all_reduce", "comm::all_gather", "comm::reduce_scatter", "comm::all_to_all",
        "comm::exchange", "comm::shift", "host::store", "host::fetch"}) {
    all.push_back(without({op}));
  }
  all.push_back(without({"comm::send", "comm::receive"}));
  all.push_back({"scaled by the group", scale_by_group});
  all.push_back({"an accumulation skipped", skip_accumulation});
  all.push_back({"a seed reused", reuse_seed});
  return all;
}

std::string differs(const Row& row, const plan::Plan& plan, const std::vector<Outcome>& one,
                    const std::vector<Outcome>& ranks) {
  if (!row.low) return compare_copies(plan, one, ranks);
  for (const auto& rank : ranks) {
    for (size_t k = 0; k < rank.losses.size(); ++k) {
      const bool same = rank.losses[k] == Approx(one[0].losses[k]).epsilon(1e-2) &&
                        rank.norms[k] == Approx(one[0].norms[k]).epsilon(5e-2);
      if (!same) return fmt::format("loss {} or norm {}", rank.losses[k], rank.norms[k]);
    }
  }
  return "";
}

}  // namespace

TEST_CASE("an omitted, scaled or repeated instruction is detected under every method") {
  std::set<std::string> covered;
  for (const auto& row : rows()) {
    INFO(row.method << " " << row.config << " over " << row.axes);
    const auto method = row.method == "parallel_mode"
                            ? row.beside
                            : fmt::format(R"(, ["{}", {}]{})", row.method, row.config, row.beside);
    const bool counts = row.method == "gradient_accumulation";
    const auto strategy = fmt::format(
        R"([["parallel_mode", [{}]]{}{}])", row.axes,
        counts
            ? ""
            : fmt::format(R"(, ["gradient_accumulation", {{"microbatches": {}}}])", kMicrobatches),
        method);
    const int64_t copies = row.method == "local_sgd" ? 2 : 1;
    torch::manual_seed(5);
    auto given = built_in(row.model, kRows, kMicrobatches * copies,
                          row.low ? "float32" : "float64");
    if (row.method == "lora") given = with_adapters(given, row.config);
    const auto one = train_copies(given, {copies, kMicrobatches, kRows, row.changes ? method : ""},
                                  {.every = 2}, kSpec, 2);
    const auto plan = plan_of(given, strategy, kRows);
    CHECK(differs(row, plan, one, train(given, plan, {}, kSpec)) == "");
    int applied = 0, by_numbers = 0;  // the others end with an error
    for (const auto& control : controls()) {
      INFO(control.name);
      std::atomic<int> found = 0;
      std::string wrong;
      bool ended = false;
      try {
        wrong = differs(row, plan, one,
                        train(
                            given, plan, [&](Program& p) { found += control.spoil(p); }, kSpec));
      } catch (const std::exception& error) {
        wrong = error.what();
        ended = true;
      }
      INFO(wrong);
      CHECK((wrong != "") == (found > 0));
      applied += found > 0;
      by_numbers += found > 0 && !ended;
    }
    CHECK(applied > 0);
    CHECK(by_numbers > 0);
    covered.insert(row.method);
  }
  for (const auto& method : methods::all()) {
    INFO(method->name());
    CHECK(covered.contains(std::string(method->name())));
  }
  CHECK(covered.contains("local_sgd"));
}

}  // namespace perigee::parity
