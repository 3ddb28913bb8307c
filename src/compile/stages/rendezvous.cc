#include "compile/stages/rendezvous.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace perigee::compile {
namespace {

// A microbatch's message between two parts: the edge's position times the number of microbatches,
// plus the microbatch.
using Message = size_t;

struct Step {
  enum class Kind : uint8_t { send, receive, wait } kind;
  Message message;
  size_t position;  // of its op in the stage's order
};

// Simulates the stages' sends, receives and waits. Of n parts, part p has frame p for microbatches
// that recompute, and frame n + p for those that keep their results.
class Stages {
 public:
  Stages(const Schedule& schedule, const std::set<std::pair<int, int>>& edges,
         const InterleavedOps& interleaved, int64_t kept, const PoolsOfFrames& pools)
      : schedule_(schedule),
        microbatches_(static_cast<size_t>(schedule.microbatches)),
        messages_(edges.size() * microbatches_),
        interleaved_(interleaved),
        pools_(pools),
        place_(schedule.stages * schedule.chunks),
        ends_(place_.size()) {
    for (auto* list : {&pools_.recomputed, &pools_.kept}) {
      if (!list->empty()) continue;
      list->resize(place_.size());
      std::iota(list->begin(), list->end(), 0);
    }
    for (const auto& order : schedule.orders) {
      kept_.push_back(kept_microbatches(order, schedule.microbatches, kept));
      auto& flags = kept_.back();
      if (std::find(flags.begin(), flags.end(), false) == flags.end()) {
        flags.assign(flags.size(), false);
      }
    }
    for (int s = 0; s < schedule.stages; ++s) {
      for (int c = 0; c < schedule.chunks; ++c) place_[schedule.parts[s][c]] = s;
    }
    find_ends(edges);
    find_spans();
  }

  // Returns, by frame, the copies that its stage's order uses at once.
  std::vector<int64_t> needed() const {
    std::vector<int64_t> counts;
    for (const auto& uses : uses_) {
      int64_t most = uses.empty() ? 0 : 1;
      for (auto copy : assign_copies(spans(uses), 1)) most = std::max(most, int64_t{copy} + 1);
      const bool shared = std::any_of(
          uses.begin(), uses.end(), [&](const Use& use) { return use.part != uses.front().part; });
      counts.push_back(std::min(most + shared, std::ssize(uses)));
    }
    return counts;
  }

  size_t frame_of(int part, bool kept) const {
    return kept ? place_.size() + pools_.kept[part] : static_cast<size_t>(pools_.recomputed[part]);
  }

  // Adds a copy to every frame that has fewer copies than microbatches that use it. Returns whether
  // there was one.
  bool grow(std::vector<int64_t>& counts) const {
    bool grown = false;
    for (size_t f = 0; f < counts.size(); ++f) {
      if (counts[f] >= std::ssize(uses_[f])) continue;
      ++counts[f];
      grown = true;
    }
    return grown;
  }

  // Returns, by frame, one copy per microbatch that uses it.
  std::vector<int64_t> all() const {
    std::vector<int64_t> counts;
    for (const auto& uses : uses_) counts.push_back(std::ssize(uses));
    return counts;
  }

