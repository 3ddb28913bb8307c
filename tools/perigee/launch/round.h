// The ranks of this host, from their start to the end of the last one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/network/descriptor.h"
#include "job/place.h"
#include "signals.h"

namespace perigee::command {

using Place = job::RankPlace;
using RankBody = std::function<int(const Place&)>;

struct RoundOptions {
  Place first;           // of this host's first rank; the others follow
  int64_t node = 0;      // this host among the job's
  int64_t restarts = 0;  // of the job, after failures
  Descriptor listener;   // the socket of rank 0's store, where that is a rank of this host
  // How long ranks may go on after the user's signal or an order to save; nothing: until they end.
  std::optional<double> stop_seconds = 1.5;
  int orders = -1;  // a descriptor from which Orders are read
};

// Other hosts' orders to the ranks of this one, a byte each.
enum class Order : char {
  save = 's',  // stop after the running step and a checkpoint
  over = 'o',  // the round is over: end at once
};

// How a round ended on this host.
struct RoundEnd {
  int status = 0;           // of the first rank that failed by itself
  std::string cause;        // a sentence: why it failed; "" for status 0
  bool shown = false;       // standard error has the cause
  bool lost_peers = false;  // no rank of this host failed by itself
  int signal = 0;           // the user's, to the launcher
  bool ordered = false;     // another host has given the ranks an order
  bool stopped = false;     // the ranks stopped on request, and have saved what they are to save
};

// Runs `body` in one forked process for each rank of this host and waits for their end. `body`
// returns the rank's exit status, or throws; it runs before any thread exists. A rank that fails
// ends the others: they get SIGTERM and are killed 1.5 s later. A signal to this process reaches
// the ranks as SIGTERM once; the second kills them, and so does the end of `stop_seconds`. A rank
// dies when this process does. Throws Error where the system has no descriptor or process left.
RoundEnd run_round(RoundOptions options, Signals& signals, const RankBody& body);

// In a rank: sends the launcher the reason why it is about to end with status 1; the launcher shows
// that of the first rank. Returns false in other processes. Allocates nothing: signal handlers may
// call it.
bool report_failure(std::string_view reason);

// Writes the cause to standard error, unless it is there. `lost_work`: LaunchOptions::lost_work.
void show_cause(const RoundEnd& end, const std::string& lost_work);

}  // namespace perigee::command
