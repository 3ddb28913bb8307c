#include "search/search.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/infinity.h"
#include "base/log_format.h"
#include "base/parallel.h"
#include "base/text/bytes.h"
#include "methods/method.h"
#include "search/compiled.h"
#include "search/estimator.h"
#include "search/explain/explain.h"
#include "search/rank_limits.h"
#include "search/space/space.h"
#include "simulate/report.h"

namespace perigee::search {
namespace {

// Nodes of a graph for which one plan is judged, and the best one on another mesh or of another
// schedule; a smaller graph has more of them judged.
constexpr size_t kNodesJudged = 8000;
// Candidates that are kept because programs may take more time or memory than modelled; of a small
// graph, and of one for which one plan is judged.
constexpr size_t kKept = 512, kKeptOfLarge = 24, kKeptHeterogeneous = 96;
// Seconds added to a candidate that is not expected to fit, which ranks it last.
constexpr double kUnlikely = 1e9;
// Most rankings with new correction factors while no program fits. For the last one: the share of
// the expected memory that programs may take, candidates kept, and the factor of judged plans.
constexpr int kRounds = 8;
constexpr double kLess = 0.8;
constexpr size_t kKeptLast = 4096, kMoreTries = 8;
// Where programs take more than this share of the modelled memory, plans that would have to take
// less than kLess of it are not judged.
constexpr double kInVain = 0.95;
// Plans that are compiled of those that fit by the model with more memory.
constexpr int kTries = 2;
// Plans that are judged, for any size of graph, where the simulator contradicts the model.
constexpr size_t kContradicted = 5;
// The simulator contradicts it where another plan is expected to take less than this share of the
// best one's time.
constexpr double kContradiction = 0.95;

// Whether a and b have different axes or schedules: the model may be wrong about only one of them.
bool is_another(const Choice& a, const Choice& b) {
  const auto key = [](const Choice& c) {
    return std::tie(c.tensor, c.expert, c.context, c.data, c.pipe, c.schedule);
  };
  return key(a) != key(b);
}

class Search {
 public:
  Search(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
         compile::TraceSource& traces)
      : request_(request),
        cluster_(cluster),
        traces_(traces),
        costs_(cluster, measurements),
        space_(request, cluster),
        limits_(request, cluster) {
    const auto& graph = request.graph(space_.captured());
    log::debug("auto: captured at {:.0f} ms", milliseconds());
    nodes_ = graph.nodes.size();
    folded_ = fold(graph);
    spec_ = request.spec(graph);
    tables_ = std::make_unique<LayerTables>(
        folded_, LayerTables::Samples{.most = space_.most_samples(), .captured = space_.captured()},
        spec_, request.pins, request.eight_bits, costs_, traces, request.defined);
    estimator_ = std::make_unique<Estimator>(request_, folded_, *tables_, costs_, limits_, learnt_,
                                             [this] { return seconds_left(); });
  }

  // Returns the best `most` of the model, best first; of unequal submeshes
  // at most `most_heterogeneous`.
  Found rank(size_t most, size_t most_heterogeneous) {
    auto best = rank_all(most, most_heterogeneous);
    if (best.empty()) none_fits(std::nullopt);
    Found found;
    describe(found, std::move(best));
    return found;
  }

  // Returns nothing where none fits.
  std::optional<Found> find() {
    const bool large = 2 * nodes_ > kNodesJudged;
    const size_t kept = large ? kKeptOfLarge : kKept;
    const size_t kept_heterogeneous = large ? kKeptOfLarge : kKeptHeterogeneous;
    Found found;
    std::vector<Candidate> ranked;
    size_t good = 0;
    // While programs take more memory than modelled, other candidates fit than the first ranked
    // ones; in the last round even candidates that do not fit by the model are judged.
    bool stuck = false, last = false;
    for (int round = 1; good == 0 && !last && !stopped_; ++round) {
      last = stuck || round == kRounds;
      estimator_->allow(0, last ? kLess : 1);
      ranked = last ? rank_all(kKeptLast, kKeptLast) : rank_all(kept, kept_heterogeneous);
      if (round == 1) {
        log::debug("auto: {} combinations, of which {} were cut, ranked at {:.0f} ms",
                   combinations_, looked_at_, milliseconds());
      }
      const auto before = refused_.size();
      good = judge_best(ranked, found, last ? Judge::all : Judge::that_fit);
      stuck = refused_.size() == before;
    }
    if (good == 0) return std::nullopt;
    describe(found, std::move(ranked));
    explain(found, cluster_.name, request_.pins.time_limit);
    return found;
  }

