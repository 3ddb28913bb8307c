#include "methods/parallel/layer_cuts.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>

#include "base/fail.h"
#include "graph/flops.h"
#include "graph/ops.h"

namespace perigee::methods {
namespace {

using graph::Graph;
using graph::Phase;

constexpr double kNever = std::numeric_limits<double>::infinity();

// A run of the forward pass that is not cut, from where it enters a module. `start`: that module.
struct Segment {
  std::string start;
  double flops = 0;  // forward and backward
  int products = 0;  // of the forward pass
};

bool is_heavy(const graph::Node& node) {
  return graph::is_product(node.op) || node.op == "aten::convolution" ||
         node.op == "perigee::attention";
}

// Returns the outermost scope of the path that `seen` lacks, "" if there is none, and adds all of
// the path's scopes to `seen`.
std::string enter(std::string_view path, std::set<std::string, std::less<>>& seen) {
  std::string outermost;
  for (size_t end = path.find('.');; end = path.find('.', end + 1)) {
    const auto scope = path.substr(0, end);
    if (!scope.empty() && seen.emplace(scope).second && outermost.empty()) outermost = scope;
    if (end == std::string_view::npos) return outermost;
  }
}

// `segment_of`: set to the segment of each node, that of the forward op for a backward one.
std::vector<Segment> segments_of(const Graph& graph, std::vector<int>& segment_of) {
  std::vector<Segment> segments(1);
  std::set<std::string, std::less<>> seen;
  segment_of.assign(graph.nodes.size(), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.phase == Phase::backward) {
      if (node.forward_node >= 0) segment_of[n] = segment_of[node.forward_node];
    } else {
      auto start = enter(node.scope, seen);
      // Ops before the first module belong to it.
      if (!start.empty() && n > 0) segments.push_back({std::move(start)});
      segment_of[n] = static_cast<int>(segments.size()) - 1;
      segments.back().products += is_heavy(node);
    }
    segments[segment_of[n]].flops += graph::flops_of(graph, node);
  }
  return segments;
}

// Returns for each value of the forward pass whether it depends on data.
std::vector<bool> find_activations(const Graph& graph) {
  std::vector<bool> of_data(graph.values.size());
  for (const auto& input : graph.inputs) {
    of_data[input.value.index] = input.kind == graph::Input::Kind::data;
  }
  for (const auto& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    bool data = false;
    node.each_operand([&](graph::ValueId v) { data = data || of_data[v.index]; });
    for (auto v : node.outputs) {
      if (v.defined()) of_data[v.index] = data;
    }
  }
  return of_data;
}

// A value that is read in other groups of nodes than its producer's.
struct Crossing {
  double bytes = 0;
  int producer = 0;
  std::vector<int> readers;  // groups, ascending
};

std::vector<Crossing> crossings_of(const Graph& graph, const std::vector<int>& group_of) {
  const auto of_data = find_activations(graph);
  std::vector<std::set<int>> readers(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.phase != Phase::forward) continue;
    node.each_operand([&](graph::ValueId v) { readers[v.index].insert(group_of[n]); });
  }
  std::vector<Crossing> crossings;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const auto& value = graph.values[v];
    if (value.producer < 0 || !of_data[v] || readers[v].empty()) continue;
    if (graph.nodes[value.producer].phase != Phase::forward) continue;
    if (!graph::is_floating(value.type.dtype)) continue;
    const int producer = group_of[value.producer];
    if (*readers[v].rbegin() <= producer) continue;
    crossings.push_back({static_cast<double>(value.type.bytes()),
                         producer,
                         {readers[v].begin(), readers[v].end()}});
  }
  return crossings;
}

// The best cut of the first segments into some layers.
struct Best {
  double most = kNever, all = kNever, squares = kNever;
  int from = 0;
};

// Cuts segments into layers by dynamic programming over the number of layers and of segments.
class Clustering {
 public:
  Clustering(const std::vector<Segment>& segments, const std::vector<std::vector<double>>& in,
             const LayerCuts& cuts)
      : in_(in), count_(static_cast<int>(segments.size())), layers_(cuts.layers) {
    flops_.assign(count_ + 1, 0);
    products_.assign(count_ + 1, 0);
    for (int i = 0; i < count_; ++i) {
      flops_[i + 1] = flops_[i] + segments[i].flops;
      products_[i + 1] = products_[i] + segments[i].products;
    }
    most_flops_ = (1 + cuts.tolerance + 1e-9) * flops_[count_] / static_cast<double>(layers_);
  }

