#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text/bytes.h"
#include "plan/plan.h"

namespace perigee::plan {

std::string explain(const Plan& plan) {
  std::string text;
  for (const auto& decision : plan.decisions) {
    text += fmt::format("{}: {}\n", decision.by, decision.sentence);
  }
  const auto& prediction = plan.prediction;
  if (!prediction.peak_bytes.empty()) {
    const auto [least, most] = std::minmax_element(prediction.peak_bytes.begin(),
                                                   prediction.peak_bytes.end());
    text += fmt::format("predicted peak memory of a rank: {}{}{}\n",
                        *least == *most ? "" : bytes_text(double(*least)) + " to ",
                        bytes_text(double(*most)), prediction.exact_memory ? "" : " (estimate)");
  }
  if (!prediction.host_bytes.empty()) {
    text += fmt::format("predicted memory of a rank on its host: {}\n",
                        bytes_text(double(*std::max_element(prediction.host_bytes.begin(),
                                                            prediction.host_bytes.end()))));
  }
  if (prediction.step_seconds > 0) {
    const double share = prediction.measured_share;
    text += fmt::format("predicted step time: {:.4g} s{}\n", prediction.step_seconds,
                        share <= 0    ? " (estimate)"
                        : share < 0.9 ? fmt::format(" ({:.0f}% of it measured)", 100 * share)
                                      : "");
  }
  return text;
}

}  // namespace perigee::plan
