#include "shard/propagate.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "shard/choose.h"
#include "shard/partition.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Node;
using graph::Output;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

// Byte strings as keys: equal exactly for equal things.
class Key {
 public:
  void clear() { bytes_.clear(); }
  void put(int64_t n) { bytes_.append(reinterpret_cast<const char*>(&n), sizeof n); }
  void put(int n) { put(static_cast<int64_t>(n)); }
  void put(std::string_view text) {
    put(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Gives equal things equal small numbers.
class Numbering {
 public:
  // Returns the number and whether it is new.
  std::pair<int, bool> of(const std::string& bytes) {
    const auto [at, added] = numbers_.try_emplace(bytes, static_cast<int>(numbers_.size()));
    return {at->second, added};
  }

 private:
  std::unordered_map<std::string, int> numbers_;
};

struct ArgWriter {
  Key& key;
  void operator()(std::monostate) const {}
  void operator()(ValueId) const {}
  void operator()(const std::vector<ValueId>& v) const { key.put(static_cast<int64_t>(v.size())); }
  void operator()(bool b) const { key.put(int64_t{b}); }
  void operator()(int64_t n) const { key.put(n); }
  void operator()(double d) const {
    int64_t bits;
    std::memcpy(&bits, &d, sizeof bits);
    key.put(bits);
  }
  void operator()(const std::string& s) const { key.put(s); }
  void operator()(graph::DType d) const { key.put(static_cast<int64_t>(d)); }
  void operator()(const std::vector<int64_t>& v) const {
    key.put(static_cast<int64_t>(v.size()));
    for (auto n : v) key.put(n);
  }
  void operator()(const std::vector<double>& v) const {
    key.put(static_cast<int64_t>(v.size()));
    for (auto d : v) (*this)(d);
  }
  void operator()(const std::vector<bool>& v) const {
    key.put(static_cast<int64_t>(v.size()));
    for (bool b : v) key.put(int64_t{b});
  }
};

Rules rules_of(const plan::Plan& plan) {
  Rules rules = Rules::built_in();
  for (const auto& [op, text] : plan.rules) rules.add_rule(op, text);
  return rules;
}

}  // namespace

std::vector<Placements> place_inputs(const Graph& graph, const plan::Plan& plan) {
  const size_t axes = plan.mesh.axes.size();
  const auto batch_axes = mesh::split_axes(plan.batch_axes);
  std::vector<Placements> placed;
  for (const auto& input : graph.inputs) {
    Placements placements(axes);
    const auto pin = plan.placements.find(input.name);
    if (input.kind == graph::Input::Kind::constant) {
      // Every rank holds the bytes.
    } else if (pin != plan.placements.end()) {
      placements = pin->second;
    } else if (input.kind == graph::Input::Kind::data && !graph.type(input.value).shape.empty()) {
      for (size_t a = 0; a < axes; ++a) {
        if (std::find(batch_axes.begin(), batch_axes.end(), plan.mesh.axes[a].name) !=
            batch_axes.end()) {
          placements[a] = Placement::shard(0);
        }
      }
    }
    placed.push_back(std::move(placements));
  }
  return placed;
}

class Sites {
 public:
  Sites(const Graph& graph, const plan::Plan& plan) : graph_(graph), rules_(rules_of(plan)) {
    Numbering types;
    std::vector<int> type_of;
    Key key;
    for (const auto& value : graph.values) {
      key.clear();
      key.put(static_cast<int64_t>(value.type.dtype));
      for (auto size : value.type.shape) key.put(size);
      type_of.push_back(types.of(key.bytes()).first);
    }
    Numbering signatures;
    for (const auto& node : graph.nodes) {
      key.clear();
      key.put(node.op);
      std::vector<ValueId> operands;
      for (const auto& [name, arg] : node.args) {
        key.put(name);
        key.put(static_cast<int64_t>(arg.index()));
        const auto operand = [&](ValueId v) {
          if (!v.defined()) return key.put(-1);
          // Which operands are the same value counts too.
          const auto first = std::find(operands.begin(), operands.end(), v) - operands.begin();
          operands.push_back(v);
          key.put(type_of[v.index]);
          key.put(static_cast<int64_t>(first));
        };
        if (const auto* v = std::get_if<ValueId>(&arg)) {
          operand(*v);
        } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
          for (auto v : *list) operand(v);
        }
        std::visit(ArgWriter{key}, arg);
      }
      for (auto v : node.outputs) key.put(v.defined() ? type_of[v.index] : -1);
      const auto [number, added] = signatures.of(key.bytes());
      if (added) sites_.push_back(make(node));
      numbers_.push_back(number);
    }
  }

  const Site& at(size_t node) const { return sites_[numbers_[node]]; }
  int number(size_t node) const { return numbers_[node]; }

 private:
  Site make(const Node& node) const {
    Site site;
    const Call call(graph_, node);
    const auto* rule = rules_.find(node.op);
    if (!rule) return site;
    site.pattern = rule->pattern(call);
    if (site.pattern && !fits(*site.pattern, call)) site.pattern.reset();
    if (site.pattern) site.lower = rule->lower;
    return site;
  }

  const Graph& graph_;
  Rules rules_;
  std::vector<Site> sites_;
  std::vector<int> numbers_;  // per node
};

SiteTable::SiteTable(const Graph& graph, const plan::Plan& plan)
    : sites_(std::make_unique<Sites>(graph, plan)) {}
SiteTable::~SiteTable() = default;
const Site& SiteTable::at(size_t node) const { return sites_->at(node); }
int SiteTable::number(size_t node) const { return sites_->number(node); }

namespace {

// Values that only flow, through linear ops, to gradients or the loss: these may stay Partial at no
// cost, since their reduction is done once per step, in buckets.
std::vector<bool> partial_is_free(const Graph& graph, const SiteTable& sites) {
  std::vector<bool> used(graph.values.size()), bad(graph.values.size());
  for (const auto& output : graph.outputs) {
    used[output.value.index] = true;
    if (output.kind != Output::Kind::gradient && output.kind != Output::Kind::loss) {
      bad[output.value.index] = true;
    }
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    const auto& pattern = sites.at(n).pattern;
    bool results_free = true;
    for (auto v : node.outputs) {
      if (v.defined() && used[v.index] && bad[v.index]) results_free = false;
    }
    int i = 0;
    node.each_operand([&](ValueId v) {
      const bool linear =
          pattern && std::any_of(pattern->linear.begin(), pattern->linear.end(), [&](auto& group) {
            return std::find(group.begin(), group.end(), i) != group.end();
          });
      used[v.index] = true;
      if (!linear || !results_free) bad[v.index] = true;
      ++i;
    });
  }
  std::vector<bool> is_free(graph.values.size());
  for (size_t v = 0; v < is_free.size(); ++v) is_free[v] = used[v] && !bad[v];
  return is_free;
}

// Forwards, in data-flow order.
class Propagation {
 public:
  Propagation(const Graph& graph, const plan::Plan& plan, const SiteTable& sites)
      : graph_(graph), plan_(plan), sites_(sites), redistributor_(plan.mesh) {
    pin();
    is_free_ = partial_is_free(graph, sites);
  }

