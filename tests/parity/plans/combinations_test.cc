// Random combinations of methods on random meshes: each trains as one device does, or says why it
// cannot. With local_sgd the rival is copies trained one by one and averaged; of methods that
// change numbers, one device that uses them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "schedule/schedule.h"
#include "tests/parity/support/adapters.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/copies.h"
#include "tests/parity/support/models.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

constexpr int64_t kSteps = 3;

// Batch norm over few samples magnifies rounding.
bool is_sensitive(const std::string& model) { return model.find("resnet") != std::string::npos; }

const std::vector<std::string>& model_keys() {
  static const std::vector<std::string> all = {
      "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\ndropout = 0.1\n",
      "kind = 'gpt'\nlayers = 2\nwidth = 24\nheads = 6\nvocab = 12\ntied = false\n",
      "kind = 'llama'\nlayers = 4\nwidth = 24\nheads = 6\nkv_heads = 2\nhidden = 40\nvocab = 11\n",
      "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 12\nexperts = 6\n"
      "capacity_per = 'sample'\n",
      "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nvocab = 12\nexperts = 6\ntop_k = 1\n"
      "capacity_per = 'sample'\ncapacity = 0\ndropless = true\n",
      "kind = 'mlp'\ninputs = 9\nwidth = 10\nlayers = 4\noutputs = 5\n",
      "kind = 'resnet'\nwidth = 4\nchannels = 3\nimage = 8\nclasses = 5\n"};
  return all;
}

// The config of lora for a model; "": it is not drawn. Rank 3 does not divide over two ranks. Copies
// draw dropout's numbers unlike one device, so that only a model with dropout has that of adapters.
std::string lora_of(const std::string& model) {
  const auto is = [&](const char* text) { return model.find(text) != model.npos; };
  if (is("gpt")) {
    return fmt::format(R"({{"match": ["qkv", "up", "down"], "rank": 3{}}})",
                       is("dropout") ? R"(, "dropout": 0.2)" : "");
  }
  if (is("llama")) return R"({"match": ["q", "v", "attn.out", "down"], "rank": 3})";
  if (is("moe")) return R"({"match": "attn.out", "rank": 3, "trained": "norm.*"})";
  return is("mlp") ? R"({"match": "blocks.*", "rank": 3, "rslora": true})" : "";
}

// The properties that determine the numbers; the rest of a combination determines the placement.
struct Numbers {
  size_t model = 0;
  bool shared = false;  // shared_module() in the place of mlp
  bool lora = false;
  int64_t microbatches = 1;
  int64_t copies = 1;
  std::string precision = "";  // a method that changes numbers, as data
  auto operator<=>(const Numbers&) const = default;
  // Sums of values rounded to 16 bits depend on their order.
  bool low() const {
    return precision.find("amp") != precision.npos || precision.find("half") != precision.npos;
  }
};

struct Combination {
  Numbers numbers;
  std::string strategy;           // as data
  std::set<std::string> methods;  // beside the mesh
};

class Draw {
 public:
  explicit Draw(uint64_t seed)
      : seed_(seed), random_(seed), constraints_(seed), adapters_(seed), chunks_(seed + 1) {}

