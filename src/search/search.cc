#include "search/search.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "methods/method.h"
#include "search/corrections.h"
#include "search/explain.h"
#include "search/features.h"
#include "search/report.h"
#include "search/shortage.h"
#include "search/space.h"

namespace perigee::search {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Nodes of a graph for which one plan is judged; a smaller graph has more of them judged.
constexpr size_t kNodesJudged = 8000;
// Candidates that are kept in case programs turn out to take more time or memory than the model
// says; of a small graph, and of one for which one plan is judged.
constexpr size_t kKept = 512, kKeptOfLarge = 24, kKeptUnlike = 96;
// Of combinations that are not looked at so many tell what features would cost.
constexpr size_t kTold = 100000;
// Seconds by which one is put off that is not expected to fit.
constexpr double kUnlikely = 1e9;
// How often combinations are ranked by what programs were found to take, while none fits. The last
// time: what share of that programs may take, how many are kept, and how many times as many judged
// as otherwise.
constexpr int kRounds = 8;
constexpr double kLess = 0.8;
constexpr size_t kKeptLast = 4096, kMoreTries = 8;
// However large the graph, so many plans are judged where the simulator contradicts the model.
constexpr size_t kContradicted = 5;
// What takes more than this share of a rank's memory by the model may take too much by programs.
constexpr double kNear = 0.9;
// That is where another is expected to take less than this share of the best one's time.
constexpr double kContradiction = 0.95;

class Search {
 public:
  Search(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
         compile::TraceSource& traces)
      : request_(request),
        cluster_(cluster),
        traces_(traces),
        costs_(cluster, measurements),
        space_(request, cluster) {
    for (const auto& device : cluster.devices) {
      const double most =
          request.memory_limit > 0 ? request.memory_limit : (1 - kReserve) * device.memory;
      limits_.push_back(std::min(most, request.pins.memory.value_or(most)) + request.more_memory);
    }
    limit_ = *std::ranges::min_element(limits_);
    const auto& graph = request.graph(space_.captured());
    log::debug("auto: captured at {:.0f} ms", milliseconds());
    nodes_ = graph.nodes.size();
    folded_ = fold(graph);
    spec_ = request.spec(graph);
    tables_ = std::make_unique<LayerTables>(
        folded_, LayerTables::Samples{.most = space_.most_samples(), .captured = space_.captured()},
        spec_, request.pins, request.eight_bits, costs_, traces, request.defined);
  }

  // Returns the best `most` of the model, best first; of unequal submeshes at most `most_unlike`.
  std::vector<Candidate> rank(size_t most, size_t most_unlike) {
    auto best = rank_all(most, most_unlike);
    if (best.empty()) none_fits(std::nullopt);
    return best;
  }

  // Returns nothing where none fits.
  std::optional<Found> find() {
    const bool large = 2 * nodes_ > kNodesJudged;
    const size_t kept = large ? kKeptOfLarge : kKept;
    const size_t kept_unlike = large ? kKeptOfLarge : kKeptUnlike;
    Found found;
    std::vector<Candidate> ranked;
    size_t good = 0;
    // While programs take more than the model says, others fit than those that are ranked first; in
    // the end perhaps those that by the model do not.
    bool stuck = false, last = false;
    for (int round = 1; good == 0 && !last && !stopped_; ++round) {
      last = stuck || round == kRounds;
      slack_ = last ? kLess : 1;
      ranked = last ? rank_all(kKeptLast, kKeptLast) : rank_all(kept, kept_unlike);
      if (round == 1) {
        log::debug("auto: {} combinations, of which {} were cut, ranked at {:.0f} ms",
                   combinations_, looked_at_, milliseconds());
      }
      const auto before = refused_.size();
      good = judge_best(ranked, found, last ? Judge::all : Judge::that_fit);
      stuck = refused_.size() == before;
    }
    if (good == 0) return std::nullopt;
    found.lower_bound = lower_bound_;
    found.others = std::move(ranked);
    found.combinations = combinations_;
    found.looked_at = looked_at_;
    found.all = std::move(all_);
    found.stopped = stopped_;
    explain(found, features_, cluster_.name, request_.pins.time_limit);
    return found;
  }

