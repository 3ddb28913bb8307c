#include "train/task/draw_options.h"

#include "base/fail.h"

namespace perigee::train {

std::optional<WrongOption> wrong_option(const DrawOptions& options) {
  std::optional<WrongOption> wrong;
  const auto require = [&](bool holds, const char* name, const char* range, double got) {
    if (holds || wrong) return;
    wrong = WrongOption{name, fmt::format("{} must be {}, but got {}", name, range, got)};
  };
  require(options.temperature >= 0, "temperature", "at least 0", options.temperature);
  require(options.top_k >= 0, "top_k", "at least 0", static_cast<double>(options.top_k));
  require(options.top_p > 0 && options.top_p <= 1, "top_p", "above 0 and at most 1", options.top_p);
  require(options.repetition_penalty > 0, "repetition_penalty", "above 0",
          options.repetition_penalty);
  return wrong;
}

void check(const DrawOptions& options) {
  if (const auto wrong = wrong_option(options)) fail("generate", "{}", wrong->message);
}

}  // namespace perigee::train
