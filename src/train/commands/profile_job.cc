#include "train/commands/profile_job.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "simulate/report.h"
#include "train/measure/product_ways.h"
#include "train/measure/profiling.h"
#include "train/measure/recorded_profile.h"
#include "train/measure/repeated_blocks.h"
#include "train/plan/auto_planner.h"
#include "train/plan/local_cluster.h"
#include "train/plan/task_plan.h"
#include "train/ranks/share.h"
#include "train/ranks/wait_for_work.h"
#include "train/step/step_spec.h"

namespace perigee::train {
namespace {

using nlohmann::json;

// Where other plans may follow, a plan may use this share of the remaining budget.
constexpr double kShareOfBudget = 0.25;

using Progress = std::function<void(int64_t, int64_t)>;

// Returns the text of the plan without its explanation and prediction: the key of measured plans.
std::string key_of(plan::Plan plan) {
  plan.decisions.clear();
  plan.prediction = {};
  return plan::print(plan);
}

// Chooses, on rank 0, the plan that is measured next.
class PlanRounds {
 public:
  // `on_cpu`: products may have two ways.
  PlanRounds(const Task& task, const job::Job& job, bool on_cpu) : task_(task), on_cpu_(on_cpu) {
    task_.job = job;
  }

  // Adds a plan that is being measured. `remeasure`: known times do not count.
  void begin(const CompiledPlan& compiled, bool remeasure) {
    const auto& planned = compiled.planned;
    measured_.insert(key_of(planned.plan));
    searches_ = searches_ || planned.found;
    if (std::exchange(others_, {})) return;
    ++plans_;
    if (!on_cpu_) return;
    auto ways = ways_to_measure(compiled.programs, compiled.times, remeasure);
    std::erase_if(ways, [&](const auto& way) { return !products_.insert(way.first).second; });
    if (ways.empty()) return;
    others_ = planned.plan;
    // Those that the plan has in the other way are measured in the usual one.
    for (const auto& [name, way] : compiled.plan.products) ways.erase(name);
    others_->products = std::move(ways);
  }

  // Returns whether the next plan is the last one with the other ways of its products.
  bool measures_other_ways() const { return others_.has_value(); }

  // Returns how many of the remaining seconds the plan may use.
  double share_of(double left) const { return searches_ ? kShareOfBudget * left : left; }

  // Returns the next plan (JSON); "" where no other is to be measured.
  std::string next(bool in_time) {
    if (!in_time) others_.reset();
    if (others_) return plan::print(*others_);
    if (!task_.plan_file.empty() || task_.plain) return "";
    const auto planned = plan_task(task_);
    final_ = measured_.contains(key_of(planned.plan));
    if (!final_) return plan::print(planned.plan);
    if (!planned.found) return "";
    chosen_ = search::to_string(planned.found->best.choice);
    const auto& job = task_.job;
    AutoPlanner planner(
        planned.source, job, {planned.plan.mesh.size(), planned.hosts}, task_.runtime_folder,
        multiplies_eight_bits(job, /*for_described_cluster=*/false, task_.runtime_folder));
    const auto strategy = planner.runner_up(
        *planned.found, [&](const json& other) { return tried_.contains(other.dump()); });
    final_ = !strategy;
    if (!strategy) return "";
    tried_.insert(strategy->dump());
    return planner.plan_of(*strategy, {}).dump();
  }

  // Returns sentences about the measured plans; "" where there was one.
  std::string describe(double budget) const {
    std::string text;
    if (plans_ > 1) text += fmt::format("{} plans were measured\n", plans_);
    if (!products_.empty()) {
      text += fmt::format("{} kinds of matrix products were measured in two ways\n",
                          products_.size());
    }
    if (!chosen_.empty()) text += fmt::format("auto takes {}\n", chosen_);
    if (!final_) {
      text += fmt::format(
          "another plan may be faster: the budget of {} s (--seconds) was used up before it was "
          "measured\n",
          budget);
    }
    return text;
  }

