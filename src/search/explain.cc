#include "search/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "search/report.h"

namespace perigee::search {

void explain(Found& found, const Features& features, const std::string& cluster,
             std::optional<double> time_limit) {
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
       fmt::format("of {} combinations the best is {}: a step takes {} by the simulator ({}) on {}",
                   found.combinations, to_string(best.choice), seconds_text(best.seconds),
                   measured_text(found.simulation.measured_share), cluster)});
  if (found.stopped) {
    decisions.push_back(
        {"auto", fmt::format("the search was stopped after {} s: there may be a better plan; of "
                             "those that it had come to none can take less than {}",
                             *time_limit, seconds_text(found.lower_bound))});
  }
  std::string split;
  for (const auto& [name, seconds] : shares) {
    if (seconds <= 0.005 * parts.total()) continue;
    split +=
        fmt::format("{}{} {:.0f}%", split.empty() ? "" : ", ", name, 100 * seconds / parts.total());
  }
  decisions.push_back(
      {"auto", fmt::format("it is bound by {}: {}; a rank takes {} of {}", found.bound_by, split,
                           bytes_text(best.peak_bytes), bytes_text(best.estimate.limit))});
  for (auto& sentence : features.sentences(best.choice, best.estimate.seconds)) {
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

}  // namespace perigee::search