  int products() const { return products_[count_]; }

  // Returns the first segment of each layer but the first; empty if no cut is allowed.
  std::vector<int> run() {
    search(kNever, [](const Best& b) { return std::tuple(b.most, 0.0, 0.0); });
    const double least = best_[layers_][count_].most;
    if (least == kNever) return {};
    search(least, [](const Best& b) { return std::tuple(b.all, b.squares, 0.0); });
    std::vector<int> starts;
    for (int64_t k = layers_, i = count_; k > 1; --k) {
      i = best_[k][i].from;
      starts.insert(starts.begin(), static_cast<int>(i));
    }
    return starts;
  }

 private:
  // No layer reads more than `limit` bytes; the lowest `rank` wins.
  template <class Rank>
  void search(double limit, Rank rank) {
    best_.assign(layers_ + 1, std::vector<Best>(count_ + 1));
    best_[0][0] = {0, 0, 0, 0};
    for (int64_t k = 1; k <= layers_; ++k) {
      for (int end = 1; end <= count_; ++end) {
        for (int first = end - 1; first >= 0; --first) {
          const double flops = flops_[end] - flops_[first];
          if (flops > most_flops_) break;
          const auto& before = best_[k - 1][first];
          const double read = in_[first][end - 1];
          if (before.most == kNever || products_[end] == products_[first] || read > limit) continue;
          const Best now{std::max(before.most, read), before.all + read,
                         before.squares + flops * flops, first};
          auto& best = best_[k][end];
          if (best.most == kNever || rank(now) < rank(best)) best = now;
        }
      }
    }
  }

  const std::vector<std::vector<double>>& in_;
  const int count_;
  const int64_t layers_;
  std::vector<double> flops_;  // of the first i segments
  std::vector<int> products_;  // of the first i segments
  double most_flops_ = 0;      // of a layer
  std::vector<std::vector<Best>> best_;
};

}  // namespace

LayerBytes bytes_between_layers(const Graph& graph, const std::vector<int>& layer_of, int layers) {
  LayerBytes bytes;
  bytes.in.assign(layers, std::vector<double>(layers));
  bytes.out = bytes.in;
  for (const auto& crossing : crossings_of(graph, layer_of)) {
    for (int first = 0; first < layers; ++first) {
      const auto reader = std::lower_bound(crossing.readers.begin(), crossing.readers.end(), first);
      for (int last = first; last < layers; ++last) {
        const bool made_before = crossing.producer < first;
        const bool made_here = !made_before && crossing.producer <= last;
        const bool read_here = reader != crossing.readers.end() && *reader <= last;
        if (made_before && read_here) bytes.in[first][last] += crossing.bytes;
        if (made_here && crossing.readers.back() > last) bytes.out[first][last] += crossing.bytes;
      }
    }
  }
  return bytes;
}

std::vector<std::string> cluster_layers(const Graph& graph, const LayerCuts& cuts) {
  if (cuts.layers <= 1) return {};
  std::vector<int> segment_of;
  const auto segments = segments_of(graph, segment_of);
  const auto in = bytes_between_layers(graph, segment_of, static_cast<int>(segments.size())).in;
  Clustering clustering(segments, in, cuts);
  if (clustering.products() < cuts.layers || std::ssize(segments) < cuts.layers) {
    fail("layers",
         "a layer has a product or a convolution and begins where a module does, but the model has "
         "{} of these in {} modules for {} layers: ask for fewer layers",
         clustering.products(), segments.size(), cuts.layers);
  }
  const auto starts = clustering.run();
  if (starts.empty()) {
    fail("layers",
         "no layer may have more than {:.4g} times its share of the floating-point operations, but "
         "no cut of {} modules into {} layers keeps to that: raise the tolerance, or ask for fewer "
         "layers",
         1 + cuts.tolerance, segments.size(), cuts.layers);
  }
  std::vector<std::string> scopes;
  for (const int start : starts) scopes.push_back(segments[start].start);
  return scopes;
}

}  // namespace perigee::methods
