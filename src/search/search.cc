#include "search/search.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "methods/method.h"
#include "search/features.h"
#include "search/report.h"
#include "search/space.h"

namespace perigee::search {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Nodes of a graph for which one plan is judged; a smaller graph has more of them judged.
constexpr size_t kNodesJudged = 8000;
// Candidates that are kept in case programs turn out to take more time or memory than the model
// says; of a small graph, and of one for which one plan is judged.
constexpr size_t kKept = 512, kKeptOfLarge = 24;
// Seconds by which one is put off that is not expected to fit.
constexpr double kUnlikely = 1e9;
// However large the graph, so many plans are judged where the simulator contradicts the model.
constexpr size_t kContradicted = 5;
// That is where another is expected to take less than this share of the best one's time.
constexpr double kContradiction = 0.95;

// By how much the simulator differs from the model: for plans of one schedule, and where none of
// those has been judged, of schedules that split backward passes, or do not.
class Corrections {
 public:
  double of(const Choice& choice) const {
    for (const auto& key : {of_schedule(choice), of_kind(choice)}) {
      const auto known = ratios_.find(key);
      if (known != ratios_.end()) return known->second;
    }
    return 1;
  }
  void note(const Choice& choice, double ratio) {
    ratios_[of_schedule(choice)] = ratios_[of_kind(choice)] = ratio;
  }
  // The same of memory.
  double of_bytes(const Choice& choice) const {
    const auto known = bytes_.find(of_memory(choice));
    return known == bytes_.end() ? 1 : known->second;
  }
  void note_bytes(const Choice& choice, double ratio) { bytes_[of_memory(choice)] = ratio; }

 private:
  using Key = std::tuple<bool, bool, int64_t, std::string, std::string>;
  // With how many samples planned shardings change; else whether gradients are added up.
  static int64_t samples(const Choice& c) { return c.tensor > 1 ? c.micro : c.microbatches > 1; }
  static Key of_schedule(const Choice& c) {
    return {c.zero >= 2, c.tensor > 1, samples(c), c.precision, c.pipe > 1 ? c.schedule : "none"};
  }
  static Key of_kind(const Choice& c) {
    const auto* kind = c.pipe == 1 ? "none" : splits_backward(c.schedule) ? "split" : "whole";
    return {c.zero >= 2, c.tensor > 1, samples(c), c.precision, kind};
  }
  using Memory = std::tuple<int, bool, bool, bool, bool>;
  static Memory of_memory(const Choice& c) {
    return {c.zero, c.tensor > 1, c.microbatches > 1, c.pipe > 1, c.offload};
  }
  std::map<Key, double> ratios_;
  std::map<Memory, double> bytes_;
};

class Search {
 public:
  Search(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
         compile::TraceSource& traces)
      : request_(request),
        cluster_(cluster),
        traces_(traces),
        costs_(cluster, measurements),
        space_(request, cluster),
        limit_(request.memory_limit > 0 ? request.memory_limit
                                        : (1 - kReserve) * cluster.least_memory()) {
    limit_ = std::min(limit_, request.pins.memory.value_or(limit_));
    const auto& graph = request.graph(space_.captured());
    log::debug("auto: captured at {:.0f} ms", milliseconds());
    nodes_ = graph.nodes.size();
    folded_ = fold(graph);
    spec_ = request.spec(graph);
    tables_ = std::make_unique<LayerTables>(
        folded_, LayerTables::Samples{.most = space_.most_samples(), .captured = space_.captured()},
        spec_, request.pins, request.eight_bits, costs_, traces);
    model_ = std::make_unique<Model>(folded_, costs_, limit_, request.pins.solver.value_or("auto"));
  }

