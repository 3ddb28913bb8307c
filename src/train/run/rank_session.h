// The state of one rank while a command trains, evaluates, measures or writes text.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "job/job.h"
#include "job/place.h"
#include "profile/database.h"
#include "profile/traces.h"
#include "train/generate/generator.h"
#include "train/plan/make_plan.h"
#include "train/plan/step_prediction.h"
#include "train/ranks/blueprint.h"
#include "train/ranks/connect.h"
#include "train/ranks/shared_settings.h"
#include "train/step/rank_trainer.h"
#include "train/task/open_model.h"
#include "train/task/task.h"

namespace perigee::train {

struct RankSession {
  RankSession(const Task& task, Connection met);

  job::Job job;
  Connection connection;
  exec::Communicator* communicator;  // the connection's
  profile::Database database;
  profile::TraceDatabase traces;
  Blueprint blueprint;
  std::optional<StepPrediction> step_prediction;  // on rank 0
  std::vector<int64_t> checkpoint_bytes;          // on rank 0: checkpoint_copies
  std::string memory;                             // on rank 0: memory_json
  std::unique_ptr<RankTrainer> trainer;
  std::unique_ptr<Generator> generator;  // of commands that generate text
};

struct CompiledPlan;  // train/plan/task_plan.h

// Makes the session's blueprint on rank 0, by the task's strategy or from the plan in `plan_text`
// (JSON), and shares it. All ranks call it. On rank 0 `source` receives the model, and `begin` is
// called with the plan while the other ranks wait.
const Blueprint& plan_session(const Task& task, RankSession& session, const std::string& plan_text,
                              std::shared_ptr<const ModelSource>& source,
                              const std::function<void(const CompiledPlan&)>& begin = nullptr);

// Sets the first values of parameters and buffers; where neither the job nor the blueprint defines
// them, to those of rank 0's model. `source` is nullptr on the other ranks.
void initialise(
    RankTrainer& trainer, const ModelSource* source,
    const RankTrainer::Done& done = [](int64_t, int64_t) {});

// Runs `body` on a rank's session. After an error the session is not destroyed until the process
// ends: pending transfers may still write to its memory, and waiting for them takes another
// time-out. `failed` is called in the exception handler, before the other ranks are notified.
template <class Body>
auto run_rank(const Task& task, Connection connection, const Body& body,
              const std::function<void()>& failed = {}) {
  const auto communicator = connection.communicator;
  std::unique_ptr<RankSession> session;
  try {
    session = std::make_unique<RankSession>(task, std::move(connection));
    return body(*session);
  } catch (const std::exception& error) {
    if (failed) failed();
    communicator->abort(error.what());
    [[maybe_unused]] const auto* leaked = session.release();
    throw;
  }
}

// Runs `body` on the session of the rank at `place`; with cluster.in_process on those of all ranks,
// as threads of this process, and returns the result of rank 0. Rethrows the first error.
template <class Body>
auto run_session(const Task& task, const job::RankPlace& place, const Body& body) {
  const auto job = completed(task);
  if (!job.cluster.in_process || place.world == 1) {
    return run_rank(task, connect(job, place, task_settings(task)), body);
  }
  auto connections = connect_threads(job, place.world);
  std::exception_ptr first;
  std::mutex mutex;
  // Later errors are consequences of the first.
  const auto failed = [&] {
    std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
  };
  const auto guarded = [&](size_t rank, const auto& use) {
    try {
      use(run_rank(task, connections[rank], body, failed));
    } catch (...) {
      failed();
    }
  };
  std::vector<std::thread> others;
  for (size_t rank = 1; rank < connections.size(); ++rank) {
    others.emplace_back([&, rank] { guarded(rank, [](auto&&) {}); });
  }
  decltype(run_rank(task, connections[0], body)) result;
  guarded(0, [&](auto&& mine) { result = std::move(mine); });
  for (auto& thread : others) thread.join();
  if (first) std::rethrow_exception(first);
  return result;
}

}  // namespace perigee::train