  // Returns the bytes of a rank, and about how many a plan lacks.
  Missing missing() const {
    const double guess = least_bytes_ < kInfinity ? least_bytes_ - limit_ : limit_;
    return {limit_, guess, milliseconds() / 1e3};
  }

  [[noreturn]] void none_fits(const std::optional<Fitting>& fitting) const {
    std::string least =
        why_refused_.empty() ? "no cut into stages exists for any of them" : why_refused_;
    if (fitting || least_bytes_ < kInfinity) {
      const double more = fitting ? fitting->more : least_bytes_ - limit_;
      least = fmt::format(
          "the one that {} the least ({}) takes {} a rank, {}{} more than the {} there are: use "
          "more ranks, a smaller batch.micro, or zero and checkpoint where they are pinned",
          fitting ? "is found to need" : "needs",
          to_string(fitting ? fitting->choice : least_choice_),
          bytes_text(fitting ? fitting->bytes : least_bytes_), fitting ? "and fits with " : "",
          bytes_text(more), bytes_text(limit_));
    }
    if (stopped_) {
      throw Error(Status::infeasible, "auto",
                  fmt::format("the time limit of {} s passed before a plan was found that fits: "
                              "raise time_limit, or pin more; so far, of {} combinations {}",
                              *request_.pins.time_limit, combinations_, least));
    }
    throw Error(Status::infeasible, "auto",
                fmt::format("no plan fits: of {} combinations {}", combinations_, least));
  }

  // Of the time that the pins give.
  double seconds_left() const {
    return request_.pins.time_limit.value_or(kInfinity) - milliseconds() / 1e3;
  }

  // Whether the time limit ended it.
  bool stopped() const { return stopped_; }

 private:
  // The same; none where none fits.
  std::vector<Candidate> rank_all(size_t most, size_t most_unlike) {
    const auto stop = [this] { return out_of_time(); };
    const auto count = std::ssize(folded_.blocks);
    const auto alike = space_.combinations(*tables_, model_of(1), count, stop);
    const auto unlike = space_.unlike(*tables_, model_of(1), count, stop);
    combinations_ = alike.size() + unlike.list.size();
    if (combinations_ == 0) space_.fail_none();
    all_.clear();
    for (const auto& one : alike) all_.push_back(one.choice);
    for (const auto& one : unlike.list) all_.push_back(unlike.choice(one));
    log::debug("auto: {} tables at {:.0f} ms, {} combinations and {} of unequal submeshes",
               tables_->compiled(), milliseconds(), alike.size(), unlike.list.size());
    std::vector<Candidate> best;
    look(alike, most, best, [](const Bounded& one) { return std::pair(one.choice, one.layers); });
    std::vector<Candidate> others;
    look(unlike.list, std::min(most, most_unlike), others, [&](const UnlikeSpace::One& one) {
      auto choice = unlike.choice(one);
      return std::pair(choice, tables_of(choice));
    });
    std::ranges::move(others, std::back_inserter(best));
    std::ranges::stable_sort(best, {}, [](const Candidate& c) { return c.estimate.seconds; });
    if (best.size() > most) best.resize(most);
    return best;
  }

