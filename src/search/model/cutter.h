// Finds the best cut of the blocks into the parts of a choice's pipeline, within the memory limit.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "search/cut/heterogeneous_cut.h"
#include "search/model/limits.h"
#include "search/model/stage/part_rules.h"
#include "search/model/stage/priced_stages.h"
#include "search/model/stage/stage_prices.h"
#include "search/model/step_timer.h"
#include "search/model/transfers.h"

namespace perigee::search {

struct CutParts {
  std::vector<PartBlocks> parts;  // empty: no cut fits
  // Where none fits: the least bytes that one needs; infinity where unknown.
  double least_bytes = std::numeric_limits<double>::infinity();
  // Whether there was time to prove that no homogeneous cut has faster microbatches, and, with one
  // stage, that fewer recomputed blocks do not fit.
  bool best = true;
};

// Returns the fewest recomputed blocks with which a stage of one part and this length fits into
// memory; nothing where none suffice.
std::optional<int> recomputed_to_fit(PricedStages& stages, const PartRules& rules, int stage,
                                     int length);

// Returns all cuts of the choice's parts, as the row whose stages these are; it keeps the arguments
// by reference.
HeterogeneousRow row_of_parts(PricedStages& stages, const PartRules& rules);

// Returns the parts of these lengths, with the recomputed blocks that each stage needs to fit.
std::vector<PartBlocks> parts_of(PricedStages& stages, const PartRules& rules,
                                 const std::vector<int>& lengths);

class Cutter {
 public:
  // All kept by reference.
  struct Input {
    const Folded& folded;
    const cost::Cluster& cluster;
    const Limits& limits;
    const PartRules& rules;
    const StagePrices& prices;
    const Transfers& transfers;
    const StepTimer& timer;
  };
  explicit Cutter(const Input& input) : in_(input) {}

  // Returns the pinned parts, or the best ones that fit, of those with the pinned balance. Cuts of
  // more seconds than `exact_below` need not be the best. Where there are many cuts and a balance
  // is pinned, some are left out: of several parts a stage all but the one with the fastest slowest
  // stage, and cuts where both stages and blocks are heterogeneous.
  CutParts cut(PricedStages& stages, double exact_below) const;

  // Returns whether all cuts of a pipeline were timed, where the best takes `seconds`.
  bool times_all_cuts(const Choice& choice, double seconds, double exact_below) const;

 private:
  // Arithmetic that a stage may have; `most` infinite: any.
  struct Window {
    double least = 0, most = std::numeric_limits<double>::infinity();
  };
  bool allows(const Window& window, const PartBlocks& part) const;
  // Returns the best cut whose stages are within the window.
  CutParts cut_within(PricedStages& stages, const Window& window, double exact_below) const;
  // Returns the best cut with the pinned balance. `free`: the best without it.
  CutParts cut_balanced(PricedStages& stages, const std::vector<PartBlocks>& free,
                        double exact_below) const;
  // Returns the one part of a pipeline without stages.
  CutParts single_part(PricedStages& stages) const;
  // Returns the number of recomputed blocks with which one stage of all blocks is fastest (an
  // option for each block: solve::AssignProblem); nothing where it does not fit with all
  // recomputed. `best`: whether there was time to find the fewest; otherwise the number may
  // not fit.
  std::optional<int> fewest_recomputed(const StagePlace& place, bool& best) const;
  // Homogeneous stages of one part.
  CutParts cut_homogeneous(PricedStages& stages, const Window& window) const;
  // Heterogeneous stages of one part, or pinned ones.
  CutParts cut_heterogeneous(PricedStages& stages, const Window& window, double exact_below) const;
  // Stages of several parts.
  CutParts deal_parts(PricedStages& stages) const;

  // Seconds left for solvers.
  double seconds_left() const;

  Input in_;
};

}  // namespace perigee::search