  // Returns the best `most` of the model, best first.
  std::vector<Candidate> rank(size_t most) {
    const auto bounded = space_.combinations(*tables_, *model_, std::ssize(folded_.blocks),
                                             [this] { return out_of_time(); });
    combinations_ = bounded.size();
    for (const auto& one : bounded) all_.push_back(one.choice);
    log::debug("auto: {} tables at {:.0f} ms", tables_->compiled(), milliseconds());
    std::vector<const Bounded*> order;
    for (const auto& one : bounded) order.push_back(&one);
    std::stable_sort(order.begin(), order.end(),
                     [](auto* a, auto* b) { return a->bound < b->bound; });
    std::vector<Candidate> best;
    for (size_t i = 0; i < order.size(); ++i) {
      const auto& one = *order[i];
      const bool full = best.size() >= most;
      const bool late = !best.empty() && out_of_time();
      if ((full && one.bound >= best[most - 1].estimate.seconds) || late) {
        if (late) lower_bound_ = one.bound;
        for (; i < order.size(); ++i) features_.count(order[i]->choice, order[i]->bound, true);
        break;
      }
      ++looked_at_;
      double least = kInfinity;
      auto choice = one.choice;
      const double worth = full ? best[most - 1].estimate.seconds : kInfinity;
      auto estimate = model_->estimate(choice, *one.layers, least, worth);
      if (!estimate && may_offload(choice, *one.layers, least)) {
        choice.offload = true;
        estimate = model_->estimate(choice, *one.layers, least, worth);
      }
      if (estimate && !estimate->again.empty() && may_offload(choice, *one.layers, kInfinity)) {
        // Either makes room: running again, or the host.
        auto on_host = choice;
        on_host.offload = true;
        double unused = kInfinity;
        auto other = model_->estimate(on_host, *one.layers, unused, worth);
        if (other && other->seconds < estimate->seconds) {
          choice = std::move(on_host);
          estimate = std::move(other);
        }
      }
      if (!estimate) {
        if (least > limit_ && least < least_bytes_) {
          least_bytes_ = least;
          least_choice_ = choice;
        }
        continue;
      }
      features_.count(choice, estimate->seconds, false);
      Candidate candidate{.choice = choice, .strategy = {}, .estimate = std::move(*estimate)};
      for (int cut : candidate.estimate.cuts) {
        candidate.choice.starts.push_back(folded_.blocks[static_cast<size_t>(cut)]);
      }
      for (int block : candidate.estimate.again) {
        candidate.choice.again.push_back(folded_.blocks[static_cast<size_t>(block)]);
      }
      candidate.choice.costs = candidate.estimate.costs;
      candidate.strategy = strategy_of(candidate.choice, request_.pins, pattern_of(folded_.blocks));
      const auto place = std::upper_bound(best.begin(), best.end(), candidate,
                                          [](const Candidate& a, const Candidate& b) {
                                            return a.estimate.seconds < b.estimate.seconds;
                                          });
      best.insert(place, std::move(candidate));
      if (best.size() > most) best.resize(most);
    }
    if (best.empty()) none_fits();
    return best;
  }

  Found find() {
    auto ranked = rank(2 * nodes_ > kNodesJudged ? kKeptOfLarge : kKept);
    Found found;
    found.lower_bound = std::min(lower_bound_, ranked.front().estimate.seconds);
    const auto judged =
        std::clamp<size_t>(kNodesJudged / std::max<size_t>(1, nodes_), 1, request_.most_judged);
    log::debug("auto: {} combinations, of which {} were cut, ranked at {:.0f} ms", combinations_,
               looked_at_, milliseconds());
    // Judging goes on where the model, so corrected, expects a better plan than the best.
    Corrections corrections;
    const auto expected = [&](const Candidate& candidate) {
      const double bytes = candidate.estimate.bytes * corrections.of_bytes(candidate.choice);
      const double late = bytes > limit_ ? kUnlikely : 0;
      return late + candidate.estimate.seconds * corrections.of(candidate.choice);
    };
    std::vector<Candidate*> left;
    for (auto& candidate : ranked) left.push_back(&candidate);
    size_t good = 0, tries = 0;
    while (!left.empty()) {
      const auto next = std::min_element(
          left.begin(), left.end(), [&](auto* a, auto* b) { return expected(*a) < expected(*b); });
      auto& candidate = **next;
      const bool better = good > 0 && expected(candidate) < kContradiction * found.best.seconds;
      const auto most = better ? std::max(judged, kContradicted) : judged;
      if (good >= most || (good > 0 && tries >= 2 * most)) break;
      if (good > 0 && out_of_time()) break;
      left.erase(next);
      ++tries;
      auto tried = judge(candidate);
      log::debug("auto: judged {} at {:.0f} ms: {} by the model, {}", to_string(candidate.choice),
                 milliseconds(), seconds_text(candidate.estimate.seconds),
                 tried ? seconds_text(candidate.seconds) : candidate.refused);
      if (candidate.peak_bytes > 0) {
        corrections.note_bytes(candidate.choice, candidate.peak_bytes / candidate.estimate.bytes);
      }
      if (!tried) continue;
      ++good;
      corrections.note(candidate.choice, candidate.seconds / candidate.estimate.seconds);
      if (found.best.judged && candidate.seconds >= found.best.seconds * (1 - 1e-9)) continue;
      found.best = candidate;
      found.plan = std::move(tried->plan);
      found.simulation = std::move(tried->simulation);
    }
    if (good == 0) {
      throw Error(Status::infeasible, "auto",
                  fmt::format("no plan fits: the likeliest, {}, is refused: {}",
                              to_string(ranked.front().choice), ranked.front().refused));
    }
    found.others = std::move(ranked);
    found.combinations = combinations_;
    found.looked_at = looked_at_;
    found.all = std::move(all_);
    found.stopped = stopped_;
    explain(found);
    return found;
  }