  Sharding run() {
    const size_t axes = plan_.mesh.axes.size();
    sharding_.values.assign(graph_.values.size(), Placements(axes));
    sharding_.operands.resize(graph_.nodes.size());
    sharding_.results.resize(graph_.nodes.size());
    placement_of_.assign(graph_.values.size(), number_of(Placements(axes)));
    const auto placed = place_inputs(graph_, plan_);
    for (size_t i = 0; i < placed.size(); ++i) set(graph_.inputs[i].value, placed[i]);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) node(n);
    return std::move(sharding_);
  }

 private:
  void pin() {
    pins_.assign(graph_.values.size(), nullptr);
    if (plan_.placements.empty()) return;
    const auto names = graph::value_names(graph_);
    for (size_t v = 0; v < names.size(); ++v) {
      const auto found = plan_.placements.find(names[v]);
      if (found != plan_.placements.end()) pins_[v] = &found->second;
    }
  }

  int number_of(const Placements& placements) {
    key_.clear();
    for (const auto& p : placements) {
      key_.put(static_cast<int>(p.kind) << 16 | (p.dim & 0xff) << 8 | static_cast<int>(p.reduce));
    }
    return placements_.of(key_.bytes()).first;
  }

  void set(ValueId v, const Placements& placements) {
    sharding_.values[v.index] = placements;
    placement_of_[v.index] = number_of(placements);
  }

  void node(size_t n) {
    const auto& node = graph_.nodes[n];
    bool pinned = false;
    key_.clear();
    key_.put(sites_.number(n));
    node.each_operand([&](ValueId v) { key_.put(placement_of_[v.index]); });
    for (auto v : node.outputs) {
      key_.put(int64_t{v.defined() && is_free_[v.index]});
      pinned |= v.defined() && pins_[v.index];
    }
    const Choice* choice;
    Choice fresh;
    if (pinned) {
      fresh = decide(n);
      choice = &fresh;
    } else {
      const auto [at, added] = choices_.try_emplace(key_.bytes());
      if (added) at->second = decide(n);
      choice = &at->second;
    }
    sharding_.operands[n] = choice->operands;
    sharding_.results[n] = choice->results;
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (v.defined()) set(v, pins_[v.index] ? *pins_[v.index] : choice->results[r]);
    }
  }

