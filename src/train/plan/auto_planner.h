// The strategy "auto" and the planner of strategy scripts: search/ applied to a job's model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "job/job.h"
#include "lua/planner.h"
#include "search/search.h"
#include "train/measure/recorded_profile.h"
#include "train/plan/local_cluster.h"
#include "train/plan/make_plan.h"

namespace perigee::train {

class AutoPlanner : public lua::Planner {
 public:
  // `runtime_folder` has the shipped cluster descriptions; "" for
  // none. `eight_bits`: methods::PlanRequest::eight_bits.
  AutoPlanner(std::shared_ptr<const ModelSource> source, const job::Job& job,
              const HostedRanks& ranks, std::string runtime_folder, bool eight_bits = false);

  // Returns the best plan under the pins, whose methods may include those that a script has
  // `defined`. Throws Error as search::find.
  search::Found find(const nlohmann::json& pins, const lua::Defined& defined = {});

  // Returns the strategy of another of the found plans that should be measured next, or nothing:
  // one that would be faster than the best plan if its estimated times were as much too long as the
  // estimates of the best plan's ops were. Plans for which `skip` returns true are left out.
  std::optional<nlohmann::json> runner_up(const search::Found& found,
                                          const std::function<bool(const nlohmann::json&)>& skip);

  // Returns the reasons for a plan of a strategy that has the methods of a candidate that a search
  // of this planner returned, with that plan; nothing for other strategies. Compiles the plan.
  std::shared_ptr<search::Found> explain(const methods::StrategySpec& strategy, plan::Plan plan,
                                         const graph::Graph& graph);

  // Returns the search for stages of this planner whose stages the strategy has; nullptr: none.
  std::shared_ptr<const nlohmann::json> stages_of(const methods::StrategySpec& strategy) const;

  nlohmann::json plan(const nlohmann::json& pins, const lua::Defined& defined) override;
  nlohmann::json candidates(const nlohmann::json& pins, int64_t most,
                            const lua::Defined& defined) override;
  nlohmann::json search(const nlohmann::json& pins, const nlohmann::json& options,
                        const lua::Defined& defined) override;
  nlohmann::json estimate(const nlohmann::json& strategy, const nlohmann::json& pins,
                          const lua::Defined& defined) override;
  nlohmann::json costs(const nlohmann::json& strategy, const std::string& method,
                       const lua::Defined& defined) override;
  nlohmann::json op_times(const nlohmann::json& strategy, const lua::Defined& defined) override;
  nlohmann::json plan_of(const nlohmann::json& strategy, const lua::Defined& defined) override;
  nlohmann::json stage_table(const nlohmann::json& options, const lua::Defined& defined) override;
  nlohmann::json measure(const nlohmann::json& strategy, double seconds,
                         const lua::Defined& defined) override;

 private:
  // Sets cluster_, too.
  search::Request request(const nlohmann::json& pins, const lua::Defined& defined);
  // Returns the costs of the best plans with one of the pins removed, where none fits with all; ""
  // where none fits without one either. `seconds`: time limit; nothing: none.
  std::string without_pins(const nlohmann::json& pins, const lua::Defined& defined,
                           std::optional<double> seconds);
  std::shared_ptr<const ModelSource> with_adapters_of(const methods::StrategySpec& strategy) const;
  void use_devices(const search::Pins& pins);
  methods::PlanRequest method_request() const;
  // Returns the measured times, or none where the pins ask for estimates.
  cost::Measurements& times(const search::Pins& pins);
  // Makes the plan and returns its graph, which the next call may replace.
  const graph::Graph& make(const nlohmann::json& strategy, const lua::Defined& defined,
                           compile::TraceSource& traces, plan::Plan& plan) const;
  compile::Programs compile(const nlohmann::json& strategy, const lua::Defined& defined,
                            plan::Plan& plan, compile::TraceSource& traces) const;
  nlohmann::json describe(const compile::Programs& programs, const plan::Plan& plan,
                          const search::Pins& pins = {});

  std::shared_ptr<const ModelSource> source_;           // without adapters
  mutable std::shared_ptr<const ModelSource> adapted_;  // of the last plan
  const job::Job& job_;
  int64_t world_;
  int64_t sharing_ranks_;
  bool eight_bits_;
  cost::Cluster cluster_;  // of the devices that the last pins allow
  const cost::Cluster whole_;
  RecordedProfile recorded_;
  cost::NoMeasurements estimates_;
  std::vector<std::shared_ptr<const search::Found>> made_;  // all searches of the strategy function
  lua::Defined defined_;                                    // methods that these may name
  std::map<std::string, nlohmann::json> plans_;             // by pins
  std::map<std::string, nlohmann::json> candidates_;        // by pins and number
  std::map<std::string, nlohmann::json> estimates_of_;      // by strategy and pins
  std::map<std::string, nlohmann::json> searches_;          // by pins and options
  // Results of stage_table: in order, and by options.
  std::vector<std::shared_ptr<const nlohmann::json>> stages_made_;
  std::map<std::string, std::shared_ptr<const nlohmann::json>> stages_;
};

}  // namespace perigee::train
