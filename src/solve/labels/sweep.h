// Dynamic programming over variables in a linear order. The state between two steps is the options
// of the frontier: the passed variables that have a pair with a later variable. A chain has a
// frontier of one variable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "solve/assign/model.h"

namespace perigee::solve {

// Numbers of states do not grow beyond it.
inline constexpr uint64_t kManyStates = uint64_t{1} << 63;

// One step of an order: passes `variable`. States before it index the options of `frontier` in
// mixed radix.
struct SweepStep {
  struct Link {
    int slot = 0;  // position in `frontier`
    // [option of that variable * options of this one + option of this one].
    std::vector<double> time;
  };
  int variable = 0;
  std::vector<int> frontier;
  std::vector<uint64_t> stride;       // of each frontier variable in the state before
  std::vector<uint64_t> next_stride;  // of each in the state after; 0 where it is no longer needed
  uint64_t own_stride = 0;  // of this variable in the state after; 0 where it is not needed
  uint64_t states = 1;      // number of states before
  std::vector<Link> links;  // pairs with the frontier
};

// Returns the steps of an order for the pairs that `kept` marks. `states` saturates at 2^63.
std::vector<SweepStep> make_steps(const AssignModel& model, const std::vector<int>& order,
                                  const std::vector<bool>& kept);

// Returns an order with small frontiers: the model's own where that is nearly as good as a
// greedy one.
std::vector<int> choose_order(const AssignModel& model);

// Lower bounds by dynamic programming with given times per option. Where the frontier is too wide
// for tables, pairs are left out and replaced by a share of their time per option of either end;
// the shares' sum is at most the pair's time, so that the bound holds.
class Sweep {
 public:
  using Unary = std::vector<std::vector<double>>;  // [variable][option], in time quanta

  Sweep(const AssignModel& model, std::vector<int> order, double most_work);

  // [step][state before it]: least total of this and all later steps.
  using Tables = std::vector<std::vector<double>>;

  // Returns the least total of `unary` plus pair times and keeps the tables for the calls below;
  // infinity where no choice is allowed.
  double backward(const Unary& unary);
  // Returns a choice with the least total. Throws nothing; requires a finite backward().
  std::vector<int> solution() const;
  // Returns the time of a choice's kept pairs and shares, without its options' own times.
  double pair_total(std::span<const int> solution) const;
  // Returns, per variable and option, the least total through it. Requires backward().
  Unary through();
  // Returns the tables for other times per option, shares included, and leaves those of
  // backward() alone.
  Tables tables(const Unary& with_shares) const;
  // Least total of the steps from `step` on, given the state before it.
  double rest(size_t step, uint64_t state) const { return rest_[step][state]; }

  const std::vector<int>& order() const { return order_; }
  const std::vector<SweepStep>& steps() const { return steps_; }
  bool exact() const { return exact_; }  // no pair was left out
  double work() const { return work_; }  // table entries touched by one backward()
  // Returns the times per option as last given, plus the shares of left-out pairs.
  const Unary& unary() const { return unary_; }
  // Returns the times of pairs, [pair][u * size of v + v]: of a left-out pair the excess over its
  // two shares.
  const std::vector<std::vector<double>>& pair_time() const { return pair_time_; }

 private:
  void leave_out_pairs(const AssignModel& model, double most_work);
  void fill(const Unary& unary, Tables& tables) const;

  std::vector<int> order_;
  std::vector<SweepStep> steps_;
  Tables rest_;
  std::vector<std::vector<double>> pair_time_;
  Unary share_, unary_;
  std::vector<int> sizes_;
  bool exact_ = true;
  double work_ = 0;
};

}  // namespace perigee::solve
