// The parts of a long start or end (planning, tokenizing, saving), shown while they run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/terminal/progress.h"

namespace perigee::log {

// Shows one line on a terminal, which the next phase replaces and the end removes.
class Phases {
 public:
  // Without `shows` (ranks but 0) it does nothing.
  explicit Phases(bool shows) : shows_(shows) {}
  ~Phases() { end(); }
  Phases(const Phases&) = delete;
  Phases& operator=(const Phases&) = delete;

  // `phase`: "planning".
  void begin(std::string_view phase) {
    shown_ = false;
    phase_ = phase;
    next_ = {};
    shown_ = shows_ && progress(phase_ + " ...");
  }
  // Shows how much of the phase is done, at most every 50 ms. One thread at a time may call it, while
  // the phase runs.
  void done(int64_t part, int64_t all) {
    const auto now = Clock::now();
    if (!shown_ || all <= 0 || now < next_) return;
    next_ = now + std::chrono::milliseconds(50);
    progress({.text = phase_, .share = double(part) / double(all), .details = {}});
  }
  void end() {
    if (shown_) progress("");
    shown_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  const bool shows_;
  std::atomic<bool> shown_ = false;
  std::string phase_;
  Clock::time_point next_{};
};

}  // namespace perigee::log
