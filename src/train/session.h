// What one rank has open while a command trains, evaluates or measures.
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
#include "train/blueprint.h"
#include "train/connect.h"
#include "train/forecast.h"
#include "train/host.h"
#include "train/planning.h"
#include "train/rank_trainer.h"
#include "train/task_plan.h"

namespace perigee::train {

struct Session {
  Session(const Task& task, Connection met);

  job::Job job;
  Connection connection;
  exec::Communicator* communicator;  // the connection's
  profile::Database database;
  profile::TraceDatabase traces;
  Blueprint blueprint;
  std::optional<Forecast> forecast;  // on rank 0
  std::unique_ptr<RankTrainer> trainer;
};

// Makes the session's blueprint on rank 0, by the task's strategy or of this plan (JSON), and
// shares it. All ranks call it. `source` receives rank 0's model; `begin` is told of the plan there
// before the others go on.
const Blueprint& plan_session(const Task& task, Session& session, const std::string& plan_text,
                              std::shared_ptr<const Source>& source,
                              const std::function<void(const Planned&)>& begin = nullptr);

// Sets the first values: those of rank 0's model, where the job has none. `source` is nullptr on
// the other ranks.
void initialise(RankTrainer& trainer, const Source* source);

// Runs `body` on a rank's session. What a rank has open when it fails stays so until its process
// ends: transfers that hang may still write to its memory, and waiting for them takes another
// time-out. `failed` is called with the exception current, before the other ranks hear of it.
template <class Body>
auto run_rank(const Task& task, Connection connection, const Body& body,
              const std::function<void()>& failed = {}) {
  const auto communicator = connection.communicator;
  std::unique_ptr<Session> session;
  try {
    session = std::make_unique<Session>(task, std::move(connection));
    return body(*session);
  } catch (const std::exception& error) {
    if (failed) failed();
    communicator->abort(error.what());
    [[maybe_unused]] const auto* open = session.release();
    throw;
  }
}

// The same for the rank of that place, or for all ranks as threads of this process
// (cluster.in_process); then returns what rank 0 does. Rethrows the first error.
template <class Body>
auto run_session(const Task& task, const job::RankPlace& place, const Body& body) {
  const auto job = completed(task);
  if (!job.cluster.in_process || place.world == 1) {
    return run_rank(task, connect(job, place), body);
  }
  auto connections = connect_threads(job, place.world);
  std::exception_ptr first;
  std::mutex mutex;
  // What fails on other ranks once they hear of the first error is not the cause.
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
