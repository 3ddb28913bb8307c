// The keeper of a job whose hosts come and go: a process of one host's launcher with a store, by
// way of which the launchers register for a round (membership.h) and are told when it is over.
//
// Keys of the store:
//   settings          of the keeper's host (job::HostAgreement)
//   formed            exists once a round was formed
//   in                registrations, one a line
//   out/ID/ATTEMPT    the verdict on a registration
//   stop/ROUND/N      the N-th order (from 1) to the ranks of a round: "save" or "over"
//   left              counts the hosts that have read that the job has ended
#pragma once

#include <sys/types.h>

#include <string>

#include "base/network/store_message.h"
#include "membership.h"
#include "signals.h"

namespace perigee::command {

// HOST:PORT.
struct Endpoint {
  std::string host = "127.0.0.1";
  int port = 0;
};

struct KeeperOptions {
  Endpoint at;
  std::string owner;  // Registration::id of its own host
  store::KeyedHash keyed_hash;
  std::string settings;
  MembershipOptions membership;
};

// The keeper's process, which ends with this one, or once the job has ended on all hosts.
class Keeper {
 public:
  // Listens and forks. Throws Error (Status::failed) where the port is in use or the system has no
  // process left.
  Keeper(const KeeperOptions& options, const Signals& signals);
  ~Keeper();  // kills it
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // Once the job has ended: waits, at most 4 s, for the other hosts to learn that.
  void wait_for_hosts();

 private:
  pid_t pid_ = -1;
};

}  // namespace perigee::command