 private:
  double milliseconds() const {
    const auto passed = std::chrono::steady_clock::now() - begin_;
    return std::chrono::duration<double, std::milli>(passed).count();
  }

  // Whether the time that the pins give is used up.
  bool out_of_time() {
    const auto limit = request_.pins.time_limit;
    stopped_ = stopped_ || (limit && milliseconds() > 1e3 * *limit);
    return stopped_;
  }

  struct Judged {
    plan::Plan plan;
    Simulation simulation;
  };

  // Whether the choice may fit with its optimizer's state on the host, which takes longer: so it is
  // looked at only where the choice does not fit without.
  bool may_offload(const Choice& choice, const Layers& layers, double least) const {
    if (choice.offload || request_.pins.offload) return false;
    const double states = layers.first.states + layers.last.states +
                          layers.block.states * static_cast<double>(folded_.blocks.size());
    const auto parts = choice.zero > 0 ? static_cast<double>(choice.parts()) : 1;
    return states > 0 && (least >= kInfinity || least - states / parts <= limit_);
  }

  std::optional<Judged> judge(Candidate& candidate) {
    const auto& choice = candidate.choice;
    try {
      const auto& graph = request_.graph(choice.micro * choice.batch());
      methods::Request request;
      request.graph = &graph;
      request.global_batch = request_.global_batch;
      request.world = request_.world;
      request.eight_bits = request_.eight_bits;
      request.world_given = true;
      const auto strategy = methods::from_json(candidate.strategy, "auto");
      Judged judged;
      judged.plan = methods::make_plan(strategy, request);
      plan::verify(judged.plan, graph);
      const auto spec = request_.spec(graph);
      judged.plan = compile::fit_recompute(graph, std::move(judged.plan), spec, traces_);
      const auto programs = compile::compile_all(graph, judged.plan, spec, traces_);
      judged.plan.prediction = compile::predict_memory(programs);
      candidate.peak_bytes =
          peak_bytes(request_.pins.model, programs, judged.plan, judged.plan.prediction);
      if (candidate.peak_bytes > limit_) {
        candidate.refused = fmt::format("its programs take {}, the limit is {}",
                                        bytes_text(candidate.peak_bytes), bytes_text(limit_));
        note_least(candidate);
        return std::nullopt;
      }
      judged.simulation =
          simulate(programs, judged.plan.mesh, costs_, {.stage_axis = judged.plan.pipeline.axis});
      judged.plan.prediction.step_seconds = judged.simulation.step_seconds;
      candidate.seconds = judged.simulation.step_seconds;
      candidate.judged = true;
      return judged;
    } catch (const Error& error) {
      candidate.refused = error.what();
      return std::nullopt;
    }
  }

  void note_least(const Candidate& candidate) {
    if (candidate.peak_bytes >= least_bytes_) return;
    least_bytes_ = candidate.peak_bytes;
    least_choice_ = candidate.choice;
  }