  // Compiles and simulates the best until the model, so corrected, expects none that is better;
  // returns how many fit. With that_fit it ends where none is left that the model, so corrected,
  // expects to fit.
  enum class Judge { that_fit, all };
  size_t judge_best(std::vector<Candidate>& ranked, Found& found, Judge which) {
    const auto judged =
        std::clamp<size_t>(kNodesJudged / std::max<size_t>(1, nodes_), 1, request_.most_judged);
    const auto expected = [&](const Candidate& candidate) {
      const double bytes = candidate.estimate.bytes * corrections_.of_bytes(candidate.choice);
      const double over = bytes / candidate.estimate.limit;
      return (over > 1 ? over * kUnlikely : 0) +
             candidate.estimate.seconds * corrections_.of(candidate.choice);
    };
    std::vector<Candidate*> left;
    for (auto& candidate : ranked) {
      if (!refused_.contains(candidate.strategy.dump())) left.push_back(&candidate);
    }
    size_t good = 0, tries = 0;
    while (!left.empty()) {
      const auto next = std::min_element(
          left.begin(), left.end(), [&](auto* a, auto* b) { return expected(*a) < expected(*b); });
      auto& candidate = **next;
      if (good == 0 && which == Judge::that_fit && expected(candidate) >= kUnlikely) break;
      const bool better = good > 0 && expected(candidate) < kContradiction * found.best.seconds;
      const auto most = better ? std::max(judged, kContradicted) : judged;
      const bool more = good == 0 && which == Judge::all;
      if (good >= most || tries >= (more ? kMoreTries : 2) * most) break;
      if (good > 0 && out_of_time()) break;
      left.erase(next);
      if (judged > kContradicted &&
          !programs_.insert(program_of(candidate.choice, request_.pins, tables_->row())).second)
        continue;
      ++tries;
      auto tried = judge(candidate);
      log::debug("auto: judged {} at {:.0f} ms: {} by the model, {}", to_string(candidate.choice),
                 milliseconds(), seconds_text(candidate.estimate.seconds),
                 tried ? seconds_text(candidate.seconds) : candidate.refused);
      if (candidate.peak_bytes > 0) {
        corrections_.note_bytes(candidate.choice, candidate.peak_bytes / candidate.estimate.bytes);
      }
      if (!tried) {
        refused_.insert(candidate.strategy.dump());
        if (why_refused_.empty()) {
          why_refused_ =
              fmt::format("{} is refused: {}", to_string(candidate.choice), candidate.refused);
        }
        continue;
      }
      ++good;
      corrections_.note(candidate.choice, candidate.seconds / candidate.estimate.seconds);
      if (found.best.judged && candidate.seconds >= found.best.seconds * (1 - 1e-9)) continue;
      found.best = candidate;
      found.plan = std::move(tried->plan);
      found.simulation = std::move(tried->simulation);
    }
    return good;
  }

  // Returns the model of programs that take so many times the memory that it counts.
  const Model& model_of(double more) {
    auto& model = models_[more];
    if (model) return *model;
    auto limits = limits_;
    for (auto& bytes : limits) bytes /= more;
    model = std::make_unique<Model>(
        folded_, *tables_, costs_,
        Limits{std::move(limits), request_.pins.solver.value_or("auto"),
               places_of(folded_, request_.pins.starts), [this] { return seconds_left(); }});
    return *model;
  }

  // Model::estimate, as far as is known what the choice's programs take.
  std::optional<Estimate> fit(const Choice& choice, const Layers& layers, double& least,
                              double worth) {
    const double more = slack_ * corrections_.of_bytes(choice);
    auto estimate = model_of(more).estimate(choice, layers, least, worth);
    if (estimate) estimate->limit *= more;
    least *= more / slack_;
    return estimate;
  }

  // Cuts combinations into stages, from the lowest bound on, until no bound is below the time of
  // the `most` best, which `best` then has. `choice_of` makes a choice and its layers of one.
  template <class One, class ChoiceOf>
  void look(const std::vector<One>& list, size_t most, std::vector<Candidate>& best,
            ChoiceOf choice_of) {
    std::vector<const One*> order;
    for (const auto& one : list) order.push_back(&one);
    std::ranges::stable_sort(order, {}, [](const One* one) { return one->bound; });
    for (size_t i = 0; i < order.size(); ++i) {
      const bool full = best.size() >= most;
      const bool late = out_of_time() && !best.empty();
      if ((full && order[i]->bound >= best[most - 1].estimate.seconds) || late) {
        lower_bound_ = std::min(lower_bound_, order[i]->bound);
        const auto told = std::min(order.size(), i + kTold);
        for (; i < told; ++i) features_.count(choice_of(*order[i]).first, order[i]->bound, true);
        break;
      }
      ++looked_at_;
      auto [choice, layers] = choice_of(*order[i]);
      const double worth = full ? best[most - 1].estimate.seconds : kInfinity;
      for (auto& candidate : candidates_of(choice, *layers, worth)) {
        lower_bound_ = std::min(lower_bound_, candidate.estimate.lower_bound);
        const auto place =
            std::ranges::upper_bound(best, candidate.estimate.seconds, {},
                                     [](const Candidate& other) { return other.estimate.seconds; });
        best.insert(place, std::move(candidate));
      }
      if (best.size() > most) best.resize(most);
    }
  }

