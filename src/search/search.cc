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
#include "search/report.h"
#include "shard/partition.h"

namespace perigee::search {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Nodes of a graph for which one plan is judged; a smaller graph has more of them judged.
constexpr size_t kNodesJudged = 8000;
// Candidates that are kept in case programs turn out to take more time or memory than the model
// says; of a small graph, and of one for which one plan is judged.
constexpr size_t kKept = 32, kKeptOfLarge = 24;
// However large the graph, so many plans are judged where the simulator contradicts the model.
constexpr size_t kContradicted = 5;
// That is where another is expected to take less than this share of the best one's time.
constexpr double kContradiction = 0.95;

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> result;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) result.push_back(d);
  }
  return result;
}

// The samples whose divisors are the microbatches looked at: all of a small batch, else at most 8.
int64_t largest_micro(const Request& request) {
  if (request.pins.micro) return *request.pins.micro;
  if (request.global_batch <= 64) return request.global_batch;
  int64_t largest = 1;
  for (int64_t d = 2; d <= 8; ++d) {
    if (request.global_batch % d == 0) largest = d;
  }
  return largest;
}

template <class T>
std::vector<T> options(const std::optional<T>& pin, std::vector<T> otherwise) {
  return pin ? std::vector<T>{*pin} : std::move(otherwise);
}

struct Bounded {
  Choice choice;
  const Layers* layers = nullptr;
  double bound = 0;
};

class Search {
 public:
  Search(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
         compile::TraceSource& traces)
      : request_(request),
        cluster_(cluster),
        traces_(traces),
        costs_(cluster, measurements),
        samples_(largest_micro(request)),
        limit_(request.memory_limit > 0 ? request.memory_limit
                                        : (1 - kReserve) * cluster.least_memory()) {
    limit_ = std::min(limit_, request.pins.memory.value_or(limit_));
    const auto& graph = request.graph(samples_);
    log::debug("auto: captured at {:.0f} ms", milliseconds());
    nodes_ = graph.nodes.size();
    folded_ = fold(graph);
    spec_ = request.spec(graph);
    const auto loss = shard::classify_loss(graph);
    splits_ = loss.kind != shard::LossKind::mixed && loss.coupling.empty();
    tables_ = std::make_unique<LayerTables>(folded_, samples_, spec_, request.pins, costs_, traces);
    model_ = std::make_unique<Model>(folded_, costs_, limit_);
  }

