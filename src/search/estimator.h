// Turns combinations into candidates: cuts them into stages within the memory limit, by the model
// and its correction factors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "search/corrections.h"
#include "search/explain/features.h"
#include "search/model/cost_model.h"
#include "search/rank_limits.h"
#include "search/search.h"
#include "search/shortage.h"

namespace perigee::search {

class Estimator {
 public:
  // Results of judged programs and priced combinations.
  struct Learnt {
    Corrections corrections;  // simulated / modelled
    Features features;
    Shortage shortage;
  };
  // Keeps all by reference.
  Estimator(const Request& request, const Folded& folded, LayerTables& tables,
            simulate::OpCosts& costs, const RankLimits& limits, Learnt& learnt,
            std::function<double()> seconds_left)
      : request_(request),
        folded_(folded),
        tables_(tables),
        costs_(costs),
        limits_(limits),
        learnt_(learnt),
        seconds_left_(std::move(seconds_left)) {}

  // From now on adds `extra_bytes` to a rank's limit, and keeps candidates that fit if their
  // programs take `slack` times the expected memory.
  void allow(double extra_bytes, double slack);

  // Returns the model for programs that take `times` the memory that it counts.
  const CostModel& model_of(double times);

  // Returns the choice's tables; for unequal submeshes those of the first stage.
  const Layers* tables_of(const Choice& choice);

  // Returns whether a combination that needs so many bytes by the model is known not to fit.
  bool is_beyond(const Choice& choice, double needed_bytes) const;

  // Returns the combination where it fits; and variants of one with a selective checkpoint that
  // recompute more and more blocks as a whole, where memory is short or a better cut may be faster;
  // where blocks differ, each also cut by their arithmetic.
  // Where none fits, `needed_bytes` is set to the bytes of the one that needs the least, or to 0.
  // Estimates of more seconds than `exact_below` may be too low.
  std::vector<Candidate> candidates_of(const Choice& choice, const Layers& layers,
                                       double exact_below, double& needed_bytes);

 private:
  double least_share(Choice choice) const;
  std::optional<Estimate> fit(const Choice& choice, const Layers& layers, double& least_bytes,
                              double exact_below);
  bool may_offload(const Choice& choice, const Layers& layers, double least_bytes) const;
  double states_of(const Choice& choice, const Layers& layers) const;
  std::optional<Candidate> estimate(Choice choice, const Layers& layers, double exact_below,
                                    double& needed_bytes);
  std::optional<Candidate> balanced(const Candidate& candidate) const;

  const Request& request_;
  const Folded& folded_;
  LayerTables& tables_;
  simulate::OpCosts& costs_;
  const RankLimits& limits_;
  Learnt& learnt_;
  std::function<double()> seconds_left_;
  std::map<double, std::unique_ptr<CostModel>> models_;  // by factor of memory
  double slack_ = 1;        // least share of the modelled memory that programs may take
  double extra_bytes_ = 0;  // of a rank, above the limit
};

}  // namespace perigee::search
