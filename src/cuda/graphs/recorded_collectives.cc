#include "cuda/graphs/recorded_collectives.h"

#include <algorithm>
#include <utility>

namespace perigee::cuda {

void RecordedCollectives::add(std::string name, const Event& ended) {
  ended.block(stream_.get());
  auto& collective = list_.emplace_back(std::move(name), device_);
  collective.ended.record_in_launches(stream_.get());
}

void RecordedCollectives::join(cudaStream_t stream) {
  if (list_.empty()) return;
  Event joined(device_);
  joined.record(stream_.get());
  joined.block(stream);
}

void RecordedCollectives::begin(cudaStream_t stream) {
  if (list_.empty()) return;
  if (!std::exchange(launched_, true)) {
    // The host may not ask for the time of an event that was never recorded.
    for (auto& collective : list_) collective.ended.record(stream);
  }
  begun_.record(stream);
}

std::string RecordedCollectives::unfinished() const {
  if (list_.empty()) return "";
  const bool begun = begun_.passed();
  // An event has the time of an earlier launch until this one records it.
  const auto found = std::ranges::find_if(list_, [&](const Collective& collective) {
    return !begun || !collective.ended.passed() || collective.ended.since(begun_) <= 0;
  });
  return found == list_.end() ? "" : found->name;
}

}  // namespace perigee::cuda
