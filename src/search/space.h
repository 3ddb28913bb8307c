// The combinations that a search looks at: all that the job, the model and the pins allow, each
// with a lower bound on its time.
//
// Axes: `tensor` within a node; `expert` within a node (beside tensor both together), for mixtures
// whose experts divide over it; `context` for sequences of at least kLongSequence, in parts of at
// least kLeastPart; `pipe` up to a block a stage; `data` has the rest. A pin lifts those limits.
// Then samples of a microbatch, sequence sharding between tensor ranks, how context ranks attend
// (all_gather or all_to_all; a ring where it is pinned), recomputation of all blocks, each second
// or each fourth (by a solver that is pinned: of any), or of what costs little in all (where
// memory is short for that, also with all of each fourth or second block), the ZeRO level,
// the precision where pins leave a choice, and the schedule: all that exist for so many stages and
// microbatches, of 2 to 4 chunks where a schedule may have any number, and of as many (up to 8) as
// leave no part more than a block; but looped_bfs only where there are no groups for interleaved,
// which holds less, and gpipe, to which eager_1f1b never loses, where it is pinned. Of several
// chunks the first part and the last need no block.
//
// Beside these rectangles, rows of unequal submeshes (search/submeshes.h) of tensor and data ranks,
// by 1f1b and eager_1f1b, and gpipe where it is pinned. A microbatch has the same samples on all
// stages: a number that the data ranks of each divide. Which blocks run again no solver chooses
// there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "search/search.h"

namespace perigee::search {

inline constexpr int64_t kLongSequence = 16384, kLeastPart = 4096;

// Returns them from 1 on.
std::vector<int64_t> divisors(int64_t n);

struct Bounded {
  Choice choice;
  const Layers* layers = nullptr;
  double bound = 0;  // seconds, by the model
};

// Combinations of a row of submeshes and of the rest, which are many: choices are made when they
// are asked for.
struct UnlikeSpace {
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
  // Keeps the request by reference and asks it for a graph. Throws Error for pins that the model
  // has nothing for.
  Space(const Request& request, const cost::Cluster& cluster);

  // Returns the most samples that tables are made for: of a microbatch on a rank, whose divisors
  // are looked at; two at least where stages may have more of them than others.
  int64_t most_samples() const;
  // Returns what the tables' graph is captured at: a multiple, so that each expert rank can have
  // the most.
  int64_t captured() const;

  // Returns the combinations that the tables have layers for, in no order. Stops where `stop` says
  // so, once it has one.
  std::vector<Bounded> combinations(LayerTables& tables, const Model& model, int64_t blocks,
                                    const std::function<bool()>& stop);

  // The same of unequal submeshes.
  UnlikeSpace unlike(LayerTables& tables, const Model& model, int64_t blocks,
                     const std::function<bool()>& stop);

  // Throws Error: there is no combination, with the last reason.
  [[noreturn]] void fail_none() const;

 private:
  struct Made;
  struct Again {  // as in Choice
    bool checkpoint = false, selective = false;
    int64_t every = 1;
    void set(Choice& choice) const;
  };
  void add(Made& made, Choice choice) const;
  void add_levels(Made& made, Choice choice) const;
  void add_schedules(Made& made, Choice choice, const Layers& layers) const;
  bool solver_chooses() const;
  // Whether a node has all of so many ranks next to each other, wherever they begin a group.
  bool within_node(int64_t ranks) const;
  // What ranges over combinations for a choice whose mesh is known: ZeRO levels, and whether blocks
  // run again, how many and what of them (`solved`: a solver says how many).
  std::vector<int> levels() const;
  std::vector<Again> agains(int64_t blocks, const BlockRow& row, bool solved = false) const;
  bool may_be_unlike() const;
  std::vector<std::vector<Submesh>> rows(int64_t blocks) const;
  std::vector<Choice> settings(int64_t blocks, const BlockRow& row) const;
  bool suits(const Choice& setting, const std::vector<Submesh>& row) const;

  const Request& request_;
  const cost::Cluster& cluster_;
  std::string why_not_;                      // the last refusal
  int64_t node_;                             // ranks of the innermost level
  int64_t samples_;                          // most of a microbatch
  bool splits_;                              // samples do not see each other
  std::vector<int64_t> experts_, contexts_;  // sizes of these axes
};

}  // namespace perigee::search
