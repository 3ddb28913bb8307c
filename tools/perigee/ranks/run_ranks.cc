#include "run_ranks.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "../crash.h"
#include "../host.h"
#include "../launch/limits.h"
#include "../secret.h"
#include "../task.h"
#include "base/fail.h"
#include "base/log_format.h"
#include "job/rank_process.h"
#include "train/run/exit_status.h"

namespace perigee::command {
namespace {

volatile std::sig_atomic_t stop_asked = 0;

// The first signal asks the rank to stop between two steps; the second ends it.
void ask_to_stop(int signal) {
  stop_asked = 1;
  std::signal(signal, SIG_DFL);
}

// Of ranks that this command has started, which kills them at the user's second signal itself. A
// service manager sends one request to all processes, and the launcher passes on its own.
void ask_again(int) { stop_asked = 1; }

void prepare_rank(const Place& place, const RankOptions& ranks, bool launched) {
  job::load_kernels_at_start(place);
  if (ranks.stops_between_steps) stop_on_signals();
  if (ranks.stops_between_steps && launched) {
    std::signal(SIGTERM, ask_again);
    std::signal(SIGINT, ask_again);
  }
  log::set_sink(log::standard_sink(log_prefix(place)));
  report_crashes(fmt::format("rank {}", place.rank));
}

// Runs the one rank of this process, which another launcher has started.
int run_alone(const Place& place, const std::function<void(const Place&)>& body,
              const RankOptions& ranks) {
  prepare_rank(place, ranks, /*launched=*/false);
  try {
    body(place);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perigee: rank %lld: %s\n", static_cast<long long>(place.rank),
                 error.what());
    const auto* known = dynamic_cast<const Error*>(&error);
    std::fflush(nullptr);
    // Not by way of the end of main: the failed rank's transfers may still run.
    const bool fails = !known || known->status() == train::kStopped;
    ::_exit(static_cast<int>(fails ? Status::failed : known->status()));
  }
}

}  // namespace

void stop_on_signals() {
  std::signal(SIGTERM, ask_to_stop);
  std::signal(SIGINT, ask_to_stop);
}

bool stop_requested() { return stop_asked != 0; }

std::string log_prefix(const Place& place) {
  return place.world > 1 ? fmt::format("rank {}", place.rank) : "";
}

int run_ranks(const JobOptions& options, const train::Task& task,
              const std::function<void(const Place&)>& body, const RankOptions& ranks) {
  auto place = job::place_from_environment();
  provide_descriptors(place ? place->local_world : task.world / options.nodes);
  torch_host();  // loaded before the fork: its pages are shared
  const bool changes = options.max_restarts > 0 || options.least_nodes < options.nodes;
  if (changes && (place || task.job.cluster.in_process)) {
    fail("launch",
         "--max-restarts and --nodes MIN:MAX are for ranks that this command starts, but {}: leave "
         "them out",
         place ? "another launcher has started them" : "cluster.in_process has none");
  }
  if (task.job.cluster.in_process) {
    if (place ? place->world > 1 : options.nodes > 1) {
      fail("launch",
           "cluster.in_process = true runs all ranks as threads of one process, but there are "
           "several processes: leave it out");
    }
    return run_alone({.world = task.world, .local_world = task.world}, body, ranks);
  }
  if (place) {
    place->secret = given_secret(options.secret_file, kJobSecret);
    return run_alone(*place, body, ranks);
  }
  auto launched = launch_options(options, task);
  launched.lost_work = ranks.lost_work;
  launched.before_round = ranks.before_round;
  if (hosts_change(launched)) launched.agreement = torch_host().agreement(task, launched.secret);
  return launch(launched, [&](const Place& place) {
    prepare_rank(place, ranks, /*launched=*/true);
    body(place);
    require_flushed();
    return 0;
  });
}

void require_fixed_hosts(const JobOptions& options) {
  if (options.least_nodes == options.nodes) return;
  fail("command", "--nodes MIN:MAX is for train, but this needs a number of hosts");
}

void refuse_cluster(const JobOptions& options) {
  if (options.cluster.empty()) return;
  fail("command", "--cluster is for planning (perigee plan, perigee simulate), but this runs here");
}

}  // namespace perigee::command
