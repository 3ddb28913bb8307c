// Allocation traces from the profile database; missing ones are recorded by a dry run and kept.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "compile/trace.h"
#include "exec/device.h"
#include "profile/database.h"
#include "profile/trace_text.h"

namespace perigee::profile {

// Returns the key of a rank's measurements: its device, threads, LibTorch's and Perigee's version.
std::string device_kind(const exec::Device& device, int threads);

class TraceDatabase : public compile::TraceSource {
 public:
  // Keeps `database` by reference. Dry runs use the device (nullptr: the CPU) and
  // `threads` LibTorch threads.
  TraceDatabase(Database& database, int threads = 1,
                std::shared_ptr<exec::Device> device = nullptr);

  // Returns nothing, with a warning, where the op cannot run on zeros; its memory is
  // then estimated.
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override;

  // Returns the kept trace, if any; records nothing.
  std::optional<compile::OpTrace> known(const compile::OpInstance& instance);

  // Returns the number of traces recorded so far, without those found in the database.
  int64_t recorded() const { return recorded_; }

 private:
  std::optional<std::optional<compile::OpTrace>> look_up(const Database::Key& key,
                                                         const compile::OpInstance& instance);

  Database& database_;
  int threads_;
  std::shared_ptr<exec::Device> device_;
  std::string kind_;
  int64_t recorded_ = 0;
  std::mutex mutex_;
};

// The traces that the database has; records none.
class KnownTraces : public compile::TraceSource {
 public:
  // Keeps `traces` by reference.
  explicit KnownTraces(TraceDatabase& traces) : traces_(traces) {}
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override {
    auto trace = traces_.known(instance);
    if (!trace) missing_ = true;
    return trace;
  }
  // Returns whether one was asked for that the database lacks.
  bool missing() const { return missing_; }

 private:
  TraceDatabase& traces_;
  std::atomic<bool> missing_ = false;
};

}  // namespace perigee::profile