  // Returns the stages that deadlock with these copies, and the position of the op at which
  // each stops.
  std::map<size_t, size_t> stuck(const std::vector<int64_t>& counts) const {
    std::vector<std::vector<Step>> steps;
    for (int s = 0; s < schedule_.stages; ++s) steps.push_back(steps_of(s, counts));
    std::vector<size_t> at(steps.size());
    std::vector<bool> sent(messages_), wanted(messages_);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < steps.size(); ++s) {
        for (; at[s] < steps[s].size(); ++at[s], moved = true) {
          const auto& [kind, message, position] = steps[s][at[s]];
          if (kind == Step::Kind::send) sent[message] = true;
          if (kind == Step::Kind::receive && !wanted[message]) wanted[message] = moved = true;
          if (kind == Step::Kind::receive && !sent[message]) break;
          if (kind == Step::Kind::wait && !wanted[message]) break;
        }
      }
    }
    std::map<size_t, size_t> stopped;
    for (size_t s = 0; s < steps.size(); ++s) {
      if (at[s] < steps[s].size()) stopped[s] = steps[s][at[s]].position;
    }
    return stopped;
  }

 private:
  // A microbatch's use of a frame.
  struct Use {
    InterleavedRange span;
    int part = 0;
    int microbatch = 0;
  };

  static std::vector<InterleavedRange> spans(const std::vector<Use>& uses) {
    std::vector<InterleavedRange> result;
    for (const auto& use : uses) result.push_back(use.span);
    return result;
  }

  void find_ends(const std::set<std::pair<int, int>>& edges) {
    for (size_t part = 0; part < ends_.size(); ++part) {
      ends_[part].uses = {static_cast<int>(part)};
    }
    Message first = 0;
    for (const auto& [from, to] : edges) {
      const bool forward = from < to;
      if (place_[from] == place_[to]) {
        if (from != to) ends_[to].uses.push_back(from);
      } else {
        ends_[from].sends[forward].push_back(first);
        ends_[to].receives[forward].push_back(first);
      }
      first += microbatches_;
    }
  }

  void find_spans() {
    uses_.resize(2 * place_.size());
    for (int s = 0; s < schedule_.stages; ++s) {
      const auto& order = schedule_.orders[s];
      std::map<int, std::vector<std::optional<InterleavedRange>>> spans;  // by part and microbatch
      for (size_t r = 0; r < order.size(); ++r) {
        const int part = schedule_.parts[s][order[r].chunk];
        for (int other : ends_[part].uses) {
          auto& of_part = spans[other];
          of_part.resize(microbatches_);
          auto& span = of_part[order[r].microbatch];
          if (!span) span = interleaved_[s][r];
          span->last = std::max(span->last, interleaved_[s][r].last);
        }
      }
      for (const auto& [part, of_part] : spans) {
        for (size_t m = 0; m < of_part.size(); ++m) {
          if (!of_part[m]) continue;
          uses_[frame_of(part, kept_[s][m])].push_back({*of_part[m], part, static_cast<int>(m)});
        }
      }
    }
    for (auto& uses : uses_) {
      std::sort(uses.begin(), uses.end(),
                [](const Use& a, const Use& b) { return a.span.first < b.span.first; });
    }
  }

  std::vector<Step> steps_of(int stage, const std::vector<int64_t>& counts) const {
    const auto& order = schedule_.orders[stage];
    // The preceding use of a microbatch's copy, by part and microbatch.
    std::map<int, std::vector<const Use*>> before;
    std::set<size_t> frames;
    for (int part : schedule_.parts[stage]) {
      before[part].resize(microbatches_);
      for (const bool kept : {false, true}) frames.insert(frame_of(part, kept));
    }
    for (const size_t frame : frames) {
      const auto& uses = uses_[frame];
      const auto copies = assign_copies(spans(uses), counts[frame]);
      std::map<int32_t, const Use*> had;
      for (size_t k = 0; k < copies.size(); ++k) {
        auto& last = had[copies[k]];
        before[uses[k].part][uses[k].microbatch] = std::exchange(last, &uses[k]);
      }
    }
    std::vector<Step> steps, sends;  // sends: of interleaved ops, at their end
    for (size_t r = 0; r < order.size(); ++r) {
      const auto& op = order[r];
      const int part = schedule_.parts[stage][op.chunk];
      const bool forward = op.kind == PipelineKind::forward;
      const auto add = [&](std::vector<Step>& to, Step::Kind kind, int microbatch,
                           const std::vector<Message>& firsts) {
        for (const auto first : firsts) to.push_back({kind, first + microbatch, r});
      };
      if (op.kind != PipelineKind::weight_grad) {
        if (const auto* use = before[part][op.microbatch]; forward && use) {
          add(steps, Step::Kind::wait, use->microbatch, ends_[use->part].sends[false]);
        }
        if (!forward) add(steps, Step::Kind::wait, op.microbatch, ends_[part].sends[true]);
        add(steps, Step::Kind::receive, op.microbatch, ends_[part].receives[forward]);
        add(sends, Step::Kind::send, op.microbatch, ends_[part].sends[forward]);
      }
      if (interleaved_[stage][r].last == r) {
        steps.insert(steps.end(), sends.begin(), sends.end());
        sends.clear();
      }
    }
    return steps;
  }

  // A part's messages to and from other stages in the first microbatch (gradients and activations),
  // and the parts of its stage that make its operands.
  struct Ends {
    std::array<std::vector<Message>, 2> sends, receives;  // [0] gradients
    std::vector<int> uses;
  };

  const Schedule& schedule_;
  const size_t microbatches_, messages_;  // counts
  const InterleavedOps& interleaved_;
  PoolsOfFrames pools_;
  std::vector<int> place_;               // stage, by part
  std::vector<Ends> ends_;               // by part
  std::vector<std::vector<bool>> kept_;  // by stage and microbatch; nothing where all are
  std::vector<std::vector<Use>> uses_;   // by frame
};

}  // namespace