  Combination run() {
    Combination drawn;
    auto& [model, shared, lora, microbatches, copies, precision] = drawn.numbers;
    model = number(model_keys().size());
    shared = model_keys()[model].find("mlp") != std::string::npos && seed_ % 2 == 0;
    const bool few = is_sensitive(model_keys()[model]);
    microbatches = int64_t{1} << number(few ? 2 : 3);
    std::vector<std::string> axes, methods;
    int64_t ranks = 1, data = 1;
    const auto axis = [&](const std::string& name, double chance) {
      const int64_t size = coin(0.2) ? 3 : 2;
      if (!coin(chance) || ranks * size > 8) return false;
      ranks *= size;
      axes.push_back(fmt::format(R"(["{}", {}])", name, size));
      if (name == "data") data = size;
      return true;
    };
    const auto use = [&](const std::string& name, const std::string& config = "{}") {
      drawn.methods.insert(name);
      methods.push_back(fmt::format(R"(["{}", {}])", name, config));
    };
    if (const auto config = lora_of(model_keys()[model]);
        !config.empty() && !shared &&
        std::bernoulli_distribution(
            model_keys()[model].find("moe") == std::string::npos ? 0.3 : 0.7)(adapters_)) {
      use("lora", config);
      lora = true;
    }
    // Without this method a pipeline would choose the number of microbatches.
    use("gradient_accumulation", fmt::format(R"({{"microbatches": {}}})", microbatches));
    if (microbatches == 1) drawn.methods.erase("gradient_accumulation");
    static const char* const schedules[] = {"gpipe",      "1f1b",      "eager_1f1b", "interleaved",
                                            "looped_bfs", "zb1p",      "zb2p",       "zbv",
                                            "v_half",     "dualpipe_v"};
    const std::string schedule = schedules[number(10)];
    const auto stages = fmt::format(R"({{"schedule": "{}"}})", schedule);
    const std::string layers = coin(0.5) ? R"({"sequence": true})" : "{}";
    const bool three = coin(0.15);  // ds_3d_parallel: only these axes
    const bool pipe = axis("pipe", three ? 1 : 0.4);
    const bool tensor = axis("tensor", three ? 1 : 0.4);
    if (three && tensor) {
      use("ds_3d_parallel", fmt::format(R"({{"tensor": {}, "pipeline": {},
                           "ds_config": {{"gradient_accumulation_steps": {}}}}})",
                                        layers, stages, microbatches));
    } else if ((pipe || tensor) && coin(0.3)) {
      use("mixed_parallel",
          fmt::format(R"({{{}{}{}}})", tensor ? R"("tensor": )" + layers : "",
                      tensor && pipe ? ", " : "", pipe ? R"("pipeline": )" + stages : ""));
    } else {
      if (pipe) use("pipeline_parallel", stages);
      if (tensor) use("tensor_parallel", layers);
    }
    const bool more = !three || !tensor;
    if (more && coin(0.5) ? axis("sequence", 0.4) : false) {
      use("sequence_parallel");
    } else if (more && axis("context", 0.4)) {
      static const char* const ways[] = {"{}", R"({"attention": "all_to_all"})",
                                         R"({"attention": "ring"})", R"({"load_balance": false})"};
      use("context_parallel", ways[number(4)]);
    }
    const bool moe = model_keys()[model].find("moe") != std::string::npos;
    const bool experts = more && moe && axis("expert", 0.6);
    if (experts) use("expert_parallel");
    const bool zero = more && axis("zero", 0.25);
    if (!axis("data", 0.6)) axes.push_back(R"(["data", 1])");
    // Copies draw dropout's numbers by their samples' positions, unlike one device alone.
    const bool drops = model_keys()[model].find("dropout") != std::string::npos;
    const bool whole = kRows % (microbatches * data) == 0 && (!few || microbatches == 1);
    if (data > 1 && whole && !drops && coin(zero ? 0.6 : 0.3)) {
      copies = data;
      use("local_sgd", R"({"every": 2})");
    }
    if (coin(0.4)) {
      static const char* const ways[] = {R"(["blocks.*"])", R"({"wrap_class": ["blocks.1"]})",
                                         R"({"1": "blocks.*", "kept_microbatches": 1})"};
      use("checkpoint", ways[number(pipe ? 3 : 2)]);
    }
    if (coin(0.4)) {
      static const char* const ways[] = {R"({"bucket_mb": 0.001})", R"({"overlap": false})",
                                         R"({"bucket_mb": 0.001, "communicators": 2})",
                                         R"({"bucket_mb": 0.001, "buckets": 2})"};
      use("grad_comm", ways[number(4)]);
    }
    if (coin(0.3)) {
      use("offload", coin(0.5) ? R"({"1": "blocks.*", "optimizer": true})"
                               : R"({"optimizer": true, "prefetch": 0})");
    }
    if (coin(0.3)) {
      // The head has no gradient where adapters are trained.
      const bool defers = pipe && !lora && !splits_backward(schedule) &&
                          !drawn.methods.contains("offload");
      const auto more = fmt::format("{}{}{}", pipe ? R"(, "receives": true)" : "",
                                    defers ? R"(, "deferred_head": 2)" : "",
                                    experts && microbatches > 1 ? R"(, "experts": true)" : "");
      use("overlap", fmt::format(R"({{"accumulate": true{}}})", more));
    }
    switch (number(5)) {
      case 0:
        use("zero1");
        break;
      case 1:
        use("zero2");
        break;
      case 2:
        use("fsdp", coin(0.4)   ? "{}"
                    : coin(0.5) ? R"({"reshard_after_forward": false})"
                                : R"({"cpu_offload": true})");
        break;
      default:
        break;
    }
    if (coin(0.3)) use("module_replace");
    if (std::bernoulli_distribution(0.3)(chunks_)) use("chunked_loss", R"({"chunks": 3})");
    const bool constrained = experts || std::bernoulli_distribution(0.4)(constraints_);
    if (tensor && constrained) {
      use("partition_constraints",
          R"([{"name": "aten::mm", "parent_module": "mlp", "allowed_partition_dims": [],
               "replica_allowed": true}])");
    }
    if (tensor && !pipe && copies == 1 && std::bernoulli_distribution(0.6)(constraints_)) {
      const bool tight = std::bernoulli_distribution(0.5)(constraints_);
      use("auto_sharding", tight ? R"({"memory": "200KB"})" : R"({"memory": "1GB"})");
    }
    if (coin(0.3)) {
      const bool rows = std::bernoulli_distribution(0.5)(constraints_);
      const bool kept = std::bernoulli_distribution(0.5)(constraints_);
      const std::pair<std::string, std::string> ways[] = {
          {"fp8", rows ? R"({"fp8_recipe": "rowwise"})" : R"({"fp8_recipe": "tensorwise"})"},
          {"amp_native",
           kept ? R"({"dtype": "bf16", "keep_weights": true})" : R"({"dtype": "bf16"})"},
          {"half", kept ? R"({"dtype": "bf16", "keep_weights": true})" : R"({"dtype": "bf16"})"}};
      const auto& [name, config] = ways[number(3)];
      // Random adapters of this model magnify rounding: their gradients in float16 already differ
      // from those in float32 by 10 %.
      if (!lora || !drops || name == "fp8") {
        use(name, config);
        precision = ", " + methods.back();
        // An adapter before GELU may compute in float32.
        const bool gelu = name != "fp8" && !lora &&
                          model_keys()[model].find("gpt") != std::string::npos;
        for (auto& method : methods) {
          constexpr std::string_view accumulate = R"("accumulate": true)";
          const auto at = method.find(accumulate);
          if (gelu && at != method.npos) method.insert(at, R"("activations": true, )");
        }
      }
    }
    std::shuffle(axes.begin(), axes.end(), random_);
    std::shuffle(methods.begin(), methods.end(), random_);
    drawn.strategy = fmt::format(R"([["parallel_mode", [{}]]{}{}])", fmt::join(axes, ", "),
                                 methods.empty() ? "" : ", ", fmt::join(methods, ", "));
    return drawn;
  }

 private:
  size_t number(size_t below) {
    return std::uniform_int_distribution<size_t>(0, below - 1)(random_);
  }
  bool coin(double chance) { return std::bernoulli_distribution(chance)(random_); }

  const uint64_t seed_;
  std::mt19937_64 random_, constraints_, adapters_, chunks_;
};

