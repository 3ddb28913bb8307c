// The strategy "auto", and what strategy scripts may ask while they are written: search/ on a job's
// model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "job/job.h"
#include "lua/planner.h"
#include "search/search.h"
#include "train/known.h"
#include "train/planning.h"

namespace perigee::train {

class AutoPlanner : public lua::Planner {
 public:
  // `runtime_folder` has the shipped cluster descriptions; "" for none. `eight_bits` as
  // methods::Request has it.
  AutoPlanner(std::shared_ptr<const Source> source, const job::Job& job, int64_t world,
              std::string runtime_folder, bool eight_bits = false);

  // Returns the best plan under the pins, of which methods may be `defined`. Throws Error as
  // search::find.
  search::Found find(const nlohmann::json& pins, const lua::Defined& defined = {});

  // Returns the strategy of one of the found plan's others that should be measured: it would be
  // faster if the estimates in its time were about as much too long as those of the best plan's
  // ops, which were measured. Nothing where there is none. Those that are to `skip` are left aside.
  std::optional<nlohmann::json> runner_up(const search::Found& found,
                                          const std::function<bool(const nlohmann::json&)>& skip);

  nlohmann::json plan(const nlohmann::json& pins, const lua::Defined& defined) override;
  nlohmann::json candidates(const nlohmann::json& pins, int64_t most,
                            const lua::Defined& defined) override;
  nlohmann::json search(const nlohmann::json& pins, const nlohmann::json& options,
                        const lua::Defined& defined) override;
  nlohmann::json estimate(const nlohmann::json& strategy, const nlohmann::json& pins,
                          const lua::Defined& defined) override;
  nlohmann::json costs(const nlohmann::json& strategy, const std::string& method,
                       const lua::Defined& defined) override;
  nlohmann::json plan_of(const nlohmann::json& strategy, const lua::Defined& defined) override;
  nlohmann::json measure(const nlohmann::json& strategy, double seconds,
                         const lua::Defined& defined) override;

 private:
  search::Request request(const nlohmann::json& pins, const lua::Defined& defined) const;
  // Returns what a plan takes without each of the pins, with which none fits; "" where none does
  // without either. Looks for so many seconds; nothing: as long as it takes.
  std::string without_pins(const nlohmann::json& pins, const lua::Defined& defined,
                           std::optional<double> seconds);
  methods::Request method_request() const;
  // Returns what was measured, or nothing where the pins ask for estimates.
  cost::Measurements& times(const search::Pins& pins);
  // Makes the plan. Returns the graph that it is of.
  const graph::Graph& make(const nlohmann::json& strategy, const lua::Defined& defined,
                           compile::TraceSource& traces, plan::Plan& plan) const;
  compile::Programs compile(const nlohmann::json& strategy, const lua::Defined& defined,
                            plan::Plan& plan, compile::TraceSource& traces) const;
  nlohmann::json describe(const compile::Programs& programs, const plan::Plan& plan,
                          const search::MemoryModel& model = {});

  std::shared_ptr<const Source> source_;
  const job::Job& job_;
  int64_t world_;
  bool eight_bits_;
  cost::Cluster cluster_;
  Known known_;
  cost::NoMeasurements estimates_;
  std::map<std::string, nlohmann::json> plans_;     // by pins
  std::map<std::string, nlohmann::json> searches_;  // by pins and options
};

}  // namespace perigee::train