  // Returns the best `most` of the model, best first.
  std::vector<Candidate> rank(size_t most) {
    auto bounded = combinations();
    combinations_ = bounded.size();
    log::debug("auto: {} tables at {:.0f} ms", tables_->compiled(), milliseconds());
    std::stable_sort(bounded.begin(), bounded.end(),
                     [](const Bounded& a, const Bounded& b) { return a.bound < b.bound; });
    std::vector<Candidate> best;
    for (const auto& one : bounded) {
      const bool full = best.size() >= most;
      if (full && one.bound >= best[most - 1].estimate.seconds) break;
      if (!best.empty() && out_of_time()) {
        lower_bound_ = one.bound;
        break;
      }
      ++looked_at_;
      double least = kInfinity;
      auto estimate = model_->estimate(one.choice, *one.layers, least);
      if (!estimate) {
        if (least > limit_ && least < least_bytes_) {
          least_bytes_ = least;
          least_choice_ = one.choice;
        }
        continue;
      }
      Candidate candidate{.choice = one.choice, .strategy = {}, .estimate = std::move(*estimate)};
      for (int cut : candidate.estimate.cuts) {
        candidate.choice.starts.push_back(folded_.blocks[static_cast<size_t>(cut)]);
      }
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
    log::debug("auto: {} combinations ranked at {:.0f} ms", combinations_, milliseconds());
    // By how much the simulator differs from the model, for plans of one kind: judging goes on
    // where the model, so corrected, expects a better plan than the best.
    std::map<std::tuple<bool, bool, bool>, double> ratio;
    const auto kind = [](const Choice& c) {
      return std::tuple(c.zero >= 2, c.pipe > 1, c.tensor > 1);
    };
    const auto expected = [&](const Candidate& candidate) {
      const auto known = ratio.find(kind(candidate.choice));
      return candidate.estimate.seconds * (known == ratio.end() ? 1 : known->second);
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
      if (!tried) continue;
      ++good;
      ratio[kind(candidate.choice)] = candidate.seconds / candidate.estimate.seconds;
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

  std::vector<Bounded> combinations() {
    const auto& pins = request_.pins;
    const auto blocks = std::max<int64_t>(1, std::ssize(folded_.blocks));
    const auto node = cluster_.links.empty() ? 1 : cluster_.links.front().ranks;
    std::vector<Bounded> result;
    const auto fits = [](int64_t size, const std::optional<int64_t>& pin) {
      return !pin || *pin == size;
    };
    for (const auto tensor : divisors(request_.world)) {
      if (!fits(tensor, pins.tensor) || (!pins.tensor && tensor > node)) continue;
      for (const auto pipe : divisors(request_.world / tensor)) {
        const auto data = request_.world / tensor / pipe;
        if (pipe > blocks || !fits(pipe, pins.pipe) || !fits(data, pins.data)) continue;
        if (!result.empty() && out_of_time()) return result;
        if (request_.global_batch % data != 0) continue;
        add(result, {.tensor = tensor, .data = data, .pipe = pipe});
      }
    }
    if (result.empty()) {
      fail("auto",
           "a mesh of {} ranks must be possible: batch.global = {} must be a multiple of its data "
           "axis, and tensor and pipe must suit the model and what is pinned{}",
           request_.world, request_.global_batch,
           why_not_.empty() ? "" : fmt::format("; the last one tried: {}", why_not_));
    }
    return result;
  }

  void add(std::vector<Bounded>& result, Choice choice) {
    const auto& pins = request_.pins;
    const auto share = request_.global_batch / choice.data;
    for (const auto micro : divisors(samples_)) {
      if (share % micro != 0 || (pins.micro && *pins.micro != micro)) continue;
      choice.micro = micro;
      choice.microbatches = share / micro;
      // Samples that see each other: another number of microbatches is another loss.
      if (!splits_ && choice.microbatches > 1 && !pins.micro) continue;
      const auto zeros =
          choice.data > 1 ? options<int>(pins.zero, {0, 1, 2, 3}) : std::vector<int>{0};
      const auto sequences = choice.tensor > 1 ? options<bool>(pins.sequence, {false, true})
                                               : std::vector<bool>{false};
      const auto checkpoints = !folded_.blocks.empty()
                                   ? options<bool>(pins.checkpoint, {false, true})
                                   : std::vector<bool>{false};
      for (const bool sequence : sequences) {
        for (const bool checkpoint : checkpoints) {
          for (const auto every : checkpoint ? everies() : std::vector<int64_t>{1}) {
            choice.sequence = sequence;
            choice.checkpoint = checkpoint;
            choice.every = every;
            std::string why;
            const auto* layers = tables_->find(choice, why);
            if (!layers) {
              why_not_ = why;
              continue;
            }
            for (const int zero : zeros) {
              choice.zero = zero;
              add_schedules(result, choice, *layers);
            }
          }
        }
      }
    }
  }

  // Which share of the blocks may run again: stages should have as many of them as others.
  std::vector<int64_t> everies() const {
    auto list = options<int64_t>(request_.pins.every, {1, 2, 4});
    std::erase_if(list, [&](int64_t every) {
      return every > 1 && every > std::ssize(folded_.blocks) && !request_.pins.every;
    });
    return list;
  }

  void add_schedules(std::vector<Bounded>& result, Choice choice, const Layers& layers) const {
    const auto& pins = request_.pins;
    const auto put = [&] {
      result.push_back({choice, &layers, model_->lower_bound(choice, layers)});
    };
    choice.schedule = "1f1b";
    choice.chunks = 1;
    if (choice.pipe == 1) return put();
    if (pins.schedule) {
      choice.schedule = *pins.schedule;
      choice.chunks = pins.chunks.value_or(*pins.schedule == "interleaved" ? 2 : 1);
      return put();
    }
    if (pins.chunks.value_or(1) == 1) put();
    const auto blocks = std::ssize(folded_.blocks);
    if (blocks % choice.pipe != 0 || choice.microbatches % choice.pipe != 0) return;
    for (const auto chunks : options<int64_t>(pins.chunks, {2, 3, 4})) {
      if (chunks == 1 || blocks % (choice.pipe * chunks) != 0) continue;
      choice.schedule = "interleaved";
      choice.chunks = chunks;
      put();
    }
  }

  std::optional<Judged> judge(Candidate& candidate) {
    const auto& choice = candidate.choice;
    try {
      const auto& graph = request_.graph(choice.micro * choice.data);
      methods::Request request;
      request.graph = &graph;
      request.global_batch = request_.global_batch;
      request.world = request_.world;
      request.world_given = true;
      const auto strategy = methods::from_json(candidate.strategy, "auto");
      Judged judged;
      judged.plan = methods::make_plan(strategy, request);
      plan::verify(judged.plan, graph);
      const auto spec = request_.spec(graph);
      judged.plan = compile::fit_recompute(graph, std::move(judged.plan), spec, traces_);
      const auto programs = compile::compile_all(graph, judged.plan, spec, traces_);
      judged.plan.prediction = compile::predict_memory(programs);
      const auto& peaks = judged.plan.prediction.peak_bytes;
      candidate.peak_bytes = static_cast<double>(*std::max_element(peaks.begin(), peaks.end()));
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
        {"communication of the tensor axis", parts.tensor},
        {"the pipeline's bubble", parts.bubble},
        {"the data axis's exchange of gradients and weights", parts.data},
        {"the optimizer", parts.optimizer}};
    const auto most = std::max_element(shares.begin(), shares.end(),
                                       [](auto& a, auto& b) { return a.second < b.second; });
    found.bound_by = most->first;
    auto& decisions = found.plan.decisions;
    decisions.push_back(
        {"auto",
         fmt::format("of {} combinations the best is {}: a step takes {} by the simulator ({:.0f}% "
                     "of it measured, the rest estimated) on {}",
                     found.combinations, to_string(best.choice), seconds_text(best.seconds),
                     100 * found.simulation.measured_share, cluster_.name)});
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
    size_t told = 0;
    for (const auto& other : found.others) {
      if (other.choice == best.choice || told == 3) continue;
      ++told;
      decisions.push_back(
          {"auto",
           other.judged ? fmt::format("{} takes {:.1f}% longer", to_string(other.choice),
                                      100 * (other.seconds / best.seconds - 1))
           : !other.refused.empty()
               ? fmt::format("{} is refused: {}", to_string(other.choice), other.refused)
               : fmt::format("{} takes {:.1f}% longer by the model", to_string(other.choice),
                             100 * (other.estimate.seconds / best.estimate.seconds - 1))});
    }
  }

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const Request& request_;
  const cost::Cluster& cluster_;
  compile::TraceSource& traces_;
  OpCosts costs_;
  int64_t samples_;
  double limit_;
  size_t nodes_ = 0;
  Folded folded_;
  compile::StepSpec spec_;
  bool splits_ = true;
  std::unique_ptr<LayerTables> tables_;
  std::unique_ptr<Model> model_;
  size_t combinations_ = 0, looked_at_ = 0;
  bool stopped_ = false;
  double lower_bound_ = kInfinity;  // of what a stopped search has not looked at
  double least_bytes_ = kInfinity;
  Choice least_choice_;
  std::string why_not_;
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
