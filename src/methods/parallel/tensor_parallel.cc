// tensor_parallel: linear layers, experts and embeddings split over an axis, by matches or by
// knowledge of the built-in models (Megatron-LM, Shoeybi et al. 2019; sequence sharding between
// them, Korthikanti et al. 2022), or planned (Alpa, Zheng et al. 2022).
#include "shard/layouts/tensor_parallel.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "base/text/match.h"
#include "graph/adapters/adapters.h"
#include "methods/field_table.h"
#include "shard/solver/planned_shardings.h"

namespace perigee::methods {
namespace {

using graph::Graph;
using graph::Input;
using shard::WeightSplit;

constexpr const char* kFields[] = {"column", "row", "vocab"};  // by WeightSplit

// Adapters are split as their weights are.
bool is_weight(const Graph& graph, const Input& input) {
  return input.kind == Input::Kind::parameter && graph.type(input.value).shape.size() >= 2 &&
         !graph::is_adapter(graph, input.name);
}

std::string scope_of(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// "blocks.3.attn" -> "blocks.*.attn"
std::string pattern_of(const std::string& name) {
  std::string pattern;
  for (size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find('.', begin), name.size());
    const auto part = name.substr(begin, end - begin);
    const bool number = std::all_of(part.begin(), part.end(),
                                    [](char c) { return c >= '0' && c <= '9'; });
    pattern += (begin > 0 ? "." : "") + (number ? "*" : part);
    begin = end + 1;
  }
  return pattern;
}

struct TensorConfig {
  std::optional<mesh::AxisSet> axis;
  std::optional<Names> column, row, vocab;
  std::optional<bool> planned, experts;
  int64_t smallest = 0;
  bool sequence = false;
};

class Splits {
 public:
  explicit Splits(const Graph& graph) : graph_(graph) {}

  // Excludes this weight: another method has split it.
  void leave(std::string name) { left_.insert(std::move(name)); }

  // Splits the weights that the pattern matches by name or by scope; returns false where none is.
  bool add(const std::string& pattern, WeightSplit split) {
    bool any = false;
    for (const auto& input : graph_.inputs) {
      const auto& name = input.name;
      if (!is_weight(graph_, input)) continue;
      if (!matches(pattern, name) && !matches(pattern, scope_of(name))) continue;
      if (left_.contains(name)) continue;
      any = true;
      const auto [at, added] = weights.try_emplace(name, split);
      if (at->second != split) {
        fail("tensor_parallel", "a weight is split in one way, but {} is matched as {} and as {}",
             name, kFields[static_cast<int>(at->second)], kFields[static_cast<int>(split)]);
      }
    }
    return any;
  }

  std::map<std::string, WeightSplit> weights;