struct OneDevice {
  Given given;
  std::vector<Outcome> outcomes;  // of each copy
};

// The outcome of one device, or of one for each copy of the model.
const OneDevice& one_device(const Numbers& numbers) {
  static std::map<Numbers, OneDevice> known;
  const auto [at, added] = known.try_emplace(numbers);
  if (added) {
    torch::manual_seed(5);
    auto& [given, outcomes] = at->second;
    const auto& [model, shared, lora, microbatches, copies, precision] = numbers;
    // Divides into two pieces for each of two or three ranks.
    constexpr int64_t sequence = 12;
    if (shared) {
      given = capture_model(shared_module(kRows, numbers.low() ? at::kFloat : at::kDouble),
                            microbatches * copies);
    } else {
      given = built_in(model_keys()[model], kRows, microbatches * copies,
                       numbers.low() ? "float32" : "float64", sequence);
    }
    if (lora) given = with_adapters(given, lora_of(model_keys()[model]));
    outcomes = train_copies(given, {copies, microbatches, kRows, precision}, {.every = 2},
                            {.clip_norm = 0.5}, kSteps);
  }
  return at->second;
}

// Returns the differences from copies trained alone; with 16 bits, of the losses, the first norm and
// the mean of the weights' differences only, and of the first loss only where rounding is magnified.
std::string compare(const Numbers& numbers, const plan::Plan& plan,
                    const std::vector<Outcome>& ranks) {
  const auto& outcomes = one_device(numbers).outcomes;
  if (!numbers.low()) return compare_copies(plan, outcomes, ranks);
  const auto& one = outcomes[0];
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t k = 0; k < one.losses.size(); ++k) {
      const auto loss = ranks[r].losses[k];
      if (loss != Approx(one.losses[k]).epsilon(k == 0 ? 2e-2 : 5e-2)) {
        return fmt::format("rank {} step {}: loss {} and {}", r, k, one.losses[k], loss);
      }
      if (is_sensitive(model_keys()[numbers.model])) break;
    }
    if (is_sensitive(model_keys()[numbers.model])) continue;
    const auto norm = ranks[r].norms[0];  // later norms are of other weights
    if (norm != Approx(one.norms[0]).epsilon(0.1)) {
      return fmt::format("rank {}: norm {} and {}", r, one.norms[0], norm);
    }
    if (outcomes.size() > 1) continue;  // copies have weights of their own
    // An update that is left out moves weights by the learning rate, 0.01, in each step.
    const auto distance = mean_distance(one, ranks[r]);
    if (!(distance < 0.004)) return fmt::format("rank {}: weights are {} apart", r, distance);
  }
  return "";
}

