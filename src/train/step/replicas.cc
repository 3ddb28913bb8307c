#include "train/step/replicas.h"

#define XXH_INLINE_ALL
#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/fail.h"
#include "checkpoint/files.h"
#include "checkpoint/holdings.h"
#include "mesh/mesh.h"
#include "plan/plan.h"
#include "train/ranks/share.h"

namespace perigee::train {
namespace {

using checkpoint::Holding;

constexpr int64_t kChunk = 16 << 20;  // bytes that are copied from a GPU at once
constexpr int64_t kMissing = 0;       // the hash of a part that a rank does not have

int64_t hash_of(const at::Tensor& tensor) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (!state || XXH3_64bits_reset(state.get()) == XXH_ERROR) {
    fail_run("replicas", "a hash needs memory, but there is none");
  }
  const auto flat = tensor.contiguous().view({-1});
  const auto elements = std::max<int64_t>(1, kChunk / flat.element_size());
  for (int64_t begin = 0; begin < flat.numel(); begin += elements) {
    const auto piece = flat.narrow(0, begin, std::min(elements, flat.numel() - begin)).cpu();
    XXH3_64bits_update(state.get(), piece.const_data_ptr(), piece.nbytes());
  }
  const auto hash = static_cast<int64_t>(XXH3_64bits_digest(state.get()));
  return hash == kMissing ? 1 : hash;
}

bool has(const std::vector<int64_t>& ranks, int64_t rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

// Returns the holdings of several ranks that are equal after a step. `batch_only`: their ranks are
// split into those that differ in their places on the batch's axes alone.
std::vector<Holding> shared_holdings(const std::vector<Holding>& all, const graph::Graph& graph,
                                     const plan::Plan& plan, int64_t step, bool batch_only) {
  std::vector<Holding> shared;
  for (const auto& holding : all) {
    // Each copy's own part is a holding of its own.
    if (checkpoint::are_apart(graph, plan, holding.part.name, step)) continue;
    std::vector<std::vector<int64_t>> groups = {holding.ranks};
    if (batch_only) {
      std::map<std::vector<int64_t>, std::vector<int64_t>> by_group;
      for (const auto rank : holding.ranks) {
        by_group[mesh::group_of(plan.mesh, plan.batch_axes, rank)].push_back(rank);
      }
      groups.clear();
      for (auto& [group, ranks] : by_group) groups.push_back(std::move(ranks));
    }
    for (auto& ranks : groups) {
      if (ranks.size() > 1) shared.push_back({holding.part, std::move(ranks)});
    }
  }
  return shared;
}

// Returns this rank's tensors by the keys of their parts.
std::map<std::string, at::Tensor> tensors_of(RankTrainer& trainer) {
  const auto& plan = trainer.blueprint().plan;
  const auto& program = trainer.executor().program();
  std::map<std::string, at::Tensor> tensors;
  for (const auto& binding : program.bindings) {
    if (!checkpoint::is_kept(plan, binding)) continue;
    const auto part = checkpoint::part_of_binding(program, binding);
    const auto tensor = trainer.executor().tensor(binding);
    tensors[checkpoint::key_of(part)] = tensor;
    if (program.model_copies == 1) continue;
    tensors[checkpoint::key_of(
        checkpoint::part_of_copies(part, program.model_copies, program.model_copy))] = tensor;
  }
  return tensors;
}

}  // namespace

std::string find_difference(std::span<const Holding> holdings,
                            const std::vector<std::vector<int64_t>>& hashes) {
  std::vector<size_t> next(hashes.size());
  std::string first;
  int64_t more = 0;
  for (const auto& holding : holdings) {
    std::map<int64_t, std::vector<int64_t>> ranks_of;  // by hash
    for (const auto rank : holding.ranks) {
      const auto r = static_cast<size_t>(rank);
      const auto hash = hashes[r].at(next[r]++);
      if (hash != kMissing) ranks_of[hash].push_back(rank);
    }
    if (ranks_of.size() < 2) continue;
    if (!first.empty()) {
      ++more;
      continue;
    }
    const auto most = std::max_element(
        ranks_of.begin(), ranks_of.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    const auto name = checkpoint::key_of(holding.part);
    if (2 * most->second.size() <= holding.ranks.size()) {
      first = fmt::format("{} differs between ranks {}", name, fmt::join(holding.ranks, " and "));
      continue;
    }
    std::vector<int64_t> deviating;
    for (const auto& [hash, ranks] : ranks_of) {
      if (hash != most->first) deviating.insert(deviating.end(), ranks.begin(), ranks.end());
    }
    std::sort(deviating.begin(), deviating.end());
    first = fmt::format("{} of rank {} is not that of rank{} {}", name, fmt::join(deviating, ", "),
                        most->second.size() == 1 ? "" : "s", fmt::join(most->second, ", "));
  }
  if (more > 0) first += fmt::format(" (and {} more tensor{})", more, more == 1 ? "" : "s");
  return first;
}

void check_replicas(RankTrainer& trainer, exec::Communicator& communicator, int64_t step,
                    int64_t equal_at) {
  const auto& plan = trainer.blueprint().plan;
  const auto& graph = trainer.blueprint().training;
  const auto all = checkpoint::all_holdings(trainer.executor().program(), graph, plan,
                                            trainer.spec(), step);
  const auto shared = shared_holdings(all, graph, plan, step, !trainer.is_deterministic());
  if (shared.empty()) return;
  const auto tensors = tensors_of(trainer);
  const auto world = static_cast<size_t>(communicator.world());
  std::vector<size_t> counts(world);
  std::vector<int64_t> mine;
  for (const auto& holding : shared) {
    for (const auto rank : holding.ranks) ++counts[static_cast<size_t>(rank)];
    if (!has(holding.ranks, communicator.rank())) continue;
    const auto found = tensors.find(checkpoint::key_of(holding.part));
    mine.push_back(found == tensors.end() ? kMissing : hash_of(found->second));
  }
  const auto width = static_cast<int64_t>(*std::max_element(counts.begin(), counts.end()));
  auto sent = at::zeros({width}, at::kLong);
  std::copy(mine.begin(), mine.end(), sent.data_ptr<int64_t>());
  auto received = at::zeros({width * communicator.world()}, at::kLong);
  everyone(communicator)
      ->run({.kind = exec::Collective::Kind::all_gather,
             .input = sent,
             .output = received,
             .dim = 0});
  std::vector<std::vector<int64_t>> hashes(world);
  for (size_t rank = 0; rank < world; ++rank) {
    const auto* begin = received.data_ptr<int64_t>() + static_cast<int64_t>(rank) * width;
    hashes[rank].assign(begin, begin + counts[rank]);
  }
  const auto difference = find_difference(shared, hashes);
  if (difference.empty()) return;
  fail_run("replicas",
           "ranks that hold the same tensor must have the same bytes, but after step {} {}: a "
           "fault of a device, its memory or the network; they were equal after step {}: resume "
           "from a checkpoint of that step or an earlier one",
           step, difference, equal_at);
}

}  // namespace perigee::train