  // Returns the memory of a plan that needs about the least, where none fits; by the model it fits
  // with `extra_bytes` above the limit.
  std::optional<Fitting> attempt(double extra_bytes) {
    estimator_->allow(extra_bytes, 1);
    std::optional<Fitting> best;
    auto ranked = rank_all(kKeptOfLarge, kKeptOfLarge);
    for (int tries = 0; tries < kTries && !ranked.empty(); ++tries) {
      const auto next = std::ranges::min_element(ranked, {},
                                                 [&](const Candidate& c) { return over(c); });
      if (over(*next) > 1) break;
      if (const auto extra = extra_bytes_of(*next);
          extra && (!best || *extra < best->extra_bytes)) {
        best = {*extra, next->peak_bytes, next->choice};
      }
      if (best && best->extra_bytes <= extra_bytes) break;
      ranked.erase(next);
    }
    return best;
  }

  // Returns the least memory with which a plan was found to fit.
  std::optional<Fitting> least_missing_memory(double seconds) {
    const double guess = learnt_.shortage.bytes < kInfinity
                             ? learnt_.shortage.bytes - limits_.smallest_bytes()
                             : limits_.smallest_bytes();
    return search::least_missing_memory(
        {limits_.smallest_bytes(), guess}, std::min(seconds, seconds_left()),
        [this](double extra_bytes) { return attempt(extra_bytes); });
  }

  [[noreturn]] void none_fits(const std::optional<Fitting>& fitting) {
    learnt_.shortage.limit = limits_.smallest_bytes();
    learnt_.shortage.balance = request_.pins.balance;
    if (stopped_) learnt_.shortage.time_limit = *request_.pins.time_limit;
    fail_none_fits(learnt_.shortage, fitting);
  }

  // Returns the seconds left of the pins' time limit.
  double seconds_left() const {
    return request_.pins.time_limit.value_or(kInfinity) - milliseconds() / 1e3;
  }

  // Returns whether the time limit ended the search.
  bool stopped() const { return stopped_; }

 private:
  // Sets all that does not depend on the best plan.
  void describe(Found& found, std::vector<Candidate> ranked) {
    found.lower_bound = lower_bound_;
    found.others = std::move(ranked);
    found.combinations = combinations_;
    found.looked_at = looked_at_;
    found.all = std::move(all_);
    found.stopped = stopped_;
    found.features = learnt_.features;
  }

  // As rank(); empty where none fits.
  std::vector<Candidate> rank_all(size_t most, size_t most_heterogeneous) {
    const auto stop = [this] { return out_of_time(); };
    const auto count = std::ssize(folded_.blocks);
    const auto homogeneous = space_.combinations(*tables_, estimator_->model_of(1), count, stop);
    const auto heterogeneous = space_.heterogeneous(*tables_, estimator_->model_of(1), count, stop);
    combinations_ = homogeneous.size() + heterogeneous.list.size();
    if (combinations_ == 0) space_.fail_none();
    learnt_.shortage.combinations = std::max(learnt_.shortage.combinations, combinations_);
    needs_.resize(combinations_);
    heterogeneous_needs_.resize(combinations_);
    all_.clear();
    for (const auto& one : homogeneous) all_.push_back(one.choice);
    for (const auto& one : heterogeneous.list) all_.push_back(heterogeneous.choice(one));
    log::debug("auto: {} tables at {:.0f} ms, {} combinations and {} of unequal submeshes",
               tables_->compiled(), milliseconds(), homogeneous.size(), heterogeneous.list.size());
    std::vector<Candidate> best;
    cut_into_stages(homogeneous, needs_, most, best,
                    [](const Bounded& one) { return std::pair(one.choice, one.layers); });
    std::vector<Candidate> others;
    cut_into_stages(heterogeneous.list, heterogeneous_needs_, std::min(most, most_heterogeneous),
                    others, [&](const HeterogeneousSpace::One& one) {
                      auto choice = heterogeneous.choice(one);
                      return std::pair(choice, estimator_->tables_of(choice));
                    });
    std::ranges::move(others, std::back_inserter(best));
    std::ranges::stable_sort(best, {}, [](const Candidate& c) { return c.estimate.seconds; });
    if (best.size() > most) best.resize(most);
    return best;
  }