  // The choice's tables; of unequal submeshes those of the first stage.
  const Layers* tables_of(const Choice& choice) {
    std::string why;
    if (choice.submeshes.empty()) return tables_->on_ranks(choice, 0, request_.world, why);
    return tables_->find(Model::of_stage(choice, choice.submeshes.front()), why);
  }

  // The combination where it fits; and of one whose blocks all keep much, with more and more that
  // keep nothing, where it has hardly room or could take less with them (by a better cut).
  std::vector<Candidate> candidates_of(const Choice& choice, const Layers& layers, double worth) {
    std::vector<Candidate> list;
    double best = kInfinity;  // where there is room enough
    const auto add = [&](const Choice& one, const Layers& tables) {
      auto candidate = estimate(one, tables, worth);
      if (!candidate) return;
      const auto& estimate = candidate->estimate;
      const bool room = !candidate->choice.offload && estimate.bytes < kNear * estimate.limit;
      if (room) best = std::min(best, estimate.seconds);
      list.push_back(std::move(*candidate));
    };
    add(choice, layers);
    if (!choice.selective || choice.every != 1 || request_.pins.every) return list;
    const auto& model = model_of(1);
    for (auto mixed = choice; const int64_t every : {4, 2}) {
      mixed.every = every;
      const auto* tables = every <= std::ssize(folded_.blocks) ? tables_of(mixed) : nullptr;
      if (!tables) continue;
      const double bound = model.is_unlike(mixed)
                               ? model.lower_bound(mixed, *tables).value_or(0)
                               : model.lower_bound(mixed, model.whole(mixed, *tables));
      if (bound >= std::min(best, worth)) break;
      add(mixed, *tables);
    }
    return list;
  }

  // Returns nothing where no cut fits.
  std::optional<Candidate> estimate(Choice choice, const Layers& layers, double worth) {
    double least = kInfinity;
    auto estimate = fit(choice, layers, least, worth);
    if (!estimate && may_offload(choice, layers, least)) {
      choice.offload = true;
      estimate = fit(choice, layers, least, worth);
    }
    if (estimate && !estimate->again.empty() && may_offload(choice, layers, kInfinity)) {
      // Either makes room: running again, or the host.
      auto on_host = choice;
      on_host.offload = true;
      double unused = kInfinity;
      auto other = fit(on_host, layers, unused, worth);
      if (other && other->seconds < estimate->seconds) {
        other->lower_bound = std::min(other->lower_bound, estimate->lower_bound);
        choice = std::move(on_host);
        estimate = std::move(other);
      }
    }
    if (!estimate) {
      if (least > limit_ && least < least_bytes_) {
        least_bytes_ = least;
        least_choice_ = choice;
      }
      return std::nullopt;
    }
    features_.count(choice, estimate->seconds, false);
    Candidate candidate{.choice = choice, .strategy = {}, .estimate = std::move(*estimate)};
    for (int cut : candidate.estimate.cuts) {
      candidate.choice.starts.push_back(folded_.blocks[static_cast<size_t>(cut)]);
    }
    candidate.choice.again = whole_blocks(choice, folded_.blocks, candidate.estimate.cuts);
    for (int block : candidate.estimate.again) {
      candidate.choice.again.push_back(folded_.blocks[static_cast<size_t>(block)]);
    }
    candidate.choice.costs = candidate.estimate.costs;
    candidate.strategy = strategy_of(candidate.choice, request_.pins, tables_->row());
    return candidate;
  }

