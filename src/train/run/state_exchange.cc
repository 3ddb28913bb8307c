#include "train/run/state_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "train/ranks/share.h"

namespace perigee::train {
namespace {

constexpr int64_t kNumbers = 7;  // of a RankReport

template <class T>
std::vector<T> column(const std::vector<RankReport>& states, T (*value)(const RankReport&)) {
  std::vector<T> values;
  for (const auto& state : states) values.push_back(value(state));
  return values;
}

}  // namespace

StateExchange::StateExchange(exec::Communicator& communicator)
    : group_(everyone(communicator)),
      mine_(at::zeros({kNumbers}, at::kLong)),
      all_(at::zeros({kNumbers * communicator.world()}, at::kLong)),
      states_(static_cast<size_t>(communicator.world())) {}

void StateExchange::run(const RankReport& state) {
  const int64_t numbers[kNumbers] = {state.stop,        static_cast<int64_t>(state.skipped),
                                     state.peak_bytes,  state.library_bytes,
                                     state.computed_ns, state.paused_ns,
                                     state.submitted_ns};
  std::copy(std::begin(numbers), std::end(numbers), mine_.data_ptr<int64_t>());
  group_->run(
      {.kind = exec::Collective::Kind::all_gather, .input = mine_, .output = all_, .dim = 0});
  const auto* received = all_.data_ptr<int64_t>();
  for (auto& other : states_) {
    other = {received[0] != 0, static_cast<RankReport::Skipped>(received[1]),
             received[2],      received[3],
             received[4],      received[5],
             received[6]};
    received += kNumbers;
  }
}

bool StateExchange::any_stops() const {
  return std::any_of(states_.begin(), states_.end(), [](const auto& s) { return s.stop; });
}

bool StateExchange::any_skipped() const {
  return std::any_of(states_.begin(), states_.end(),
                     [](const auto& s) { return s.skipped == RankReport::Skipped::yes; });
}

std::vector<int64_t> StateExchange::peak_bytes() const {
  return column<int64_t>(states_, [](const RankReport& s) { return s.peak_bytes; });
}
std::vector<int64_t> StateExchange::library_bytes() const {
  return column<int64_t>(states_, [](const RankReport& s) { return s.library_bytes; });
}
std::vector<double> StateExchange::computed_seconds() const {
  return column<double>(states_, [](const RankReport& s) { return 1e-9 * double(s.computed_ns); });
}
std::vector<double> StateExchange::paused_seconds() const {
  return column<double>(states_, [](const RankReport& s) { return 1e-9 * double(s.paused_ns); });
}
std::vector<double> StateExchange::submitted_seconds() const {
  return column<double>(states_, [](const RankReport& s) { return 1e-9 * double(s.submitted_ns); });
}

}  // namespace perigee::train
