#include "train/profile_job.h"

#include <fmt/format.h>

#include <chrono>
#include <set>

#include "search/report.h"
#include "train/auto_plan.h"
#include "train/known.h"
#include "train/local_cluster.h"
#include "train/profiling.h"
#include "train/repeats.h"
#include "train/step_spec.h"
#include "train/together.h"

namespace perigee::train {
namespace {

using nlohmann::json;

// Of what is left of the budget a plan may take one part in so many, where there may be others.
constexpr double kShare = 4;

using Progress = std::function<void(int64_t, int64_t)>;

// What a plan carries out, without what is said of it.
std::string carried_out(plan::Plan plan) {
  plan.decisions.clear();
  plan.prediction = {};
  return plan::print(plan);
}

// Says, on rank 0, which plan is measured next.
class Rounds {
 public:
  Rounds(const Task& task, const job::Job& job) : task_(task) { task_.job = job; }

  // Notes that the plan is measured.
  void begin(const Planned& planned) {
    measured_.insert(carried_out(planned.plan));
    ++plans_;
    searches_ = searches_ || planned.found;
  }

  // Returns how much of the seconds that are left the plan may take: there may be others.
  double share_of(double left) const { return searches_ ? left / kShare : left; }

  // Returns it, or "" where none is left.
  std::string next() {
    if (!task_.plan_file.empty() || task_.plain) return "";
    const auto planned = plan_task(task_);
    stands_ = measured_.contains(carried_out(planned.plan));
    if (!stands_) return plan::print(planned.plan);
    if (!planned.found) return "";
    chosen_ = search::to_string(planned.found->best.choice);
    const auto& job = task_.job;
    AutoPlanner planner(planned.source, job, planned.plan.mesh.size(), task_.runtime_folder,
                        multiplies_eight_bits(job, /*foretold=*/false, task_.runtime_folder));
    const auto strategy = planner.runner_up(
        *planned.found, [&](const json& other) { return tried_.contains(other.dump()); });
    stands_ = !strategy;
    if (!strategy) return "";
    tried_.insert(strategy->dump());
    return planner.plan_of(*strategy, {}).dump();
  }

  // Returns what there is to say of several plans as sentences; "" of one.
  std::string describe(double budget) const {
    std::string text;
    if (plans_ > 1) text += fmt::format("{} plans were measured\n", plans_);
    if (!chosen_.empty()) text += fmt::format("auto takes {}\n", chosen_);
    if (!stands_) {
      text += fmt::format(
          "another plan may be faster: the budget of {} s (--seconds) was used up before it was "
          "measured\n",
          budget);
    }
    return text;
  }

 private:
  Task task_;
  std::set<std::string> measured_;  // plans
  std::set<std::string> tried_;     // strategies of others
  int plans_ = 0;
  bool searches_ = false;  // the strategy is `auto`
  std::string chosen_;
  bool stands_ = true;  // no other is to be measured
};

// Measures the session's plan. All ranks call it.
Profiled measure(Session& session, std::shared_ptr<const Source> source,
                 const ProfileOptions& options, const job::RankPlace& place,
                 const Progress& progress) {
  const auto& shared = session.blueprint;
  const auto& job = session.job;
  const auto programs = compile::compile_all(shared.training, shared.plan,
                                             step_spec(job, shared.training), session.traces);
  // By itself rank 0 runs programs shortened anyway.
  const auto repeats = job.profile.parallel ? find_repeats(programs, shared.plan.mesh) : Repeats();
  StandsFor stands_for;
  const auto shorten = [&](compile::Program program) {
    auto shortened = leave_out(std::move(program), repeats);
    stands_for = std::move(shortened.stands_for);
    return std::move(shortened.program);
  };
  session.trainer =
      std::make_unique<RankTrainer>(shared, job, session.connection, session.traces, shorten);
  initialise(*session.trainer, source.get());
  source.reset();
  const auto here = job.profile.parallel ? place.local_world : 1;
  auto times = times_of(session.database, *session.connection.device, job, here);
  auto done = profile_programs(programs, *session.trainer, stands_for, shared.plan.mesh, job,
                               session.connection, *open_data(job, cut_of(shared.plan)).training,
                               times, options, progress);
  done.left_out = repeats.left_out();
  session.trainer.reset();
  return done;
}

}  // namespace

std::string profile_job(const Task& task, Session& session, const ProfileOptions& options,
                        const job::RankPlace& place, const ProfileProgress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  const auto left = [&] {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    return options.seconds - passed.count();
  };
  const auto all_ranks = everyone(*session.communicator);
  const bool root = session.communicator->rank() == 0;
  auto given = session.job;  // its batch.global may not fit a plan
  Rounds rounds(task, given);
  Profiled done;
  auto rest = options;
  std::string plan;
  for (int64_t round = 1;; ++round) {
    std::shared_ptr<const Source> source;
    plan_session(task, session, plan, source,
                 [&](const Planned& planned) { rounds.begin(planned); });
    const auto tell = [&](int64_t count, int64_t all) {
      if (progress) progress(round, count, all);
    };
    auto part = rest;
    part.seconds = share_number(rounds.share_of(left()), *all_ranks);
    done.add(measure(session, std::move(source), part, place, root ? tell : Progress()));
    const auto ask = [&] {
      plan = rounds.next();
      if (left() <= 0) plan.clear();
    };
    run_together(*all_ranks, given, root ? std::function<void()>(ask) : nullptr);
    plan = share_text(std::move(plan), *all_ranks);
    if (plan.empty()) return root ? describe(done) + rounds.describe(options.seconds) : "";
    rest.again = given.profile.again = false;
    session.job = given;
  }
}

}  // namespace perigee::train