  // Compiles and simulates the best candidates until the corrected model expects none that is
  // better; returns how many fit. With that_fit it ends where the corrected model expects none of
  // the others to fit.
  enum class Judge { that_fit, all };
  size_t judge_best(std::vector<Candidate>& ranked, Found& found, Judge which) {
    const auto judged = std::clamp<size_t>(kNodesJudged / std::max<size_t>(1, nodes_), 1,
                                           request_.most_judged);
    std::vector<Candidate*> left;
    for (auto& candidate : ranked) {
      if (!refused_.contains(candidate.strategy.dump())) left.push_back(&candidate);
    }
    size_t good = 0, tries = 0, in_vain = 0;
    while (!left.empty()) {
      const auto next = std::min_element(
          left.begin(), left.end(), [&](auto* a, auto* b) { return expected(*a) < expected(*b); });
      auto& candidate = **next;
      if (good == 0 && which == Judge::that_fit && expected(candidate) >= kUnlikely) break;
      const bool better = good > 0 && expected(candidate) < kContradiction * found.best.seconds;
      const bool second = judged == 1 && request_.most_judged > 1 && good == 1 &&
                          kContradiction * expected(candidate) < found.best.seconds;
      const auto most = better ? std::max(judged, kContradicted) : judged + second;
      const bool more = good == 0 && which == Judge::all;
      if (good >= most || tries >= (more ? kMoreTries : 2) * most) break;
      if (more && judged == 1 && in_vain > 1) break;
      if (good > 0 && out_of_time()) break;
      left.erase(next);
      if (second && !better && !is_another(candidate.choice, found.best.choice)) continue;
      if (judged > kContradicted &&
          !programs_.insert(program_of(candidate.choice, request_.pins, tables_->row())).second)
        continue;
      std::vector<Candidate*> both{&candidate};
      if (judged == 1 && request_.most_judged > 1 && good == 0 && !out_of_time()) {
        if (auto* other = another(left, candidate)) {
          std::erase(left, other);
          both.push_back(other);
        }
      }
      tries += both.size();
      auto tried = judge(both);
      for (size_t k = 0; k < both.size(); ++k) {
        in_vain += note(*both[k]);
        if (!tried[k]) continue;
        ++good;
        if (found.best.judged && both[k]->seconds >= found.best.seconds * (1 - 1e-9)) continue;
        found.best = *both[k];
        found.plan = std::move(tried[k]->plan);
        found.simulation = std::move(tried[k]->simulation);
      }
    }
    return good;
  }

  // Returns the candidate to judge beside the first one for a large graph, on another mesh or of
  // another schedule; nullptr where none is expected to be about as fast.
  Candidate* another(const std::vector<Candidate*>& left, const Candidate& first) const {
    Candidate* best = nullptr;
    double least = std::min(kUnlikely, expected(first) / kContradiction);
    for (auto* one : left) {
      const double seconds = expected(*one);
      if (seconds >= least || !is_another(one->choice, first.choice)) continue;
      best = one;
      least = seconds;
    }
    return best;
  }

  // Notes the results of a judged candidate; returns whether its programs take so much memory that
  // others of its kind need not be judged.
  bool note(const Candidate& candidate) {
    log::debug("auto: judged {} at {:.0f} ms: {} by the model, {}", to_string(candidate.choice),
               milliseconds(), simulate::seconds_text(candidate.estimate.seconds),
               candidate.judged ? simulate::seconds_text(candidate.seconds) : candidate.refused);
    auto& shortage = learnt_.shortage;
    const double ratio = candidate.peak_bytes / candidate.estimate.bytes;
    if (ratio > 0) learnt_.corrections.note_bytes(candidate.choice, ratio);
    if (candidate.judged) {
      learnt_.corrections.note(candidate.choice, candidate.seconds / candidate.estimate.seconds);
      return ratio > kInVain;
    }
    refused_.insert(candidate.strategy.dump());
    if (candidate.exceeds_memory && candidate.peak_bytes < shortage.bytes) {
      shortage.bytes = candidate.peak_bytes;
      shortage.choice = candidate.choice;
    }
    if (shortage.refused.empty()) {
      shortage.refused = fmt::format("{} is refused: {}", to_string(candidate.choice),
                                     candidate.refused);
    }
    return ratio > kInVain;
  }

