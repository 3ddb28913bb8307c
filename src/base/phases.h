// The parts of a long start (planning, tokenizing), shown while they run.
#pragma once

#include <string_view>

#include "base/log.h"

namespace perigee::log {

// Shows one line on a terminal, which the next phase replaces and the end removes.
class Phases {
 public:
  // Without `shows` (ranks but 0) it does nothing.
  explicit Phases(bool shows) : shows_(shows) {}
  ~Phases() { end(); }
  Phases(const Phases&) = delete;
  Phases& operator=(const Phases&) = delete;

  void begin(std::string_view phase) { shown_ = shows_ && progress(phase); }
  void end() {
    if (shown_) progress("");
    shown_ = false;
  }

 private:
  bool shows_, shown_ = false;
};

}  // namespace perigee::log