  [[noreturn]] void none_fits() const {
    std::string least = "no cut into stages exists for any of them";
    if (least_bytes_ < kInfinity) {
      least = fmt::format(
          "the one that needs the least ({}) takes {} a rank, {} more than the {} "
          "there are: use more ranks, a smaller batch.micro, or zero and checkpoint "
          "where they are pinned",
          to_string(least_choice_), bytes_text(least_bytes_), bytes_text(least_bytes_ - limit_),
          bytes_text(limit_));
    }
    throw Error(Status::infeasible, "auto",
                fmt::format("no plan fits: of {} combinations {}", combinations_, least));
  }

  void explain(Found& found) const {
    const auto& best = found.best;
    const auto& parts = best.estimate.parts;
    const std::vector<std::pair<const char*, double>> shares = {
        {"compute", parts.compute},
        {"communication within layers", parts.tensor},
        {"the pipeline's bubble", parts.bubble},
        {"the exchange of gradients and weights", parts.data},
        {"the optimizer", parts.optimizer}};
    const auto most = std::max_element(shares.begin(), shares.end(),
                                       [](auto& a, auto& b) { return a.second < b.second; });
    found.bound_by = most->first;
    auto& decisions = found.plan.decisions;
    decisions.push_back(
        {"auto",
         fmt::format(
             "of {} combinations the best is {}: a step takes {} by the simulator ({}) on {}",
             found.combinations, to_string(best.choice), seconds_text(best.seconds),
             measured_text(found.simulation.measured_share), cluster_.name)});
    if (found.stopped) {
      decisions.push_back(
          {"auto", fmt::format("the search was stopped after {} s: there may be a better plan; of "
                               "those that it had come to none can take less than {}",
                               *request_.pins.time_limit, seconds_text(found.lower_bound))});
    }
    std::string split;
    for (const auto& [name, seconds] : shares) {
      if (seconds <= 0.005 * parts.total()) continue;
      split += fmt::format("{}{} {:.0f}%", split.empty() ? "" : ", ", name,
                           100 * seconds / parts.total());
    }
    decisions.push_back(
        {"auto", fmt::format("it is bound by {}: {}; a rank takes {} of {}", found.bound_by, split,
                             bytes_text(best.peak_bytes), bytes_text(limit_))});
    for (auto& sentence : features_.sentences(best.choice, best.estimate.seconds)) {
      decisions.push_back({"auto", std::move(sentence)});
    }
    size_t told = 0;
    for (const auto& other : found.others) {
      if (other.choice == best.choice || told == 3) continue;
      ++told;
      decisions.push_back(
          {"auto", other.judged ? fmt::format("{} takes {:.1f}% longer", to_string(other.choice),
                                              100 * (other.seconds / best.seconds - 1))
                   : !other.refused.empty()
                       ? fmt::format("{} is refused: {}", to_string(other.choice), other.refused)
                       : fmt::format("{} takes {}", to_string(other.choice),
                                     more_text(other.estimate.seconds, best.estimate.seconds))});
    }
  }

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const Request& request_;
  const cost::Cluster& cluster_;
  compile::TraceSource& traces_;
  OpCosts costs_;
  Space space_;
  double limit_;
  size_t nodes_ = 0;
  Folded folded_;
  compile::StepSpec spec_;
  std::unique_ptr<LayerTables> tables_;
  std::unique_ptr<Model> model_;
  size_t combinations_ = 0, looked_at_ = 0;
  std::vector<Choice> all_;
  Features features_;
  bool stopped_ = false;
  double lower_bound_ = kInfinity;  // of what a stopped search has not looked at
  double least_bytes_ = kInfinity;
  Choice least_choice_;
};

}  // namespace

Found find(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
           compile::TraceSource& traces) {
  return Search(request, cluster, measurements, traces).find();
}

std::vector<Candidate> candidates(const Request& request, const cost::Cluster& cluster,
                                  cost::Measurements& measurements, compile::TraceSource& traces,
                                  size_t most) {
  return Search(request, cluster, measurements, traces).rank(std::max<size_t>(1, most));
}

}  // namespace perigee::search