  // Returns the seconds of a candidate with its correction factor; kUnlikely more where it is not
  // expected to fit.
  double expected(const Candidate& candidate) const {
    const double over = this->over(candidate);
    return (over > 1 ? over * kUnlikely : 0) +
           candidate.estimate.seconds * learnt_.corrections.of(candidate.choice);
  }

  // Returns the expected memory of the candidate, relative to its limit.
  double over(const Candidate& candidate) const {
    return candidate.estimate.bytes * learnt_.corrections.of_bytes(candidate.choice) /
           candidate.estimate.limit;
  }

  // Cuts combinations into stages, from the lowest bound on, until no bound is below the times of
  // the `most` best, which are added to `best`. `choice_of` makes a choice and its layers of one.
  template <class One, class ChoiceOf>
  void cut_into_stages(const std::vector<One>& list, std::vector<double>& needs, size_t most,
                       std::vector<Candidate>& best, ChoiceOf choice_of) {
    std::vector<const One*> order;
    for (const auto& one : list) order.push_back(&one);
    std::ranges::stable_sort(order, {}, [](const One* one) { return one->bound; });
    for (size_t i = 0; i < order.size(); ++i) {
      const bool full = best.size() >= most;
      const bool late = out_of_time() && !best.empty();
      if ((full && order[i]->bound >= best[most - 1].estimate.seconds) || late) {
        lower_bound_ = std::min(lower_bound_, order[i]->bound);
        const auto end = std::min(order.size(), i + kMostBounds);
        for (; i < end; ++i) {
          learnt_.features.count(choice_of(*order[i]).first, order[i]->bound, true);
        }
        break;
      }
      ++looked_at_;
      auto [choice, layers] = choice_of(*order[i]);
      const double exact_below = full ? best[most - 1].estimate.seconds : kInfinity;
      auto& need = needs[static_cast<size_t>(order[i] - list.data())];
      if (estimator_->is_beyond(choice, need)) continue;
      for (auto& candidate : estimator_->candidates_of(choice, *layers, exact_below, need)) {
        lower_bound_ = std::min(lower_bound_, candidate.estimate.lower_bound);
        const auto place = std::ranges::upper_bound(
            best, candidate.estimate.seconds, {},
            [](const Candidate& other) { return other.estimate.seconds; });
        best.insert(place, std::move(candidate));
      }
      if (best.size() > most) best.resize(most);
    }
  }

  double milliseconds() const {
    const auto passed = std::chrono::steady_clock::now() - begin_;
    return std::chrono::duration<double, std::milli>(passed).count();
  }

  // Returns whether the pins' time limit is reached.
  bool out_of_time() {
    stopped_ = stopped_ || seconds_left() <= 0;
    return stopped_;
  }

  struct Judged {
    plan::Plan plan;
    simulate::Simulation simulation;
  };

  // Judges candidates in parallel, except captures and methods that scripts define. Nothing for
  // refused ones.
  std::vector<std::optional<Judged>> judge(const std::vector<Candidate*>& candidates) {
    std::vector<std::future<std::optional<Judged>>> trials;
    for (auto* candidate : candidates) {
      const bool here = !request_.defined.empty() || request_.pins.threads == 1 ||
                        candidate == candidates.back();
      try {
        trials.push_back(std::async(
            here ? std::launch::deferred : std::launch::async | std::launch::deferred,
            [this, candidate](const graph::Graph& graph) { return judge(*candidate, graph); },
            graph_of(candidate->choice, request_)));
      } catch (const Error& error) {
        candidate->refused = error.what();
        trials.emplace_back();
      }
    }
    std::vector<std::optional<Judged>> judged;
    for (auto& trial : trials) judged.push_back(trial.valid() ? trial.get() : std::nullopt);
    return judged;
  }

