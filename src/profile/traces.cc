#include "profile/traces.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include "base/log_format.h"
#include "base/version.h"
#include "exec/op_threads.h"

namespace perigee::profile {
namespace {

// Version of Perigee's own kernels: of their allocations and times, and of how these are recorded; part
// of the key.
constexpr int kKernels = 22;

}  // namespace

std::string device_kind(const exec::Device& device, int threads) {
  return fmt::format("{} threads={} torch={} perigee={}/{}", device.kind(), threads, TORCH_VERSION,
                     perigee::kVersion, kKernels);
}

TraceDatabase::TraceDatabase(Database& database, int threads, std::shared_ptr<exec::Device> device)
    : database_(database),
      threads_(threads),
      device_(device ? std::move(device) : exec::cpu_device()),
      kind_(device_kind(*device_, threads)) {}

std::optional<std::optional<compile::OpTrace>> TraceDatabase::look_up(
    const Database::Key& key, const compile::OpInstance& instance) {
  const auto kept = database_.find(key);
  auto trace = kept ? parse_trace(*kept) : std::nullopt;
  return trace && *trace && !describes(**trace, instance) ? std::nullopt : trace;
}

std::optional<compile::OpTrace> TraceDatabase::known(const compile::OpInstance& instance) {
  std::lock_guard lock(mutex_);
  return look_up({"trace", kind_, compile::key(instance)}, instance).value_or(std::nullopt);
}

std::optional<compile::OpTrace> TraceDatabase::find(const compile::OpInstance& instance) {
  std::lock_guard lock(mutex_);
  const Database::Key key{"trace", kind_, compile::key(instance)};
  if (const auto kept = look_up(key, instance)) return *kept;
  const exec::OpThreads threads(threads_);
  try {
    const auto trace = device_->dry_run(instance);
    ++recorded_;
    database_.put(key, print(trace));
    return trace;
  } catch (const std::exception& error) {
    log::warn("profile: {} cannot run on zeros, so its memory is estimated: {}", instance.op,
              std::string_view(error.what()).substr(0, 200));
    return std::nullopt;
  }
}

}  // namespace perigee::profile