 private:
  Task task_;
  bool on_cpu_;
  std::set<std::string> measured_;    // keys of plans
  std::set<std::string> products_;    // measured in two ways
  std::optional<plan::Plan> others_;  // the next plan: the last one with other ways of its products
  std::set<std::string> tried_;       // strategies of runners-up
  int plans_ = 0;
  bool searches_ = false;  // the strategy is `auto`
  std::string chosen_;
  bool final_ = true;  // no other plan is to be measured
};

// Measures the session's plan. All ranks call it.
Profiled measure(RankSession& session, std::shared_ptr<const ModelSource> source,
                 const MeasureOptions& options, const job::RankPlace& place,
                 const cost::Cluster& cluster, const Progress& progress) {
  const auto& shared = session.blueprint;
  const auto& job = session.job;
  const auto programs = compile::compile_all(shared.training, shared.plan,
                                             step_spec(job, shared.training), session.traces);
  // A SoloRun shortens its program itself.
  const auto repeats = job.profile.parallel ? find_repeated_blocks(programs, shared.plan.mesh)
                                            : RepeatedBlocks();
  Represents represents;
  const auto without_repeats = [&](compile::Program program) {
    auto shortened = shorten(std::move(program), repeats);
    represents = std::move(shortened.represents);
    return std::move(shortened.program);
  };
  session.trainer = std::make_unique<RankTrainer>(shared, job, session.connection, session.traces,
                                                  without_repeats);
  initialise(*session.trainer, source.get());
  source.reset();
  const auto concurrent = job.profile.parallel ? place.local_world : 1;
  auto times = times_of(session.database, *session.connection.device, job, concurrent);
  auto done = profile_programs(programs, *session.trainer, represents, shared.plan.mesh, job,
                               session.connection,
                               *data::open_data(job, data::division_of(shared.plan)).training,
                               times, options, cluster, progress);
  done.left_out = repeats.left_out();
  session.trainer.reset();
  return done;
}

}  // namespace

std::string profile_job(const Task& task, RankSession& session, const ProfileOptions& options,
                        const job::RankPlace& place, const ProfileProgress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  const auto left = [&] {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    return options.seconds - passed.count();
  };
  const auto all_ranks = everyone(*session.communicator);
  const bool root = session.communicator->rank() == 0;
  session.database.require_file();
  const auto given = session.job;  // with its batch.global, which may not fit a plan
  auto of_this_machine = given;
  of_this_machine.cluster.file.clear();
  PlanRounds rounds(task, given, session.connection.device->place().is_cpu());
  Profiled done;
  const bool remeasure = options.remeasure || given.profile.remeasure;
  MeasureOptions measure_options{options.seconds, remeasure};
  std::string plan;
  for (int64_t round = 1;; ++round) {
    std::shared_ptr<const ModelSource> source;
    plan_session(task, session, plan, source, [&](const CompiledPlan& compiled) {
      rounds.begin(compiled, measure_options.remeasure);
    });
    const auto report = [&](int64_t count, int64_t all) {
      if (progress) progress(round, count, all);
    };
    measure_options.seconds = share_number(rounds.share_of(left()), *all_ranks);
    const auto cluster = cluster_of(
        of_this_machine, {session.blueprint.plan.mesh.size(), task.hosts}, task.runtime_folder);
    done.add(measure(session, std::move(source), measure_options, place, cluster,
                     root ? report : Progress()));
    const auto choose = [&] {
      const bool in_time = left() > 0;
      plan = rounds.next(in_time);
      if (!in_time) plan.clear();
    };
    wait_for_work(*all_ranks, given, root ? std::function<void()>(choose) : nullptr);
    plan = share_text(std::move(plan), *all_ranks);
    if (plan.empty()) return root ? describe(done) + rounds.describe(options.seconds) : "";
    measure_options.remeasure = remeasure &&
                                share_number(rounds.measures_other_ways(), *all_ranks) > 0;
    session.job = given;
  }
}

}  // namespace perigee::train
