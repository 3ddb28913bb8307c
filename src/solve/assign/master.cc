#include "solve/assign/master.h"

#include <algorithm>
#include <limits>

namespace perigee::solve {
namespace {
constexpr double kReduced = 1e-10;  // a reduced cost below this improves nothing
constexpr double kPivot = 1e-9;
}  // namespace

Master::Master(std::vector<double> limits, double penalty) : size_(limits.size() + 1) {
  value_.push_back(1);
  value_.insert(value_.end(), limits.begin(), limits.end());
  inverse_.assign(size_ * size_, 0.0);
  for (size_t r = 0; r < size_; ++r) {
    basis_.push_back(static_cast<int>(r));
    inverse_[r * size_ + r] = 1;
    cost_.push_back(r == 0 ? penalty : 0);
    a_.emplace_back(size_, 0.0)[r] = 1;
  }
  dual_.assign(size_, 0.0);
}

void Master::add(double cost, double weight, const std::vector<double>& use) {
  cost_.push_back(cost);
  auto& column = a_.emplace_back();
  column.reserve(size_);
  column.push_back(weight);
  column.insert(column.end(), use.begin(), use.end());
}

void Master::pivot(size_t row, const std::vector<double>& column) {
  const double scale = 1 / column[row];
  value_[row] *= scale;
  double* pivot_row = &inverse_[row * size_];
  for (size_t k = 0; k < size_; ++k) pivot_row[k] *= scale;
  for (size_t r = 0; r < size_; ++r) {
    if (r == row || column[r] == 0) continue;
    value_[r] = std::max(0.0, value_[r] - column[r] * value_[row]);
    double* target = &inverse_[r * size_];
    for (size_t k = 0; k < size_; ++k) target[k] -= column[r] * pivot_row[k];
  }
}

double Master::solve() {
  std::vector<double> column(size_);
  const size_t most = 20 * size_ + 200;
  for (size_t iteration = 0;; ++iteration) {
    std::fill(dual_.begin(), dual_.end(), 0.0);
    for (size_t r = 0; r < size_; ++r) {
      const double cost = cost_[basis_[r]];
      if (cost == 0) continue;
      for (size_t k = 0; k < size_; ++k) dual_[k] += cost * inverse_[r * size_ + k];
    }
    if (iteration >= most) break;
    int entering = -1;
    double least = -kReduced;
    for (size_t c = 0; c < a_.size(); ++c) {
      double reduced = cost_[c];
      for (size_t k = 0; k < size_; ++k) reduced -= dual_[k] * a_[c][k];
      if (reduced < least) {
        least = reduced;
        entering = static_cast<int>(c);
        if (iteration > most / 2) break;  // take the first one, against cycling
      }
    }
    if (entering < 0) break;
    size_t leaving = size_;
    double shortest = std::numeric_limits<double>::infinity();
    for (size_t r = 0; r < size_; ++r) {
      column[r] = 0;
      for (size_t k = 0; k < size_; ++k) column[r] += inverse_[r * size_ + k] * a_[entering][k];
      if (column[r] > kPivot && value_[r] / column[r] < shortest) {
        shortest = value_[r] / column[r];
        leaving = r;
      }
    }
    if (leaving == size_) break;
    pivot(leaving, column);
    basis_[leaving] = entering;
  }
  double total = 0;
  for (size_t r = 0; r < size_; ++r) total += cost_[basis_[r]] * value_[r];
  return total;
}

std::vector<double> Master::prices() const {
  std::vector<double> prices;
  for (size_t r = 1; r < size_; ++r) prices.push_back(std::max(0.0, -dual_[r]));
  return prices;
}

}  // namespace perigee::solve