  std::optional<Judged> judge(Candidate& candidate, const graph::Graph& graph) {
    try {
      auto compiled = compile_candidate(candidate, request_, graph, traces_);
      if (const auto excess = limits_.largest_excess(compiled); excess.extra > 0) {
        candidate.refused = fmt::format("its programs take {}, the limit is {}",
                                        bytes_text(excess.peak), bytes_text(excess.limit));
        candidate.exceeds_memory = true;
        return std::nullopt;
      }
      Judged judged{std::move(compiled.plan), {}};
      judged.simulation = simulate::simulate(compiled.programs, judged.plan.mesh, costs_,
                                             {.stage_axis = judged.plan.pipeline.axis});
      judged.plan.prediction.step_seconds = judged.simulation.step_seconds;
      judged.plan.prediction.measured_share = judged.simulation.measured_share;
      candidate.seconds = judged.simulation.step_seconds;
      candidate.judged = true;
      return judged;
    } catch (const Error& error) {
      candidate.refused = error.what();
      return std::nullopt;
    }
  }

  // Returns the bytes a rank above the limit with which the candidate's programs fit; nothing where
  // it cannot be compiled.
  std::optional<double> extra_bytes_of(Candidate& candidate) {
    const auto [known, added] = extra_bytes_.try_emplace(candidate.strategy.dump());
    auto& [extra, bytes] = known->second;
    if (added) {
      try {
        const auto& graph = graph_of(candidate.choice, request_);
        const auto compiled = compile_candidate(candidate, request_, graph, traces_);
        learnt_.corrections.note_bytes(candidate.choice,
                                       candidate.peak_bytes / candidate.estimate.bytes);
        bytes = candidate.peak_bytes;
        extra = round_up(std::max(0.0, limits_.largest_excess(compiled).extra));
        log::debug("auto: {} at {:.0f} ms: its programs take {}", to_string(candidate.choice),
                   milliseconds(), bytes_text(bytes));
      } catch (const Error& error) {
        log::debug("auto: {}: {}", to_string(candidate.choice), error.what());
      }
    }
    candidate.peak_bytes = bytes;
    return extra;
  }

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const Request& request_;
  const cost::Cluster& cluster_;
  compile::SharedTraces traces_;
  simulate::OpCosts costs_;
  Space space_;
  RankLimits limits_;
  size_t nodes_ = 0;
  Folded folded_;
  compile::StepSpec spec_;
  std::unique_ptr<LayerTables> tables_;
  Estimator::Learnt learnt_;
  std::unique_ptr<Estimator> estimator_;
  std::set<std::string> refused_;   // strategies whose programs were refused
  std::set<std::string> programs_;  // of those that were judged, or left out as identical
  // By strategy: bytes of its programs above the limit, and all their bytes.
  std::map<std::string, std::pair<std::optional<double>, double>> extra_bytes_;
  // By combination: lower bound of its bytes, where it did not fit.
  std::vector<double> needs_, heterogeneous_needs_;
  size_t combinations_ = 0, looked_at_ = 0;
  std::vector<Choice> all_;
  bool stopped_ = false;
  double lower_bound_ = kInfinity;  // of all combinations
};

}  // namespace

Found find(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
           compile::TraceSource& traces) {
  const ThreadLimit threads(static_cast<size_t>(request.pins.threads));
  Search search(request, cluster, measurements, traces);
  if (auto found = search.find()) return std::move(*found);
  if (request.seconds_for_more <= 0 || search.stopped()) search.none_fits(std::nullopt);
  search.none_fits(search.least_missing_memory(request.seconds_for_more));
}

Found rank(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
           compile::TraceSource& traces, size_t most) {
  const ThreadLimit threads(static_cast<size_t>(request.pins.threads));
  const auto count = std::max<size_t>(1, most);
  return Search(request, cluster, measurements, traces).rank(count, count);
}

std::vector<Candidate> candidates(const Request& request, const cost::Cluster& cluster,
                                  cost::Measurements& measurements, compile::TraceSource& traces,
                                  size_t most) {
  return rank(request, cluster, measurements, traces, most).others;
}

}  // namespace perigee::search
