#include "train/run/exchange.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "train/ranks/share.h"

namespace perigee::train {
namespace {

constexpr int64_t kNumbers = 6;  // of a RankState

template <class T>
std::vector<T> column(const std::vector<RankState>& states, T (*value)(const RankState&)) {
  std::vector<T> values;
  for (const auto& state : states) values.push_back(value(state));
  return values;
}

}  // namespace

Exchange::Exchange(exec::Communicator& communicator)
    : group_(everyone(communicator)),
      mine_(at::zeros({kNumbers}, at::kLong)),
      all_(at::zeros({kNumbers * communicator.world()}, at::kLong)),
      states_(static_cast<size_t>(communicator.world())) {}

void Exchange::run(const RankState& state) {
  const int64_t numbers[kNumbers] = {state.stop,        static_cast<int64_t>(state.skipped),
                                     state.peak_bytes,  state.library_bytes,
                                     state.computed_ns, state.paused_ns};
  std::copy(std::begin(numbers), std::end(numbers), mine_.data_ptr<int64_t>());
  group_->run(
      {.kind = exec::Collective::Kind::all_gather, .input = mine_, .output = all_, .dim = 0});
  const auto* received = all_.data_ptr<int64_t>();
  for (auto& other : states_) {
    other = {received[0] != 0, static_cast<RankState::Skipped>(received[1]),
             received[2],      received[3],
             received[4],      received[5]};
    received += kNumbers;
  }
}

bool Exchange::any_stops() const {
  return std::any_of(states_.begin(), states_.end(), [](const auto& s) { return s.stop; });
}

bool Exchange::any_skipped() const {
  return std::any_of(states_.begin(), states_.end(),
                     [](const auto& s) { return s.skipped == RankState::Skipped::yes; });
}

std::vector<int64_t> Exchange::peak_bytes() const {
  return column<int64_t>(states_, [](const RankState& s) { return s.peak_bytes; });
}
std::vector<int64_t> Exchange::library_bytes() const {
  return column<int64_t>(states_, [](const RankState& s) { return s.library_bytes; });
}
std::vector<double> Exchange::computed_seconds() const {
  return column<double>(states_, [](const RankState& s) { return 1e-9 * double(s.computed_ns); });
}
std::vector<double> Exchange::paused_seconds() const {
  return column<double>(states_, [](const RankState& s) { return 1e-9 * double(s.paused_ns); });
}

}  // namespace perigee::train
