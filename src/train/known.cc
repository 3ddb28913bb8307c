#include "train/known.h"

#include "base/error.h"
#include "base/log.h"
#include "train/connect.h"
#include "train/trainer.h"

namespace perigee::train {

class Known::Recorded : public compile::TraceSource {
 public:
  explicit Recorded(profile::TraceDatabase& traces) : traces_(traces) {}
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override {
    return traces_.known(instance);
  }

 private:
  profile::TraceDatabase& traces_;
};

profile::TimeDatabase times_of(profile::Database& database, const exec::Device& device,
                               const job::Job& job, int64_t ranks) {
  const auto threads = static_cast<int>(job.cluster.threads);
  return {database, profile::device_kind(device, threads), device.place().is_cpu() ? ranks : 1};
}

Known::Known(const job::Job& job, int64_t ranks) {
  if (!job.cluster.file.empty()) return;
  std::shared_ptr<exec::Device> device;
  try {
    device = open_device(job);
  } catch (const Error& error) {
    log::debug("memory and times are estimates: {}", error.what());
    return;
  }
  const auto threads = static_cast<int>(job.cluster.threads);
  database_ = std::make_unique<profile::Database>(profile_of(job));
  all_ = std::make_unique<profile::TraceDatabase>(*database_, threads, device);
  recorded_ = std::make_unique<Recorded>(*all_);
  times_ = std::make_unique<profile::TimeDatabase>(times_of(*database_, *device, job, ranks));
}

Known::~Known() = default;

compile::TraceSource& Known::traces() {
  return recorded_ ? static_cast<compile::TraceSource&>(*recorded_) : no_traces_;
}

cost::Measurements& Known::times() {
  return times_ ? static_cast<cost::Measurements&>(*times_) : no_times_;
}

void Known::forget() {
  if (times_) times_->forget();
}

}  // namespace perigee::train
