#include "launch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/fail.h"
#include "base/log_format.h"
#include "base/network/address.h"
#include "hosts.h"
#include "limits.h"
#include "restarts.h"

namespace perigee::command {
namespace {

constexpr size_t kSecretSize = 32;

// Runs the job's ranks on this host, and again after a failure that a restart may mend.
int launch_here(const LaunchOptions& options, const Endpoint& rendezvous, const RankBody& body) {
  const bool several_nodes = options.nodes > 1;
  const auto node = std::max<int64_t>(0, options.node_rank);
  const auto job = random_id();
  Signals signals;
  for (int64_t restarts = 0;; ++restarts) {
    RoundOptions round{.node = node, .restarts = restarts, .stop_seconds = options.stop_seconds};
    // The ranks of one host get the secret with the memory of this process.
    round.first = {.rank = node * options.ranks,
                   .world = options.nodes * options.ranks,
                   .local_world = options.ranks,
                   .host = rendezvous.host,
                   .port = rendezvous.port,
                   .interface = options.interface,
                   .secret = options.secret.empty() && !several_nodes
                                 ? store::random_bytes(kSecretSize)
                                 : options.secret};
    options.before_round(job, restarts > 0);
    if (node == 0) {
      const auto listening = listen_at(rendezvous.host, rendezvous.port, several_nodes);
      round.listener = Descriptor(listening.socket);
      round.first.port = listening.port;
    }
    const auto end = run_round(std::move(round), signals, body);
    if (end.signal || !may_mend(end.status) || restarts == options.max_restarts) {
      show_cause(end, options.lost_work);
      return end.status;
    }
    const auto pause = backoff(options.backoff_seconds, restarts + 1);
    log::warn("[launch] {}: restart {} of {} from the newest checkpoint in {} s", end.cause,
              restarts + 1, options.max_restarts, std::chrono::duration<double>(pause).count());
    if (const int signal = signals.wait(pause)) {
      show_cause({.status = 1, .signal = signal}, options.lost_work);
      return 1;
    }
  }
}

}  // namespace

bool hosts_change(const LaunchOptions& options) {
  const auto least = options.least_nodes > 0 ? options.least_nodes : options.nodes;
  return options.nodes > 1 && (least < options.nodes || options.max_restarts > 0);
}

std::chrono::milliseconds backoff(double first_seconds, int64_t restart) {
  const double seconds = std::min(60.0, first_seconds * std::pow(2.0, double(restart - 1)));
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

int launch(const LaunchOptions& options, const RankBody& body) {
  if (options.nodes > 1 && options.rendezvous.empty()) {
    fail("launch", "several nodes need --rendezvous HOST:PORT of node 0, but there is none");
  }
  if (options.node_rank < -1 || options.node_rank >= options.nodes) {
    fail("launch", "--node-rank must be from 0 to {}, but got {}", options.nodes - 1,
         options.node_rank);
  }
  const auto rendezvous = parse_rendezvous(options.rendezvous);
  if (hosts_change(options)) return launch_on_hosts(options, rendezvous, body);
  if (rendezvous.size() > 1) {
    fail(
        "launch",
        "--rendezvous must be one HOST:PORT where the hosts are fixed, but got \"{}\": several are "
        "for --nodes MIN:MAX or --max-restarts",
        options.rendezvous);
  }
  return launch_here(options, rendezvous.empty() ? Endpoint{} : rendezvous.front(), body);
}

}  // namespace perigee::command
