#include "train/plan/script_output.h"

#include <utility>

#include "base/log_format.h"

namespace perigee::train {

void ScriptOutput::print(std::string_view line) {
  if (held_) {
    lines_.emplace_back(line);
  } else {
    log::info("{}", line);
  }
}

ScriptOutput::Held::Held(ScriptOutput* output) : output_(output) {
  if (output_) output_->held_ = true;
}

ScriptOutput::Held::~Held() {
  if (!output_) return;
  output_->held_ = false;
  for (const auto& line : std::exchange(output_->lines_, {})) output_->print(line);
}

void ScriptOutput::Held::forget() {
  if (output_) output_->lines_.clear();
}

}  // namespace perigee::train
