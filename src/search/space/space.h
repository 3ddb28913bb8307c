// The search space: all combinations that the job, the model and the pins allow, each with a lower
// bound on its time.
//
// Axes: `tensor` within a node; `expert` within a node (beside tensor both together), for mixtures
// whose experts divide over it; `context` for sequences of at least kLongSequence, in parts of at
// least kLeastPart; `pipe` up to a block a stage; `data` has the rest. A pin lifts those limits.
// Then samples of a microbatch, sequence sharding between tensor ranks, how context ranks attend
// (all_gather or all_to_all; a ring where it is pinned), recomputation of all blocks, each second
// or each fourth (by a solver that is pinned: of any), or of cheap ops in all (where memory is
// short for that, also with all ops of each fourth or second block), the ZeRO level, the precision
// where pins leave a choice, and the schedule: all that exist for so many stages and microbatches,
// of 2 to 4 chunks where a schedule may have any number, and of as many (up to 8) as leave no part
// more than a block; but not a dominated schedule (schedule::Description::dominated_by) where the
// dominating one exists. Of several chunks the first part and the last need no block.
//
// Beside these rectangles, rows of unequal submeshes (search/space/submeshes.h) of tensor and
// data ranks, by 1f1b and eager_1f1b, and gpipe where it is pinned. A microbatch has the same
// samples on all stages: a number that the data ranks of each divide. No solver chooses
// recomputed blocks there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "search/search.h"

namespace perigee::search {

inline constexpr int64_t kLongSequence = 16384, kLeastPart = 4096;

// Returns the divisors of n in ascending order.
std::vector<int64_t> divisors(int64_t n);

struct Bounded {
  Choice choice;
  const Layers* layers = nullptr;
  double bound = 0;  // seconds, by the model
};

// Combinations of rows of submeshes and of settings. There are many, so choices are made on demand.
struct HeterogeneousSpace {
  struct One {
    double bound = 0;  // seconds, by the model
    int32_t setting = 0, row = 0;
  };
  std::vector<Choice> settings;  // `micro` is the samples of all ranks
  std::vector<std::vector<Submesh>> rows;
  std::vector<One> list;

  Choice choice(const One& one) const;
};

class Space {
 public:
  // Keeps the request by reference and asks it for a graph. Throws Error for pins that do not
  // apply to the model.
  Space(const Request& request, const cost::Cluster& cluster);

  // Returns the most samples of a microbatch on a rank; its divisors are searched. At least two
  // where stages may have different numbers.
  int64_t most_samples() const;
  // Returns the samples for which the tables' graph is captured: a multiple of most_samples(), so
  // that each expert rank can have the most.
  int64_t captured() const;

  // Returns the combinations that the tables have layers for, in any order. Ends early where
  // `stop` returns true, once there is one.
  std::vector<Bounded> combinations(LayerTables& tables, const CostModel& model, int64_t blocks,
                                    const std::function<bool()>& stop);

  // Returns the combinations of unequal submeshes.
  HeterogeneousSpace heterogeneous(LayerTables& tables, const CostModel& model, int64_t blocks,
                                   const std::function<bool()>& stop);

  // Throws Error: there is no combination, with the last reason.
  [[noreturn]] void fail_none() const;

 private:
  struct Made;
  struct Recompute {  // as in Choice
    bool checkpoint = false, selective = false;
    int64_t every = 1;
    void set(Choice& choice) const;
  };
  void add(Made& made, Choice choice) const;
  void add_levels(Made& made, Choice choice) const;
  void add_schedules(Made& made, Choice choice, const Layers& layers) const;
  bool solver_chooses() const;
  // Returns whether each group of so many adjacent ranks lies within a node.
  bool within_node(int64_t ranks) const;
  // The options of a choice whose mesh is known: ZeRO levels, and recomputed blocks and ops
  // (`solved`: a solver chooses the blocks).
  std::vector<int> levels() const;
  std::vector<Recompute> recompute_options(int64_t blocks, const BlockRow& row,
                                           bool solved = false) const;
  bool may_be_heterogeneous() const;
  std::vector<std::vector<Submesh>> rows(int64_t blocks) const;
  std::vector<Choice> settings(int64_t blocks, const BlockRow& row) const;
  bool suits(const Choice& setting, const std::vector<Submesh>& row) const;

  const Request& request_;
  const cost::Cluster& cluster_;
  std::string why_not_;                      // the last refusal
  int64_t node_;                             // ranks of the innermost level
  int64_t samples_;                          // most of a microbatch
  bool splits_;                              // samples are independent: any number of microbatches
  std::vector<int64_t> experts_, contexts_;  // sizes of these axes
};

}  // namespace perigee::search
