#include "methods/parallel/pipeline_cuts.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/fail.h"
#include "base/text/match.h"
#include "graph/flops.h"
#include "methods/parallel/layer_cuts.h"

namespace perigee::methods {
namespace {

// A run of the forward pass that is not cut: from a block's first op to the next block's.
struct Block {
  std::string scope;
  double work = 0;  // floating-point operations, backward too
};

// Returns the blocks in forward order. `block_of`: the block of each node of the forward pass.
std::vector<Block> blocks_of(const graph::Graph& graph, const std::vector<std::string>& patterns,
                             std::vector<size_t>& block_of) {
  std::vector<Block> blocks;
  std::map<std::string, size_t> known;
  double before = 0;
  size_t current = 0;
  block_of.assign(graph.nodes.size(), 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    const double work = graph::flops_of(graph, node);
    if (node.phase == graph::Phase::backward) {
      if (node.forward_node >= 0 && !blocks.empty()) {
        blocks[block_of[node.forward_node]].work += work;
      }
      continue;
    }
    for (const auto& scope : graph.scopes) {
      const bool here = graph::contains_scope(scope.path, node.scope) &&
                        std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
                          return matches(pattern, scope.path) || pattern == scope.type;
                        });
      if (!here) continue;
      if (known.emplace(scope.path, blocks.size()).second) {
        current = blocks.size();
        blocks.push_back({scope.path});
      }
      break;
    }
    block_of[n] = current;
    (blocks.empty() ? before : blocks[current].work) += work;
  }
  if (!blocks.empty()) blocks.front().work += before;
  return blocks;
}

// Sets each block's work to 1 where four or more blocks divide evenly over the parts, else to the
// number of its forward ops.
void count_ops(const graph::Graph& graph, const std::vector<size_t>& block_of, int64_t parts,
               std::vector<Block>& blocks) {
  const bool even = blocks.size() >= 4 && std::ssize(blocks) % parts == 0;
  for (auto& block : blocks) block.work = even ? 1 : 0;
  for (size_t n = 0; n < graph.nodes.size() && !even; ++n) {
    if (graph.nodes[n].phase == graph::Phase::forward) blocks[block_of[n]].work += 1;
  }
}

// Returns the first block of each part but the first, for the cut that minimises the work of the
// part with the most work.
std::vector<std::string> balanced_starts(const std::vector<Block>& blocks, int64_t parts) {
  const auto count = std::ssize(blocks);
  std::vector<double> sum(count + 1);
  for (int64_t i = 0; i < count; ++i) sum[i + 1] = sum[i] + blocks[i].work;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // most[k][i]: the largest work of a part where the first i blocks are cut best into k parts.
  std::vector<std::vector<double>> most(parts + 1, std::vector<double>(count + 1, kNever));
  std::vector<std::vector<int64_t>> from(parts + 1, std::vector<int64_t>(count + 1));
  most[0][0] = 0;
  for (int64_t k = 1; k <= parts; ++k) {
    for (int64_t i = k; i <= count; ++i) {
      for (int64_t j = k - 1; j < i; ++j) {
        const double cost = std::max(most[k - 1][j], sum[i] - sum[j]);
        if (cost >= most[k][i]) continue;
        most[k][i] = cost;
        from[k][i] = j;
      }
    }
  }
  std::vector<std::string> starts;
  for (int64_t k = parts, i = count; k > 1; --k) {
    i = from[k][i];
    starts.insert(starts.begin(), blocks[i].scope);
  }
  return starts;
}

// Returns by [first][end] the bytes of activations of earlier blocks that the forward pass of
// blocks first, ..., end - 1 reads.
std::vector<std::vector<double>> received_bytes(const graph::Graph& graph,
                                                const std::vector<size_t>& block_of, size_t count) {
  std::vector<bool> of_data(graph.values.size());
  for (const auto& input : graph.inputs) {
    of_data[input.value.index] = input.kind == graph::Input::Kind::data;
  }
  std::vector<std::vector<size_t>> readers(graph.values.size());  // blocks, ascending
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.phase != graph::Phase::forward) continue;
    bool data = false;
    node.each_operand([&](graph::ValueId v) {
      data = data || of_data[v.index];
      readers[v.index].push_back(block_of[n]);
    });
    for (auto v : node.outputs) {
      if (v.defined()) of_data[v.index] = data;
    }
  }
  std::vector<std::vector<double>> bytes(count + 1, std::vector<double>(count + 1));
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const auto producer = graph.values[v].producer;
    if (producer < 0 || !of_data[v] || readers[v].empty()) continue;
    if (graph.nodes[producer].phase != graph::Phase::forward) continue;
    const auto size = static_cast<double>(graph.values[v].type.bytes());
    for (size_t first = block_of[producer] + 1; first <= readers[v].back(); ++first) {
      const auto reader = *std::lower_bound(readers[v].begin(), readers[v].end(), first);
      for (size_t end = reader + 1; end <= count; ++end) bytes[first][end] += size;
    }
  }
  return bytes;
}

