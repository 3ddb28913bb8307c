#include "search/layers/exchange.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "compile/draft/collective.h"

namespace perigee::search {
namespace {

using cost::CollectiveKind;

constexpr double kScalar = 8;  // bytes of a norm

// `count` ranks, `stride` apart: the mesh is tensor, expert, context, data, pipe from
// the inside out.
std::vector<int64_t> ranks_apart(int64_t first, int64_t count, int64_t stride) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

// Returns the seconds that contention on one link adds, where `compute` has collectives of
// `communication` seconds and the others take `exchange`: two concurrent transfers get half the
// bandwidth each.
double shared(double compute, double communication, double exchange) {
  if (communication <= 0 || exchange <= 0) return 0;
  // For x seconds both transfer: x / communication = (exchange + x) / (compute + x).
  const double arithmetic = compute - communication;
  const double root = std::sqrt(arithmetic * arithmetic + 4 * exchange * communication);
  const double overlapped = (root - arithmetic) / 2;
  return std::min({overlapped, communication, exchange});
}

// A layer's reductions, relative to its ops.
struct Reductions {
  double within;  // seconds that ops wait, in all, for one reduction to end before the next
  double window;  // share of the layer's ops before its own first reduction begins
  double tail;    // seconds of the last reduction
};

Reductions reductions_of(const Passing& layer) {
  if (!layer.buckets || layer.buckets->size() < 2) return {0, 1, layer.reduce};
  const auto& buckets = *layer.buckets;
  Reductions found{0, 1, layer.reduce * buckets.back().reduced};
  for (size_t k = 1; k < buckets.size(); ++k) {
    const double computed = layer.compute * buckets[k].compute;
    found.within += std::max(0.0, layer.reduce * buckets[k - 1].reduced - computed);
    found.window -= buckets[k].compute;
  }
  return found;
}

// Squared norms of gradients that are sharded on the same axes are added by one all-reduce; these
// run one after the other.
double seconds_of_norm(const Choice& choice, const Layers& parameters, simulate::OpCosts& costs,
                       int64_t first) {
  std::map<mesh::AxisSet, std::vector<int64_t>, mesh::TextOrder> groups;  // by axes
  for (const auto* layer : {&parameters.prologue, &parameters.block, &parameters.epilogue}) {
    for (const auto& flat : layer->flats) {
      auto& ranks = groups[flat.axes];
      ranks = {first};
      int64_t stride = 1;
      const auto over = [&](int64_t count, bool cut) {
        const auto before = ranks;
        for (int64_t i = 1; cut && i < count; ++i) {
          for (const auto rank : before) ranks.push_back(rank + i * stride);
        }
        stride *= count;
      };
      over(choice.tensor, flat.axes.contains("tensor"));
      over(choice.expert, flat.experts);
      over(choice.parts(), choice.zero > 0);
    }
  }
  double seconds = 0;
  for (const auto& [axes, ranks] : groups) {
    if (ranks.size() < 2) continue;
    seconds += costs
                   .collective(
                       {.kind = CollectiveKind::all_reduce, .ranks = ranks, .bytes = kScalar})
                   .seconds;
  }
  return seconds;
}

}  // namespace

Exchanges exchanges_of(const Choice& choice, const Layers& parameters, simulate::OpCosts& costs,
                       const StageRanks& stage) {
  Exchanges made;
  // Units are sharded over context and data; gradients of other parameters than experts' own are
  // also summed over the expert ranks.
  const auto first = stage.first, ranks = choice.tensor * choice.expert * choice.parts();
  const auto units = ranks_apart(first, choice.parts(), choice.tensor * choice.expert);
  const auto all = ranks_apart(first, choice.expert * choice.parts(), choice.tensor);
  const auto experts = ranks_apart(first, choice.expert, choice.tensor);
  const auto tensor = ranks_apart(first, choice.tensor, 1);
  const auto wider = ranks_apart(first, ranks, 1);
  const auto opposite = stage.opposite >= 0 ? stage.opposite : ranks * (choice.pipe - 1);
  const auto time = [&](CollectiveKind kind, const std::vector<int64_t>& group, double bytes,
                        double pieces = 1) {
    if (group.size() < 2 || bytes <= 0 || pieces <= 0) return 0.0;
    return pieces *
           costs.collective({.kind = kind, .ranks = group, .bytes = bytes / pieces}).seconds;
  };
  const auto reduction = [&](const FlatGroup& flat, double bytes, double pieces) {
    if (choice.zero == 0) {
      const double wide = flat.experts || bytes <= 0 ? 0 : flat.summed / flat.gradients;
      return time(CollectiveKind::all_reduce, flat.experts ? units : all, (1 - wide) * bytes,
                  pieces) +
             time(CollectiveKind::all_reduce, wider, wide * bytes, pieces);
    }
    return time(CollectiveKind::reduce_scatter, units, bytes, pieces);
  };
  const bool separates_tied = parameters.tied && choice.pipe > 1;  // tied parameters are in no unit
  const auto layer = [&](const Layer& of) {
    LayerExchange exchange;
    for (const auto& flat : of.flats) {
      const double kept = separates_tied && flat.gathered > 0 ? 1 - flat.read_late / flat.gathered
                                                              : 1;
      const double weights = kept * flat.weights, gradients = kept * flat.gradients;
      const double pieces = choice.zero == 3 ? 1 : flat.pieces;
      const double reduce = reduction(flat, gradients, pieces);
      exchange.reduce += reduce;
      exchange.buckets += reduce * flat.pieces;
      exchange.last_reduction = choice.zero == 3 ? exchange.reduce
                                                 : std::max(exchange.last_reduction,
                                                            reduce / std::max(1.0, pieces));
      if (choice.zero == 3) {
        const double gather = time(CollectiveKind::all_gather, units, kept * flat.gathered);
        if (flat.in_forward) exchange.gather_forward += gather;
        if (flat.in_backward) exchange.gather_backward += gather;
      } else if (choice.zero > 0) {
        const double moved = choice.one_copy      ? 0
                             : parameters.masters ? kept * flat.gathered
                                                  : weights;
        exchange.gather += time(CollectiveKind::all_gather, units, moved, pieces);
      }
      // A unit of which all gradients are tensor sums, none of them small, is reduced in parts
      // after it.
      const bool small = gradients <= std::max(1.0, pieces) * compile::kSmallSum;
      if (choice.zero > 0 && (small || flat.summed < 0.999 * flat.gradients)) {
        exchange.early += time(CollectiveKind::all_reduce, tensor, kept * flat.summed);
      } else if (choice.zero > 0 && flat.summed > 0) {
        exchange.reduce += time(CollectiveKind::all_reduce, tensor,
                                gradients / static_cast<double>(choice.parts()), pieces);
      }
      if (!separates_tied || flat.read_late <= 0) continue;
      const double bytes = (1 - kept) * flat.gradients;
      made.tied += time(CollectiveKind::all_reduce, flat.experts ? units : all, bytes) +
                   time(CollectiveKind::all_reduce, {first, opposite}, bytes);
    }
    if (exchange.reduce > 0) exchange.buckets /= exchange.reduce;
    return exchange;
  };
  made.prologue = layer(parameters.prologue);
  made.prologue.last_reduction = made.prologue.reduce;  // the backward pass ends with its gradients
  made.block = layer(parameters.block);
  made.epilogue = layer(parameters.epilogue);
  made.norm_all_reduce = seconds_of_norm(choice, parameters, costs, first);
  const auto& group = choice.zero == 0 ? all : units;
  made.smallest_reduction = time(
      choice.zero == 0 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter, group, 1);
  if (choice.zero > 0 && choice.expert > 1) {
    made.smallest_reduction += time(CollectiveKind::all_reduce, experts, 1);
  }
  if (choice.tensor > 1 && group.size() > 1) {
    const auto& cluster = costs.cluster();
    const bool shared = cost::level_of(cluster, group) == cost::level_of(cluster, tensor);
    if (shared) made.contention = Contention::links;
  }
  if (costs.cluster().shared_cores) made.contention = Contention::cores;
  return made;
}

double seconds_of_pass(const std::vector<Passing>& layers, Contention contention) {
  if (contention == Contention::cores) {
    double seconds = 0;
    for (const auto& layer : layers) {
      seconds += layer.times * (layer.compute + layer.gather + layer.reduce);
    }
    return seconds;
  }
  double seconds = 0, left = 0;  // left: reduction of the layer before `before`
  const Passing* before = nullptr;
  // While a layer computes, the preceding one is reduced, then the next one is gathered.
  const auto pass_seconds = [&](double gather) {
    const auto [within, window, tail] = reductions_of(*before);
    double compute = before->compute, exchange = left + gather;
    if (contention == Contention::links) {
      const double moved = exchange + before->reduce - tail;
      const double added = shared(compute, before->communication, moved);
      compute += added;
      exchange += added;
    }
    return compute + within + std::max(0.0, exchange - window * compute);
  };
  for (const auto& layer : layers) {
    // From the third on, the two previous layers are identical, too.
    for (int i = 0; i < std::min(layer.times, 3); ++i) {
      const int times = i == 2 ? layer.times - 2 : 1;
      seconds += before ? times * pass_seconds(layer.gather) : layer.gather;
      left = before ? reductions_of(*before).tail : 0;
      before = &layer;
    }
  }
  if (!before) return 0;
  return seconds + pass_seconds(0) + std::max(0.0, before->last_reduction - before->tail);
}

}  // namespace perigee::search
