// Questions of strategies about their job, for perigee.solver.plan and candidates and
// perigee.profiler. The part that links LibTorch implements it.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "methods/method.h"

namespace perigee::lua {

// The methods that a script has defined, which its strategies may name.
using Defined = std::vector<std::shared_ptr<const methods::Method>>;

class Planner {
 public:
  virtual ~Planner() = default;

  // Returns the best strategy under the pins (search/space/choice.h) as plain data: {strategy,
  // seconds, lower_bound (no plan takes less, by the model that seconds are of), stopped (by a
  // time limit)}. Throws Error, with Status::infeasible where none fits. Methods that are pinned
  // may be `defined`.
  virtual nlohmann::json plan(const nlohmann::json& pins, const Defined& defined) = 0;

  // Returns the best `most` of the model, best first: {strategy, seconds, bytes, text, tensor,
  // data, pipe, microbatches, micro, zero, ...}.
  virtual nlohmann::json candidates(const nlohmann::json& pins, int64_t most,
                                    const Defined& defined) = 0;

  // Searches by trials (search/trials.h; `options` as parse_trials reads them), each the best plan
  // under the pins and one combination's. Returns {strategy, seconds, bytes, ended, combinations,
  // trials: [{options, seconds, bytes, strategy} or {options, refused}]}. Throws Error, with
  // Status::infeasible where none fits.
  virtual nlohmann::json search(const nlohmann::json& pins, const nlohmann::json& options,
                                const Defined& defined) = 0;

  // Returns {seconds, bubble_ratio, measured_share, peak_bytes} of a strategy's plan, by the
  // simulator: with times measured here, and estimates for the rest. Of `pins` only the factors of
  // memory count (search/space/memory_model.h).
  virtual nlohmann::json estimate(const nlohmann::json& strategy, const nlohmann::json& pins,
                                  const Defined& defined) = 0;

  // Returns the costs of a strategy's methods (search/explain/method_costs.h), a list of {method,
  // seconds, bytes}, with `own` where the method states it itself, or {method, refused}; of
  // `method` alone where it is not empty.
  virtual nlohmann::json costs(const nlohmann::json& strategy, const std::string& method,
                               const Defined& defined) = 0;

  // Returns the times of a strategy's plan by scope, pass and op (simulate/op_table.h), a
  // list of {scope, backward, op, runs, seconds, flops, bytes, measured_share}, with `stream`
  // of collectives.
  virtual nlohmann::json op_times(const nlohmann::json& strategy, const Defined& defined) = 0;

  // Returns the automatic stages of a pipeline and their table (search/stages/plan_stages.h, with
  // its options). Throws Error, with Status::infeasible where none fit.
  virtual nlohmann::json stage_table(const nlohmann::json& options, const Defined& defined) = 0;

  // Returns a strategy's plan, as plan::print has it.
  virtual nlohmann::json plan_of(const nlohmann::json& strategy, const Defined& defined) = 0;

  // Measures the ops of a strategy's plan on this machine, for at most so many seconds, and returns
  // the fields of `estimate`, with `ops` and `measured`.
  virtual nlohmann::json measure(const nlohmann::json& strategy, double seconds,
                                 const Defined& defined) = 0;
};

}  // namespace perigee::lua