// Returns the first block of each part but the first, for a cut in which no part has more than
// (1 + tolerance) times its share of the work. The cut minimises, in this order, the bytes that one
// part receives from earlier parts, the bytes that all receive, and the differences in the number
// of blocks (Alpa's clustering of operators into layers, Zheng et al. 2022).
std::vector<std::string> least_traffic_starts(const std::vector<Block>& blocks,
                                              const std::vector<std::vector<double>>& bytes,
                                              int64_t parts, double tolerance) {
  const auto count = std::ssize(blocks);
  std::vector<double> sum(count + 1);
  for (int64_t i = 0; i < count; ++i) sum[i + 1] = sum[i] + blocks[i].work;
  const double most_work = (1 + tolerance + 1e-9) * sum[count] / static_cast<double>(parts);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Best {
    double most = kNever, all = kNever, squares = kNever;
    int64_t from = 0;
  };
  // best[k][i]: of the first i blocks in k parts, each of which receives at most `limit` bytes.
  std::vector<std::vector<Best>> best;
  const auto search = [&](double limit, auto better) {
    best.assign(parts + 1, std::vector<Best>(count + 1));
    best[0][0] = {0, 0, 0, 0};
    for (int64_t k = 1; k <= parts; ++k) {
      for (int64_t i = k; i <= count; ++i) {
        for (int64_t j = k - 1; j < i; ++j) {
          const auto& before = best[k - 1][j];
          const double read = bytes[j][i];
          if (before.most == kNever || sum[i] - sum[j] > most_work || read > limit) continue;
          const auto length = static_cast<double>(i - j);
          const Best now{std::max(before.most, read), before.all + read,
                         before.squares + length * length, j};
          if (better(now, best[k][i])) best[k][i] = now;
        }
      }
    }
    return best[parts][count].most;
  };
  const double least = search(kNever, [](const Best& a, const Best& b) { return a.most < b.most; });
  if (least == kNever) {
    fail(
        "pipeline_parallel",
        "tolerance = {} allows parts {:.4g} times their share of the work, but {} blocks cannot be "
        "cut into {} such parts: raise it",
        tolerance, 1 + tolerance, count, parts);
  }
  search(least, [](const Best& a, const Best& b) {
    return std::pair(a.all, a.squares) < std::pair(b.all, b.squares);
  });
  std::vector<std::string> starts;
  for (int64_t k = parts, i = count; k > 1; --k) {
    i = best[k][i].from;
    starts.insert(starts.begin(), blocks[i].scope);
  }
  return starts;
}

}  // namespace

std::vector<std::string> cut_blocks(const graph::Graph& graph, const PipelineCut& cut) {
  std::vector<size_t> block_of;
  auto blocks = blocks_of(graph, cut.patterns, block_of);
  const auto parts = cut.stages * cut.chunks;
  if (std::ssize(blocks) < parts) {
    fail("pipeline_parallel",
         "{} stages of {} part{} need {} blocks, but {} has {}: name starts or blocks, or make the "
         "axis smaller",
         cut.stages, cut.chunks, cut.chunks == 1 ? "" : "s", parts,
         cut.patterns.empty() ? "the model" : cut.patterns.front(), blocks.size());
  }
  if (cut.balance == Balance::count) count_ops(graph, block_of, parts, blocks);
  if (!cut.tolerance) return balanced_starts(blocks, parts);
  return least_traffic_starts(blocks, received_bytes(graph, block_of, blocks.size()), parts,
                              *cut.tolerance);
}

std::vector<std::string> cut_layers(const graph::Graph& graph, const LayerParts& cut) {
  auto numbers = cut.numbers;
  if (numbers.empty()) {
    if (cut.layers % cut.parts != 0) {
      fail(
          "pipeline_parallel",
          "layers must divide over {} parts, or part_layers must say how many each has, but got {}",
          cut.parts, cut.layers);
    }
    numbers.assign(cut.parts, cut.layers / cut.parts);
  }
  const auto sum = std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
  const bool positive = std::ranges::all_of(numbers, [](int64_t n) { return n > 0; });
  if (std::ssize(numbers) != cut.parts || sum != cut.layers || !positive) {
    fail("pipeline_parallel",
         "part_layers must list {} numbers above 0 with the sum {} of layers, but got [{}]",
         cut.parts, cut.layers, fmt::join(numbers, ", "));
  }
  const auto scopes = cluster_layers(graph, {.layers = cut.layers, .tolerance = cut.tolerance});
  std::vector<std::string> starts;
  int64_t first = 0;
  for (size_t part = 0; part + 1 < numbers.size(); ++part) {
    first += numbers[part];
    starts.push_back(scopes[first - 1]);
  }
  return starts;
}

}  // namespace perigee::methods
