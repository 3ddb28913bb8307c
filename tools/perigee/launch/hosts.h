// This host among the hosts of a job that come and go.
#pragma once

#include <string>
#include <vector>

#include "keeper.h"
#include "launch.h"

namespace perigee::command {

// Returns a random id, in hexadecimal digits.
std::string random_id();

// Returns the endpoints of --rendezvous: HOST:PORT, or several with commas; none for "".
// Throws Error.
std::vector<Endpoint> parse_rendezvous(const std::string& text);

// Runs the job's rounds on this host until the job ends; returns the exit status (launch()).
//
// The first endpoint whose host answers has the keeper, which forms the rounds. Where none does,
// this host becomes the keeper if an endpoint is its own: the one with the number of --node-rank,
// else the first whose address is one of this machine. Earlier ones go first: the n-th waits n
// seconds for them. The ranks of each round meet at a store of their own, on the first of the
// round's hosts.
int launch_on_hosts(const LaunchOptions& options, const std::vector<Endpoint>& rendezvous,
                    const RankBody& body);

}  // namespace perigee::command