// Methods that no combination has together: they exclude each other or replace each other.
std::set<std::pair<std::string, std::string>> exclusive_methods() {
  std::set<std::pair<std::string, std::string>> pairs;
  const std::vector<std::vector<std::string>> groups = {
      {"zero1", "zero2", "fsdp"},                 // each includes the previous one
      {"sequence_parallel", "context_parallel"},  // one way to shard the sequence
      {"auto_sharding", "pipeline_parallel"},     // it plans one stage of one model
      {"auto_sharding", "ds_3d_parallel"},
      {"auto_sharding", "local_sgd"},
      {"amp_native", "half", "fp8"},  // drawn one at a time
      {"chunked_loss", "fp8"},        // the gradient of eight-bit logits has a scale for all rows
      {"mixed_parallel", "ds_3d_parallel", "pipeline_parallel"},
      {"mixed_parallel", "ds_3d_parallel", "tensor_parallel"},
      // its mesh has no further axis
      {"ds_3d_parallel", "sequence_parallel"},
      {"ds_3d_parallel", "context_parallel"},
      {"ds_3d_parallel", "expert_parallel"},
      // its ds_config sets the precision
      {"ds_3d_parallel", "amp_native"},
      {"ds_3d_parallel", "half"}};
  for (const auto& group : groups) {
    for (const auto& a : group) {
      for (const auto& b : group) pairs.emplace(a, b);
    }
  }
  return pairs;
}

using MethodPair = std::pair<std::string, std::string>;

std::vector<MethodPair> pairs_of(const std::set<std::string>& methods) {
  std::vector<MethodPair> pairs;
  for (const auto& a : methods) {
    for (const auto& b : methods) {
      if (a < b) pairs.emplace_back(a, b);
    }
  }
  return pairs;
}

// Trains the combinations of seeds 0 to `seeds`, except those of which each pair of methods has been
// trained `times` times. Each pair must be trained at least once. PERIGEE_SEED: that seed alone.
void train_combinations(uint64_t seeds, int times) {
  std::map<MethodPair, int> pairs;
  std::map<std::string, int> refusals;
  int ran = 0;
  uint64_t seed = 0;
  const char* only = std::getenv("PERIGEE_SEED");
  if (only) {
    seed = std::stoull(only);
    seeds = seed + 1;
  }
  for (; seed < seeds; ++seed) {
    const auto drawn = Draw(seed).run();
    const auto drawn_pairs = pairs_of(drawn.methods);
    if (!only && std::all_of(drawn_pairs.begin(), drawn_pairs.end(),
                             [&](const auto& pair) { return pairs[pair] >= times; })) {
      continue;
    }
    const auto& given = one_device(drawn.numbers).given;
    INFO("seed " << seed << ": " << model_keys()[drawn.numbers.model] << drawn.strategy);
    plan::Plan plan;
    try {
      plan = plan_of(given, drawn.strategy, kRows);
      plan::verify(plan, given.graph);
    } catch (const Error& error) {
      ++refusals[error.what()];
      continue;
    }
    std::string wrong;
    try {
      wrong = compare(drawn.numbers, plan, train(given, plan, {}, {.clip_norm = 0.5}, kSteps));
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    // These depend on how values are placed: where gathering all tokens is cheaper, overlap has no
    // exchange to hide; logits that change ranks are cut by samples, and eight-bit ones have a
    // scale for all rows.
    if (wrong.find("hides the all-to-all of experts, but this plan has none") != wrong.npos ||
        wrong.find("[chunked_loss] the loss must be computed row by row") != wrong.npos) {
      ++refusals[wrong.substr(wrong.rfind('['))];
      continue;
    }
    INFO(wrong.substr(0, 1000));
    CHECK(wrong.empty());
    ++ran;
    for (const auto& pair : drawn_pairs) ++pairs[pair];
  }
  if (only) return;
  std::set<std::string> methods = {"local_sgd"};
  for (const auto& method : methods::all()) {
    if (method->name() != "parallel_mode") methods.emplace(method->name());
  }
  for (const auto& pair : pairs_of(methods)) {
    if (exclusive_methods().contains(pair)) continue;
    INFO(pair.first << " and " << pair.second);
    CHECK(pairs[pair] > 0);
  }
  for (const auto& [why, count] : refusals) WARN(count << " x " << why);
  WARN(ran << " combinations of seeds 0 to " << seeds - 1);
}

TEST_CASE("random combinations of methods train as one device does, or are refused with a reason") {
  train_combinations(1200, 1);
}

TEST_CASE("many random combinations of methods train as one device does, or are refused",
          "[.long]") {
  train_combinations(1200, 1200);
}

}  // namespace
}  // namespace perigee::parity
