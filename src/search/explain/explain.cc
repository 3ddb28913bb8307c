#include "search/explain/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text/bytes.h"
#include "simulate/report.h"

namespace perigee::search {
namespace {

// Returns the judged candidate of a tensor size with the shortest step, or nullptr.
const Candidate* best_judged(const std::vector<Candidate>& candidates, int64_t tensor) {
  const Candidate* best = nullptr;
  for (const auto& one : candidates) {
    if (!one.judged || one.choice.tensor != tensor || !one.choice.submeshes.empty()) continue;
    if (best == nullptr || one.seconds < best->seconds) best = &one;
  }
  return best;
}

// Returns "3.2% less by the model".
std::string less_text(double other, double best) {
  return fmt::format("{:.1f}% less by the model", 100 * (1 - other / best));
}

std::string left_out_text(const Choice& choice, double seconds, double best) {
  return fmt::format("the strategy left out {}, which takes {}", to_string(choice),
                     less_text(seconds, best));
}

// Returns "3.2% longer", of a plan whose program was simulated, as the best one's.
std::string longer_text(const Candidate& judged, const Found& found) {
  return fmt::format("{:.1f}% longer", 100 * (judged.seconds / found.best.seconds - 1));
}

// Returns the sentence about a simulated plan that the strategy left out although it is faster.
std::optional<std::string> faster_text(const Candidate& judged, const Found& found) {
  if (!found.chosen || judged.seconds >= found.best.seconds) return {};
  return fmt::format("the strategy left out {}, which takes {:.1f}% less", to_string(judged.choice),
                     100 * (1 - judged.seconds / found.best.seconds));
}

// Returns the reason why another candidate was not taken.
std::string sentence_of(const Candidate& other, const Found& found) {
  const auto& best = found.best;
  const double seconds = other.estimate.seconds, least = best.estimate.seconds;
  if (other.judged) {
    if (auto faster = faster_text(other, found)) return *faster;
    return fmt::format("{} takes {}", to_string(other.choice), longer_text(other, found));
  }
  if (!other.refused.empty()) {
    return fmt::format("{} is refused: {}", to_string(other.choice), other.refused);
  }
  if (found.chosen && seconds < least) return left_out_text(other.choice, seconds, least);
  return fmt::format("{} takes {}", to_string(other.choice), more_text(seconds, least));
}

}  // namespace

std::vector<std::string> tensor_size_sentences(const Found& found) {
  std::map<int64_t, Features::TensorSize> sizes;
  for (const auto& choice : found.all) {
    if (choice.submeshes.empty()) sizes[choice.tensor];
  }
  for (const auto& size : found.features.tensor_sizes()) sizes[size.tensor] = size;
  if (found.best.choice.submeshes.empty()) sizes.erase(found.best.choice.tensor);
  const double best = found.best.estimate.seconds;
  std::vector<std::string> sentences;
  for (const auto& [tensor, size] : sizes) {
    const bool bounded = size.bound < std::numeric_limits<double>::infinity();
    if (const auto* judged = best_judged(found.others, tensor)) {
      auto faster = faster_text(*judged, found);
      sentences.push_back(faster ? std::move(*faster)
                                 : fmt::format("the best plan with tensor = {} is {}: it takes {}",
                                               tensor, to_string(judged->choice),
                                               longer_text(*judged, found)));
    } else if (size.choice && found.chosen && size.seconds < best) {
      sentences.push_back(left_out_text(*size.choice, size.seconds, best));
    } else if (size.choice) {
      sentences.push_back(fmt::format("the best plan with tensor = {} is {}: it takes {}", tensor,
                                      to_string(*size.choice), more_text(size.seconds, best)));
    } else if (bounded && size.bound >= best) {
      sentences.push_back(fmt::format("with tensor = {} a plan takes at least {}", tensor,
                                      more_text(size.bound, best)));
    } else if (!bounded && !found.stopped && found.combinations <= kMostBounds) {
      sentences.push_back(fmt::format("no plan with tensor = {} fits", tensor));
    }
  }
  return sentences;
}

void explain(Found& found, const std::string& cluster, std::optional<double> time_limit) {
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
       fmt::format("of {} combinations the {} is {}: a step takes {} by the simulator ({}) on {}",
                   found.combinations, found.chosen ? "strategy's" : "best", to_string(best.choice),
                   simulate::seconds_text(best.seconds),
                   simulate::measured_text(found.simulation.measured_share), cluster)});
  if (found.stopped) {
    decisions.push_back(
        {"auto", fmt::format("the search was stopped after {} s: there may be a better plan; "
                             "none of the combinations that it reached can take less than {}",
                             *time_limit, simulate::seconds_text(found.lower_bound))});
  }
  std::string split;
  for (const auto& [name, seconds] : shares) {
    if (seconds <= 0.005 * parts.total()) continue;
    split += fmt::format("{}{} {:.0f}%", split.empty() ? "" : ", ", name,
                         100 * seconds / parts.total());
  }
  decisions.push_back(
      {"auto", fmt::format("it is bound by {}: {}; a rank takes {} of {}", found.bound_by, split,
                           bytes_text(best.peak_bytes), bytes_text(best.estimate.limit))});
  for (auto& sentence :
       found.features.sentences(best.choice, best.estimate.seconds, found.chosen)) {
    decisions.push_back({"auto", std::move(sentence)});
  }
  for (auto& sentence : tensor_size_sentences(found)) {
    decisions.push_back({"auto", std::move(sentence)});
  }
  size_t printed = 0;
  for (const auto& other : found.others) {
    if (other.choice == best.choice || printed == 3) continue;
    auto sentence = sentence_of(other, found);
    const bool given = std::ranges::any_of(decisions, [&](const plan::Decision& decision) {
      return decision.by == "auto" && decision.sentence == sentence;  // of its tensor size
    });
    if (given) continue;
    ++printed;
    decisions.push_back({"auto", std::move(sentence)});
  }
}

}  // namespace perigee::search