 private:
  const Graph& graph_;
  std::set<std::string> left_;
};

// Excludes weights of experts that are already sharded on the axis or split: expert_parallel has
// its own tensor degree.
void leave_experts(Splits& splits, const plan::Plan& plan, const Graph& graph,
                   const std::vector<std::string>& axes) {
  for (const auto& [name, placements] : plan.placements) {
    const auto* input = graph.find_input(name);
    if (!input || input->kind != Input::Kind::parameter) continue;
    const bool placed = std::any_of(axes.begin(), axes.end(), [&](const auto& axis) {
      const int at = plan.mesh.find(axis);
      return at >= 0 && !placements[at].is_replicate();
    });
    const bool inside = graph.type(input->value).shape.size() == 3 &&
                        std::any_of(placements.begin(), placements.end(),
                                    [](const auto& p) { return p.is_shard() && p.dim > 0; });
    if (placed || inside) splits.leave(name);
  }
}

using LayerSplit = std::pair<const char*, WeightSplit>;

// The layers of gpt, llama, moe and hf, without experts.
constexpr LayerSplit kTransformers[] = {
    {"blocks.*.attn.qkv", WeightSplit::column}, {"blocks.*.attn.q", WeightSplit::column},
    {"blocks.*.attn.k", WeightSplit::column},   {"blocks.*.attn.v", WeightSplit::column},
    {"blocks.*.attn.out", WeightSplit::row},    {"blocks.*.mlp.gate", WeightSplit::column},
    {"blocks.*.mlp.up", WeightSplit::column},   {"blocks.*.mlp.down", WeightSplit::row}};

// The experts of moe, and of hf's Mixtral.
constexpr LayerSplit kExperts[] = {{"blocks.*.experts.gate", WeightSplit::column},
                                   {"blocks.*.experts.up", WeightSplit::column},
                                   {"blocks.*.experts.down", WeightSplit::row}};

void add_known(Splits& splits, const Graph& graph, bool experts) {
  for (const auto& [pattern, split] : kTransformers) splits.add(pattern, split);
  if (experts) {
    for (const auto& [pattern, split] : kExperts) splits.add(pattern, split);
  }
  if (!splits.weights.empty()) {
    splits.add("embed", WeightSplit::vocabulary);
    splits.add("head", WeightSplit::column);
    return;
  }
  // mlp: its layers in pairs.
  std::vector<std::string> layers;
  for (const auto& input : graph.inputs) {
    const auto scope = scope_of(input.name);
    if (is_weight(graph, input) && (matches("blocks.*", scope) || scope == "head")) {
      layers.push_back(scope);
    }
  }
  for (size_t i = 0; i + 1 < layers.size(); i += 2) {
    splits.add(layers[i], WeightSplit::column);
    splits.add(layers[i + 1], WeightSplit::row);
  }
}

// "axis tensor"
std::string over(const std::vector<std::string>& axes) {
  return fmt::format("{} {}", axes.size() == 1 ? "axis" : "axes", fmt::join(axes, ", "));
}

std::string sentence_of(const shard::TensorParallel& layers, int64_t ranks) {
  std::vector<std::string> parts;
  const char* const by[] = {"outputs", "inputs", "vocabulary"};
  for (int split = 0; split < 3; ++split) {
    std::vector<std::string> names;
    for (const auto& [name, how] : layers.weights) {
      if (how == static_cast<WeightSplit>(split)) names.push_back(name);
    }
    if (names.empty()) continue;
    parts.push_back(fmt::format("{} by {} ({}{})", names.size(), by[split], names.front(),
                                names.size() > 1 ? ", ..." : ""));
  }
  return fmt::format("weights are split over the {} ranks of {}: {}; between them {}", ranks,
                     over(layers.axes), fmt::join(parts, ", "),
                     layers.sequence ? "activations are sharded on their sequence"
                                     : "every rank has the whole activations");
}

// "12 by dim 0 (blocks.0.attn.qkv.weight, ...)"
std::string listed(const std::vector<std::string>& names, const std::string& how) {
  return fmt::format("{} {} ({}{})", names.size(), how, names.front(),
                     names.size() > 1 ? ", ..." : "");
}

// "by dim 0", of several axes "by dim 0 on data and dim 1 on tensor"
std::string cuts_of(const mesh::Placements& placements, const std::vector<std::string>& axes) {
  std::vector<std::string> parts;
  for (size_t k = 0; k < axes.size(); ++k) {
    if (!placements[k].is_shard()) continue;
    parts.push_back(fmt::format("dim {}{}", placements[k].dim,
                                axes.size() > 1 ? " on " + axes[k] : std::string()));
  }
  return fmt::format("by {}", fmt::join(parts, " and "));
}

// `axes`: in the order of the mesh.
std::string sentence_of(const shard::PlannedShardings& found, const std::vector<std::string>& axes,
                        int64_t ranks) {
  std::map<std::string, std::vector<std::string>> by;
  for (const auto& [name, placements] : found.split) by[cuts_of(placements, axes)].push_back(name);
  std::vector<std::string> parts;
  for (const auto& [how, names] : by) parts.push_back(listed(names, how));
  if (!found.whole.empty()) parts.push_back(listed(found.whole, "whole"));
  return fmt::format(
      "{} split over the {} ranks of {} {} as the solver found: {}; {} values are "
      "pinned; a microbatch costs a rank as much as moving {:.4g} bytes, {}",
      found.split.empty() ? "no weights are" : "weights are", ranks,
      axes.size() > 1 ? "axes" : "axis", fmt::join(axes, " and "), fmt::join(parts, ", "),
      found.pins, found.cost,
      found.bound >= found.cost * (1 - 1e-9)
          ? "which is optimal"
          : fmt::format("with a lower bound of {:.4g}", found.bound));
}

class TensorParallel : public MethodWith<TensorConfig> {
 public:
  std::string_view name() const override { return "tensor_parallel"; }
  std::string_view doc() const override {
    return "Splits linear layers, experts and embeddings over the ranks of axes of the mesh. "
           "Without column, row and vocab the layers of the built-in models gpt, llama, moe, mlp "
           "and hf are split; of other models, or with planned, what the exact solver finds.";
  }

 protected:
  const FieldTable<TensorConfig>& table() const override {
    using C = TensorConfig;
    static const FieldTable<C> table(
        {{.name = "axis",
          .member = &C::axis,
          .otherwise = "all of the kind `tensor`",
          .doc = "the axis, or a list of axes over all of which a dim is split; with planned "
                 "weights the solver plans weights, samples and values over all of them together"},
         {.name = "column",
          .member = &C::column,
          .doc = "weights or scopes (`blocks.*.attn.qkv`) split by their outputs"},
         {.name = "row",
          .member = &C::row,
          .doc = "weights or scopes split by their inputs: the layer after one of `column`"},
         {.name = "vocab", .member = &C::vocab, .doc = "embeddings split by their rows"},
         {.name = "planned",
          .member = &C::planned,
          .otherwise = "true for models whose layers are not known",
          .doc = "the exact solver finds which weights are split, and along which dims, at the "
                 "least cost of communication and compute"},
         {.name = "experts",
          .member = &C::experts,
          .otherwise = "true, except for experts that expert_parallel has placed on one of these "
                       "axes, or splits",
          .doc = "of known layers: split the experts, too"},
         {.name = "smallest",
          .member = &C::smallest,
          .at_least = 0,
          .doc = "weights of fewer bytes are not split"},
         {.name = "sequence",
          .member = &C::sequence,
          .doc = "shard activations on their sequence between the layers: less memory for the same "
                 "bytes of communication"}});
    return table;
  }