std::vector<int32_t> assign_copies(const std::vector<InterleavedRange>& spans, int64_t count) {
  struct Copy {
    bool used = false;
    size_t last_use = 0;
  };
  std::vector<Copy> copies(static_cast<size_t>(count));
  std::vector<int32_t> taken;
  for (const auto& span : spans) {
    size_t best = copies.size();
    for (size_t c = 0; c < copies.size(); ++c) {
      if (copies[c].used && copies[c].last_use >= span.first) continue;
      const bool sooner = best == copies.size() ||
                          (copies[best].used &&
                           (!copies[c].used || copies[c].last_use < copies[best].last_use));
      if (sooner) best = c;
    }
    if (best == copies.size()) copies.emplace_back();
    copies[best] = {true, span.last};
    taken.push_back(static_cast<int32_t>(best));
  }
  return taken;
}

std::vector<bool> kept_microbatches(const std::vector<PipelineOp>& order, int64_t microbatches,
                                    int64_t count) {
  std::vector<int64_t> left(static_cast<size_t>(microbatches));  // ops
  for (const auto& op : order) ++left[op.microbatch];
  std::vector<bool> kept(left.size()), seen(left.size());
  int64_t now = 0;
  for (const auto& op : order) {
    const auto m = static_cast<size_t>(op.microbatch);
    if (!seen[m] && now < count) {
      kept[m] = true;
      ++now;
    }
    seen[m] = true;
    if (--left[m] == 0 && kept[m]) --now;
  }
  return kept;
}

int64_t stage_of(const plan::Plan& plan, int64_t rank) {
  const auto axis = plan.mesh.find(plan.pipeline.axis);
  return axis < 0 ? 0 : mesh::coordinates(plan.mesh, rank)[axis];
}

Kept kept_on_stage(const plan::Plan& plan, const Schedule& schedule, int64_t rank) {
  const auto kept = kept_microbatches(schedule.orders[stage_of(plan, rank)], schedule.microbatches,
                                      plan.recompute.kept_microbatches);
  const auto count = std::count(kept.begin(), kept.end(), true);
  if (plan.recompute.regions.empty() || count == 0) return Kept::none;
  return count == std::ssize(kept) ? Kept::all : Kept::some;
}

std::vector<PartCopies> copies_of_parts(const Schedule& schedule,
                                        const std::set<std::pair<int, int>>& edges,
                                        const InterleavedOps& interleaved, int64_t kept,
                                        const PoolsOfFrames& pools) {
  const Stages stages(schedule, edges, interleaved, kept, pools);
  auto counts = stages.needed();
  while (!stages.stuck(counts).empty() && stages.grow(counts)) {  // ends with a copy per microbatch
  }
  std::vector<PartCopies> copies;
  for (int p = 0; p < static_cast<int>(counts.size() / 2); ++p) {
    copies.push_back({counts[stages.frame_of(p, false)], counts[stages.frame_of(p, true)]});
  }
  return copies;
}

const std::vector<PartCopies>& Rendezvous::copies(const Schedule& schedule,
                                                  const std::set<std::pair<int, int>>& edges,
                                                  const InterleavedOps& interleaved, int64_t kept,
                                                  const PoolsOfFrames& pools) {
  const std::lock_guard lock(mutex_);
  for (const auto& asked : known_) {
    const bool same = asked.kept == kept && asked.edges == edges &&
                      asked.interleaved == interleaved &&
                      asked.pools.recomputed == pools.recomputed && asked.pools.kept == pools.kept;
    if (same) return asked.copies;
  }
  known_.push_back({edges, interleaved, kept, pools,
                    copies_of_parts(schedule, edges, interleaved, kept, pools)});
  return known_.back().copies;
}

InterleavedOps find_interleaved_ops(const Schedule& schedule,
                                    const std::set<std::pair<int, int>>& edges,
                                    const std::set<int>& exchanging) {
  InterleavedOps interleaved;
  if (exchanging.empty()) {
    for (const auto& order : schedule.orders) {
      auto& stage = interleaved.emplace_back();
      for (size_t r = 0; r < order.size(); ++r) stage.push_back({r, r});
    }
    return interleaved;
  }
  const auto separate = [&](size_t stage, InterleavedRange span) {
    for (size_t k = span.first; k <= span.last; ++k) interleaved[stage][k] = {k, k};
  };
  for (size_t s = 0; s < schedule.orders.size(); ++s) {
    const auto& order = schedule.orders[s];
    interleaved.push_back(interleaved_ranges(order));
    for (size_t r = 0; r < order.size(); ++r) {
      const auto span = interleaved[s][r];
      const bool exchanges = exchanging.contains(schedule.parts[s][order[span.first].chunk]) ||
                             exchanging.contains(schedule.parts[s][order[span.last].chunk]);
      if (!exchanges) separate(s, span);
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    const Stages stages(schedule, edges, interleaved, 0, {});
    for (const auto& [stage, position] : stages.stuck(stages.all())) {
      const auto span = interleaved[stage][position];
      changed = changed || span.first != span.last;
      separate(stage, span);
    }
  }
  return interleaved;
}

}  // namespace perigee::compile
