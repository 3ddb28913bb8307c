// Combinations as candidates: cut into stages as far as memory allows, by the model and by what is
// known of programs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "search/corrections.h"
#include "search/features.h"
#include "search/model.h"
#include "search/rank_limits.h"
#include "search/search.h"
#include "search/shortage.h"

namespace perigee::search {

class Estimator {
 public:
  // What is learnt on the way.
  struct Learnt {
    Corrections corrections;  // what programs take of what the model says
    Features features;
    Shortage shortage;
  };
  // All kept by reference.
  Estimator(const Request& request, const Folded& folded, LayerTables& tables, OpCosts& costs,
            const RankLimits& limits, Learnt& learnt, std::function<double()> seconds_left)
      : request_(request),
        folded_(folded),
        tables_(tables),
        costs_(costs),
        limits_(limits),
        learnt_(learnt),
        seconds_left_(std::move(seconds_left)) {}

  // Looks from now on with so many bytes a rank beside what there are, and at what programs of
  // which are this share of what is expected may fit.
  void allow(double more, double slack);

  // Returns the model of programs that take so many times the memory that it counts.
  const Model& model_of(double times);

  // The choice's tables; of unequal submeshes those of the first stage.
  const Layers* tables_of(const Choice& choice);

  // Whether a combination is known not to fit that needs so many bytes by the model.
  bool is_beyond(const Choice& choice, double need) const;

  // The combination where it fits; and of one whose blocks all keep much, with more and more that
  // keep nothing, where it has hardly room or could take less with them (by a better cut). Where
  // none of these fits, `need` are the bytes of the one that needs the least; 0 where they are not
  // known. What takes longer than `worth` may be said to take less than it does.
  std::vector<Candidate> candidates_of(const Choice& choice, const Layers& layers, double worth,
                                       double& need);

 private:
  double least_share(Choice choice) const;
  std::optional<Estimate> fit(const Choice& choice, const Layers& layers, double& least,
                              double worth);
  bool may_offload(const Choice& choice, const Layers& layers, double least) const;
  double states_of(const Choice& choice, const Layers& layers) const;
  std::optional<Candidate> estimate(Choice choice, const Layers& layers, double worth,
                                    double& need);

  const Request& request_;
  const Folded& folded_;
  LayerTables& tables_;
  OpCosts& costs_;
  const RankLimits& limits_;
  Learnt& learnt_;
  std::function<double()> seconds_left_;
  std::map<double, std::unique_ptr<Model>> models_;  // by how many times the memory programs take
  double slack_ = 1;  // the least share of what the model counts that programs may take
  double more_ = 0;   // bytes a rank beside what there are
};

}  // namespace perigee::search