  void edit(plan::Plan& plan, const TensorConfig& given, const Config&,
            const PlanRequest& request) const override {
    const auto& graph = *request.graph;
    shard::TensorParallel layers;
    layers.axes = given.axis ? given.axis->names() : mesh::axes_of_kind(plan.mesh, "tensor");
    if (layers.axes.empty()) fail(name(), "axis must name at least one axis, but is an empty list");
    layers.sequence = given.sequence;
    for (const auto& axis : layers.axes) {
      if (!plan.batch_axes.contains(axis)) continue;
      fail(name(), "an axis splits the batch or weights, but {} splits the batch", axis);
    }
    layers.weights = weights_of(plan, layers.axes, given, graph);
    if (layers.weights.empty()) return apply_planned(plan, graph, layers, given.smallest);
    leave_small(layers, given.smallest, graph);
    shard::place(plan, graph, layers);
    plan.decisions.push_back(
        {"tensor_parallel", sentence_of(layers, mesh::group_size(plan.mesh, layers.axes))});
  }

 private:
  // The solver's price of a byte kept for the backward pass where the user
  // wants activations sharded.
  static constexpr double kKept = 2;

  static void apply_planned(plan::Plan& plan, const Graph& graph,
                            const shard::TensorParallel& layers, int64_t smallest) {
    shard::PlannedAxes planned{.axes = layers.axes, .options = {.smallest = smallest}};
    if (layers.sequence) planned.options.saved_byte = kKept;
    const auto found = shard::place_planned(plan, graph, planned);
    auto axes = layers.axes;
    std::ranges::sort(axes, {}, [&](const auto& axis) { return plan.mesh.find(axis); });
    plan.decisions.push_back(
        {"tensor_parallel", sentence_of(found, axes, mesh::group_size(plan.mesh, axes))});
  }

  static void leave_small(shard::TensorParallel& layers, int64_t smallest, const Graph& graph) {
    int64_t largest = 0;
    const auto is_small = [&](const auto& weight) {
      const auto bytes = static_cast<int64_t>(
          graph.type(graph.find_input(weight.first)->value).bytes());
      largest = std::max(largest, bytes);
      return bytes < smallest;
    };
    std::erase_if(layers.weights, is_small);
    if (!layers.weights.empty()) return;
    fail("tensor_parallel", "smallest leaves no weight to split: the largest has {} bytes, not {}",
         largest, smallest);
  }

  // Returns an empty map where the solver is to find the weights.
  static std::map<std::string, WeightSplit> weights_of(const plan::Plan& plan,
                                                       const std::vector<std::string>& axes,
                                                       const TensorConfig& given,
                                                       const Graph& graph) {
    Splits splits(graph);
    bool named = false;
    const std::optional<Names>* const names[] = {&given.column, &given.row, &given.vocab};
    for (int split = 0; split < 3; ++split) {
      const char* field = kFields[split];
      if (!*names[split]) continue;
      named = true;
      for (const auto& pattern : (*names[split])->list) {
        if (splits.add(pattern, static_cast<WeightSplit>(split))) continue;
        std::vector<std::string> known;
        for (const auto& input : graph.inputs) {
          if (!is_weight(graph, input)) continue;
          const auto scope = scope_of(input.name);
          known.insert(known.end(), {pattern_of(scope), scope, scope + ".**", input.name});
        }
        fail("tensor_parallel", "{} must match weights of the model, but got \"{}\"{}", field,
             pattern, did_you_mean_pattern(pattern, known));
      }
    }
    const bool planned = given.planned.value_or(false);
    if ((named || planned) && given.experts) {
      fail(
          "tensor_parallel", "experts applies to the experts of known layers, but {}: leave it out",
          named ? "column, row or vocab name the split weights" : "planned = true finds the split");
    }
    if (named && planned) {
      fail("tensor_parallel",
           "with planned = true the solver finds the split weights, but column, row or vocab name "
           "them: leave one of them out");
    }
    if (!named && !planned) {
      leave_experts(splits, plan, graph, axes);
      add_known(splits, graph, given.experts.value_or(true));
      if (splits.weights.empty() && given.planned) {
        fail("tensor_parallel",
             "the layers of gpt, llama, moe, mlp and hf are known, those of another model must be "
             "named as column, row and vocab, or planned, but planned is false");
      }
    }
    if (named && splits.weights.empty()) {
      fail("tensor_parallel", "column, row and vocab must name weights, but got none");
    }
    return std::move(splits.weights);
  }
};

}  // namespace

std::shared_ptr<const Method> tensor_parallel() { return std::make_shared<TensorParallel>(); }

}  // namespace perigee::methods
