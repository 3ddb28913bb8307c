// The launcher: forks the ranks of this host, watches them, ends all of them when one fails or the
// user stops them, and starts a failed job again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "job/host_agreement.h"
#include "round.h"

namespace perigee::command {

struct LaunchOptions {
  int64_t ranks = 1;        // on this host
  int64_t nodes = 1;        // hosts, at most
  int64_t least_nodes = 0;  // with fewer the job waits; 0: `nodes`
  int64_t node_rank = -1;   // -1: 0 of a fixed number of hosts, else as the hosts come
  // HOST:PORT, required with several nodes. Where hosts come and go, one or several, with commas:
  // the first whose host lives decides which hosts take part.
  std::string rendezvous;
  std::string interface;  // for transfers between hosts; "": by the route to the rendezvous
  std::string secret;     // of the job; "": on one host, a random one
  std::optional<double> stop_seconds = 1.5;  // RoundOptions::stop_seconds
  std::string lost_work;  // for the message after such a signal: the work that is lost
  // Called in this process before the ranks of a round are started. `job`: a random id, the same in
  // all rounds and, where hosts change, on all hosts. `again`: the job has trained before.
  std::function<void(const std::string& job, bool again)> before_round = [](auto&&...) {};
  int64_t max_restarts = 0;      // of a job whose rank failed
  double backoff_seconds = 1;    // before the first restart; doubles with each, up to a minute
  double timeout_seconds = 60;   // for the hosts to come
  job::HostAgreement agreement;  // where hosts come and go
};

// Returns whether hosts may come and go, or come back after a failure: they then agree on
// each round.
bool hosts_change(const LaunchOptions& options);

// Runs `body` in one forked process for each rank of this host (run_round). Returns 0 when all
// ranks did, else the status of the first that failed, and shows only its message; a message of a
// rank that only lost its peers ("[communicator]") is shown where no rank failed by itself. SIGINT,
// SIGTERM and SIGHUP end the job.
//
// A job whose rank failed is started again up to `max_restarts` times, on as many hosts as there
// are (`least_nodes` to `nodes`), after a call of `before_round`. Status 2 and 3 are not: a restart
// does not mend the command or the job. Throws Error when a port cannot be bound, the system has no
// descriptor or process left, or the hosts do not come.
int launch(const LaunchOptions& options, const RankBody& body);

}  // namespace perigee::command
