// Allocation traces from the profile database; what it lacks is recorded by a dry run and kept.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "compile/trace.h"
#include "exec/device.h"
#include "profile/database.h"

namespace perigee::profile {

// Returns what a rank's measurements depend on: its device, threads, LibTorch's and Perigee's
// version.
std::string device_kind(const exec::Device& device, int threads);

class TraceDatabase : public compile::TraceSource {
 public:
  // `database` is kept by reference. Dry runs are the device's (nullptr: the CPU's) and use that
  // many LibTorch threads.
  TraceDatabase(Database& database, int threads = 1,
                std::shared_ptr<exec::Device> device = nullptr);

  // Returns nothing, with a warning, where the op cannot be run on zeros; its memory is then an
  // estimate.
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override;

  // Returns what is kept; records nothing.
  std::optional<compile::OpTrace> known(const compile::OpInstance& instance);

  // How many traces were recorded since the start and not found.
  int64_t recorded() const { return recorded_; }

 private:
  std::optional<std::optional<compile::OpTrace>> look_up(const Database::Key& key);

  Database& database_;
  int threads_;
  std::shared_ptr<exec::Device> device_;
  std::string kind_;
  int64_t recorded_ = 0;
  std::mutex mutex_;
};

// JSON text of a trace; "null" for one that cannot be told. Parsing returns nothing for text that
// is no trace.
std::string print(const std::optional<compile::OpTrace>& trace);
std::optional<std::optional<compile::OpTrace>> parse_trace(const std::string& text);

}  // namespace perigee::profile