  Choice decide(size_t n) {
    const auto& node = graph_.nodes[n];
    const Call call(graph_, node);
    Situation situation;
    bool replicated_already = true;
    node.each_operand([&](ValueId v) {
      situation.operands.push_back(sharding_.values[v.index]);
      for (const auto& p : situation.operands.back()) replicated_already &= p.is_replicate();
    });
    for (auto v : node.outputs) {
      situation.partial_is_free.push_back(v.defined() && is_free_[v.index]);
      situation.pins.push_back(v.defined() ? pins_[v.index] : nullptr);
    }
    const auto& pattern = sites_.at(n).pattern;
    if (pattern) return choose(call, *pattern, situation, plan_.mesh, redistributor_);
    auto& listed = sharding_.replicated_ops;
    if (!replicated_already && std::find(listed.begin(), listed.end(), node.op) == listed.end()) {
      listed.push_back(node.op);
    }
    return replicated(call, plan_.mesh.axes.size());
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const SiteTable& sites_;
  Redistributor redistributor_;
  Sharding sharding_;
  std::vector<const Placements*> pins_;  // per value
  std::vector<bool> is_free_;
  Numbering placements_;
  std::vector<int> placement_of_;  // per value
  std::unordered_map<std::string, Choice> choices_;
  Key key_;
};

// Backwards: work that runs replicated while all its users want the same shard is done on the
// shards (masks, constants, the gradient that a loss starts with).
class Narrowing {
 public:
  Narrowing(const Graph& graph, const plan::Plan& plan, const SiteTable& sites, Sharding& sharding)
      : graph_(graph), plan_(plan), sites_(sites), sharding_(sharding) {}

  void run() {
    const int axes = static_cast<int>(plan_.mesh.axes.size());
    wanted_.assign(graph_.values.size() * axes, Wanted{});
    fixed_.assign(graph_.values.size(), false);
    for (const auto& output : graph_.outputs) fixed_[output.value.index] = true;
    if (!plan_.placements.empty()) {
      const auto names = graph::value_names(graph_);
      for (size_t v = 0; v < names.size(); ++v) {
        if (plan_.placements.contains(names[v])) fixed_[v] = true;
      }
    }
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      for (int a = 0; a < axes; ++a) narrow(n, a);
      want(n, axes);
    }
  }

 private:
  struct Wanted {
    bool any = false;
    bool differ = false;
    Placement placement;
  };

  Wanted& wanted(ValueId v, int axis) { return wanted_[v.index * plan_.mesh.axes.size() + axis]; }

  void want(size_t n, int axes) {
    int i = 0;
    graph_.nodes[n].each_operand([&](ValueId v) {
      for (int a = 0; a < axes; ++a) {
        auto& w = wanted(v, a);
        const auto& p = sharding_.operands[n][i][a];
        if (w.any && w.placement != p) w.differ = true;
        w.any = true;
        w.placement = p;
      }
      ++i;
    });
  }

  // The dim of the pattern that all users of the node's results want sharded, or -1.
  int dim_wanted(size_t n, const Pattern& pattern, int axis) {
    const auto& node = graph_.nodes[n];
    int dim = -1;
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (!v.defined()) continue;
      if (fixed_[v.index] || !sharding_.results[n][r][axis].is_replicate()) return -1;
      const auto& w = wanted(v, axis);
      if (!w.any) continue;
      if (w.differ || !w.placement.is_shard()) return -1;
      const int here = pattern.results[r][w.placement.dim];
      if (here < 0 || (dim >= 0 && dim != here)) return -1;
      dim = here;
    }
    return dim;
  }

  void narrow(size_t n, int axis) {
    const auto& pattern = sites_.at(n).pattern;
    if (!pattern) return;
    const int dim = dim_wanted(n, *pattern, axis);
    if (dim < 0) return;
    const auto& node = graph_.nodes[n];
    auto& operands = sharding_.operands[n];
    auto& results = sharding_.results[n];
    for (const auto& placements : operands) {
      if (!placements[axis].is_replicate()) return;
    }
    const auto position = [&](const std::vector<int>& letters) {
      const auto found = std::find(letters.begin(), letters.end(), dim);
      return found == letters.end() ? -1 : static_cast<int>(found - letters.begin());
    };
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      if (node.outputs[r].defined() && position(pattern->results[r]) < 0) return;
    }
    // The axes on which the dim is sharded already, and this one.
    std::vector<int> axes;
    for (int b = 0; b < static_cast<int>(plan_.mesh.axes.size()); ++b) {
      bool sharded = b == axis;
      for (size_t r = 0; r < node.outputs.size(); ++r) {
        if (!node.outputs[r].defined()) continue;
        sharded |= results[r][b] == Placement::shard(position(pattern->results[r]));
      }
      if (sharded) axes.push_back(b);
    }
    if (!may_shard(Call(graph_, node), *pattern, dim, axes, plan_.mesh)) return;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (const int at = position(pattern->operands[i]); at >= 0) {
        operands[i][axis] = Placement::shard(at);
      }
    }
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (!v.defined()) continue;
      results[r][axis] = Placement::shard(position(pattern->results[r]));
      sharding_.values[v.index][axis] = results[r][axis];
    }
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const SiteTable& sites_;
  Sharding& sharding_;
  std::vector<Wanted> wanted_;  // per value and axis
  std::vector<bool> fixed_;     // per value: an output, or pinned
};

}  // namespace

Sharding propagate(const Graph& graph, const plan::Plan& plan) {
  const SiteTable sites(graph, plan);
  auto sharding = Propagation(graph, plan, sites).run();
  Narrowing(graph, plan, sites, sharding).run();
  return sharding;
}

}  // namespace perigee::shard
