// Times of collectives on a cluster.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include "base/fail.h"
#include "cost/cluster.h"

namespace perigee::cost {
namespace {

constexpr std::array<std::string_view, 6> kNames{"all_reduce", "all_gather", "reduce_scatter",
                                                 "all_to_all", "broadcast",  "message"};

// Over n ranks connected by one level. `bytes` as in collective_seconds.
double flat(CollectiveKind kind, double bytes, int64_t ranks, const Link& link) {
  if (ranks <= 1) return 0;
  const auto n = static_cast<double>(ranks);
  const double steps = std::ceil(std::log2(n));
  const double ring = (n - 1) * link.latency + bytes * (n - 1) / n / link.bandwidth;
  switch (kind) {
    case CollectiveKind::all_reduce:
      // The tree sends pieces up and down concurrently: twice the bytes in few steps.
      return std::min(2 * ring, 2 * steps * link.latency + 2 * bytes / link.bandwidth);
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
      return ring;
    case CollectiveKind::all_to_all:
      // All messages are sent concurrently.
      return steps * link.latency + bytes * (n - 1) / n / link.bandwidth;
    case CollectiveKind::broadcast:
      return std::min(ring + (n - 1) * link.latency, steps * link.latency) + bytes / link.bandwidth;
    case CollectiveKind::message:
      return link.latency + bytes / link.bandwidth;
  }
  return 0;
}

// Returns the ranks of the group in each block of `ranks` consecutive ranks; 0 where they differ.
int64_t per_block(const std::vector<int64_t>& group, int64_t ranks) {
  std::map<int64_t, int64_t> blocks;
  for (int64_t rank : group) ++blocks[rank / ranks];
  const auto first = blocks.begin()->second;
  const bool even = std::all_of(blocks.begin(), blocks.end(),
                                [&](const auto& block) { return block.second == first; });
  return even ? first : 0;
}

// Over the levels outer..0; `group` is within one block of `outer`.
double hierarchical(const Cluster& cluster, CollectiveKind kind, double bytes,
                    const std::vector<int64_t>& group, int outer) {
  const auto n = static_cast<int64_t>(group.size());
  const auto& link = cluster.links[outer];
  const double all = flat(kind, bytes, n, link);
  if (outer == 0) return all;
  const int64_t inside = per_block(group, cluster.links[outer - 1].ranks);
  if (inside == n) return hierarchical(cluster, kind, bytes, group, outer - 1);
  if (inside <= 1) return all;
  const int64_t blocks = n / inside;
  const auto share = bytes / static_cast<double>(inside);
  // The ranks of one block; other blocks do the same at the same time.
  const auto block = group.front() / cluster.links[outer - 1].ranks;
  std::vector<int64_t> inner;
  for (int64_t rank : group) {
    if (rank / cluster.links[outer - 1].ranks == block) inner.push_back(rank);
  }
  const auto within = [&](CollectiveKind k, double b) {
    return hierarchical(cluster, k, b, inner, outer - 1);
  };
  double steps = all;
  switch (kind) {
    case CollectiveKind::all_reduce:
      steps = within(CollectiveKind::reduce_scatter, bytes) + flat(kind, share, blocks, link) +
              within(CollectiveKind::all_gather, bytes);
      break;
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
      steps = flat(kind, share, blocks, link) + within(kind, bytes);
      break;
    case CollectiveKind::all_to_all: {
      // Both networks transfer concurrently.
      const auto outside = bytes * static_cast<double>(n - inside) / static_cast<double>(n);
      const double far = std::ceil(std::log2(double(n))) * link.latency + outside / link.bandwidth;
      steps = std::max(far, within(kind, bytes * static_cast<double>(inside) / double(n)));
      break;
    }
    case CollectiveKind::broadcast:
      steps = flat(kind, bytes, blocks, link) + within(kind, bytes);
      break;
    case CollectiveKind::message:
      break;
  }
  return std::min(all, steps);
}

}  // namespace

CollectiveKind collective_kind(std::string_view op) {
  if (op.starts_with("comm::")) op.remove_prefix(6);
  if (op == "exchange") return CollectiveKind::all_to_all;
  if (op == "barrier") return CollectiveKind::all_reduce;
  if (op == "send" || op == "receive" || op == "shift") return CollectiveKind::message;
  const auto found = std::find(kNames.begin(), kNames.end(), op);
  if (found == kNames.end()) fail("cluster", "{} is not a collective", op);
  return static_cast<CollectiveKind>(found - kNames.begin());
}

std::string_view name_of(CollectiveKind kind) { return kNames[static_cast<size_t>(kind)]; }

int level_of(const Cluster& cluster, const std::vector<int64_t>& group) {
  int outer = -1;
  for (int64_t rank : group) {
    if (rank != group.front()) outer = std::max(outer, cluster.level(group.front(), rank));
  }
  return outer;
}

std::vector<int64_t> shape_of(const Cluster& cluster, const std::vector<int64_t>& group) {
  const int outer = level_of(cluster, group);
  std::vector<int64_t> shape{outer};
  auto inner = group;
  for (int level = outer - 1; level >= 0; --level) {
    const auto ranks = cluster.links[level].ranks;
    shape.push_back(per_block(inner, ranks));
    const auto block = inner.front() / ranks;
    std::erase_if(inner, [&](int64_t rank) { return rank / ranks != block; });
  }
  return shape;
}

ExchangeKind exchange_kind(const Cluster& cluster, CollectiveKind kind,
                           const std::vector<int64_t>& group) {
  const auto shape = shape_of(cluster, group);
  ExchangeKind result{.kind = kind, .ranks = static_cast<int64_t>(group.size())};
  if (shape.front() >= 0) result.level = cluster.links[shape.front()].level;
  result.inside.assign(shape.begin() + 1, shape.end());
  if (kind == CollectiveKind::message) {
    // All messages of a shift are sent at once.
    result.ranks = 2;
    std::fill(result.inside.begin(), result.inside.end(), 1);
  }
  return result;
}

double collective_seconds(const Cluster& cluster, CollectiveKind kind, double bytes,
                          const std::vector<int64_t>& group) {
  const int outer = level_of(cluster, group);
  if (outer < 0) return 0;
  return hierarchical(cluster, kind, bytes, group, outer);
}

}  // namespace perigee::cost
