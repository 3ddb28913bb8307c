#include "train/run/stragglers.h"

#include <fmt/format.h>

#include <algorithm>

#include "mesh/mesh.h"

namespace perigee::train {
namespace {

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<int64_t> peers_of(const plan::Plan& plan) {
  std::vector<int64_t> peers(static_cast<size_t>(plan.mesh.size()));
  if (!plan.pipeline.cuts()) return peers;
  const auto axis = static_cast<size_t>(plan.mesh.find(plan.pipeline.axis));
  for (const auto rank : mesh::ranks(plan.mesh)) {
    peers[static_cast<size_t>(rank)] = mesh::coordinates(plan.mesh, rank)[axis];
  }
  return peers;
}

Stragglers::Stragglers(std::vector<int64_t> peers)
    : peers_(std::move(peers)), ranks_(peers_.size()), total_(peers_.size()) {}

double Stragglers::expected(size_t rank, const std::vector<double>& medians) const {
  std::vector<double> others;
  for (size_t other = 0; other < peers_.size(); ++other) {
    if (other != rank && peers_[other] == peers_[rank]) others.push_back(medians[other]);
  }
  return others.empty() ? *ranks_[rank].fastest : median_of(std::move(others));
}

std::vector<std::string> Stragglers::add(int64_t step, const RankTimes& times) {
  std::vector<std::string> sentences;
  std::vector<double> medians;
  steps_.push_back(times.step);
  seconds_ += times.step;
  size_t left = 0;  // steps that the windows no longer need
  while (steps_.size() > kWindow && seconds_ - steps_.front() >= kSeconds) {
    seconds_ -= steps_.front();
    steps_.pop_front();
    ++left;
  }
  const bool full = steps_.size() >= kWindow && seconds_ >= kSeconds;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    auto& rank = ranks_[r];
    total_[r] += times.computed[r];
    const auto paused = times.paused[r];
    if (paused >= kPause) {
      sentences.push_back(fmt::format(
          "rank {} stood still for {:.1f} s in step {}: it was stopped or swapped out, or its host "
          "was paused",
          r, paused, step));
    }
    rank.window.push_back(times.computed[r]);
    rank.window.erase(rank.window.begin(), rank.window.begin() + static_cast<int64_t>(left));
    medians.push_back(median_of({rank.window.begin(), rank.window.end()}));
    if (full) {
      rank.fastest = std::min(rank.fastest.value_or(medians[r]), medians[r]);
    }
  }
  if (ranks_.size() < 2 || !full) return sentences;
  const auto smallest = kShare * median_of({steps_.begin(), steps_.end()});
  for (size_t r = 0; r < ranks_.size(); ++r) {
    auto& rank = ranks_[r];
    const auto usual = expected(r, medians);
    const bool alone = std::count(peers_.begin(), peers_.end(), peers_[r]) == 1;
    if (!rank.slow && medians[r] > kSlower * usual && medians[r] - usual > smallest) {
      rank.slow = true;
      sentences.push_back(fmt::format(
          "rank {} computes {:.1f} ms a step, {:.2f} times {} ({:.1f} ms), in the last {} steps: "
          "its device or its host is slower, or has other work",
          r, 1e3 * medians[r], medians[r] / usual, alone ? "its own best" : "its peers",
          1e3 * usual, steps_.size()));
    } else if (rank.slow && medians[r] < kRecovered * usual) {
      rank.slow = false;
      sentences.push_back(fmt::format("rank {} is as fast as {}", r,
                                      alone ? "at its best again" : "its peers again"));
    }
  }
  return sentences;
}

}  // namespace perigee::train