  double milliseconds() const {
    const auto passed = std::chrono::steady_clock::now() - begin_;
    return std::chrono::duration<double, std::milli>(passed).count();
  }

  // Whether the time that the pins give is used up.
  bool out_of_time() {
    stopped_ = stopped_ || seconds_left() <= 0;
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
    // Of unequal submeshes one has what it has whole.
    const auto parts =
        choice.zero > 0 && choice.submeshes.empty() ? static_cast<double>(choice.parts()) : 1;
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
      const auto strategy = methods::from_json(candidate.strategy, "auto", request_.defined);
      Judged judged;
      judged.plan = methods::make_plan(strategy, request);
      plan::verify(judged.plan, graph);
      const auto spec = request_.spec(graph);
      judged.plan = compile::fit_recompute(graph, std::move(judged.plan), spec, traces_);
      const auto programs = compile::compile_all(graph, judged.plan, spec, traces_);
      judged.plan.prediction = compile::predict_memory(programs);
      candidate.peak_bytes =
          peak_bytes(request_.pins.model, programs, judged.plan, judged.plan.prediction);
      const auto over = over_limit(request_.pins.model, programs, judged.plan, cluster_, limits_);
      if (!over.empty()) {
        candidate.refused = over;
        note_least(candidate);
        return std::nullopt;
      }
      judged.simulation =
          simulate(programs, judged.plan.mesh, costs_, {.stage_axis = judged.plan.pipeline.axis});
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

  void note_least(const Candidate& candidate) {
    if (candidate.peak_bytes >= least_bytes_) return;
    least_bytes_ = candidate.peak_bytes;
    least_choice_ = candidate.choice;
  }

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const Request& request_;
  const cost::Cluster& cluster_;
  compile::TraceSource& traces_;
  OpCosts costs_;
  Space space_;
  std::vector<double> limits_;  // bytes of a rank, by kind of device
  double limit_ = 0;            // the least of them
  size_t nodes_ = 0;
  Folded folded_;
  compile::StepSpec spec_;
  std::unique_ptr<LayerTables> tables_;
  std::map<double, std::unique_ptr<Model>> models_;  // by how many times the memory programs take
  Corrections corrections_;
  double slack_ = 1;  // the least share of what the model counts that programs may take
  std::set<std::string> refused_;   // strategies whose programs were
  std::set<std::string> programs_;  // of those that were judged, or left out as alike
  std::string why_refused_;         // of the first of them
  size_t combinations_ = 0, looked_at_ = 0;
  std::vector<Choice> all_;
  Features features_;
  bool stopped_ = false;
  double lower_bound_ = kInfinity;  // of all combinations
  double least_bytes_ = kInfinity;
  Choice least_choice_;
};

}  // namespace

Found find(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
           compile::TraceSource& traces) {
  Search search(request, cluster, measurements, traces);
  if (auto found = search.find()) return std::move(*found);
  if (request.seconds_for_more <= 0 || search.stopped()) search.none_fits(std::nullopt);
  search.none_fits(
      least_more(search.missing(), std::min(request.seconds_for_more, search.seconds_left()),
                 [&](double more) -> std::optional<Fitting> {
                   auto asked = request;
                   asked.more_memory = more;
                   if (asked.pins.time_limit)
                     asked.pins.time_limit = std::max(search.seconds_left(), 1e-3);
                   const auto found = Search(asked, cluster, measurements, traces).find();
                   if (!found) return std::nullopt;
                   return Fitting{more, found->best.peak_bytes, found->best.choice};
                 }));
}

std::vector<Candidate> candidates(const Request& request, const cost::Cluster& cluster,
                                  cost::Measurements& measurements, compile::TraceSource& traces,
                                  size_t most) {
  const auto count = std::max<size_t>(1, most);
  return Search(request, cluster, measurements, traces).rank(count, count);
}

}  // namespace perigee::search
