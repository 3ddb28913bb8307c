// A group whose ranks lie on several hosts, some of them together: shared memory carries what goes
// between ranks of one host, Gloo what goes between hosts. Hosts are numbered in the order in which
// they first occur in the group; the members of a host keep the group's order. Lane j is the j-th
// members of all hosts, for each j below the least number of members of a host.
//
//   all_reduce      each host sums into a part for each lane; a lane sums its part over the hosts;
//                   each host gathers the parts
//   reduce_scatter  each host sums what goes to another rank, and one of its members sends the sum;
//                   by Gloo alone where the workspace has no room for an element of each sum
//   all_gather      one member of each other host receives a part and hands it to the rest
//   broadcast       the same, along a lane
//   all_to_all      parts for other hosts are messages
//
// A sum is taken over the members of each host, in their order, and then over the hosts, so that it
// is bit-equal on all ranks and from run to run; an all-reduce takes three or more hosts in Gloo's
// order. Partial sums have the operand's type, which a sum of integers may overflow: averages
// of integers go by Gloo alone.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/comm/communicator.h"
#include "exec/comm/shared/group.h"
#include "exec/task_thread.h"

namespace perigee::exec {

// Positions of a group's ranks by host.
using HostMembers = std::vector<std::vector<int64_t>>;
// `hosts`: the name of each rank's host, by position.
HostMembers members_of_hosts(std::span<const std::string> hosts);
// Returns the number of lanes.
int64_t lanes_of(const HostMembers& hosts);

class WorkOverHosts;

class GroupOverHosts : public Group {
 public:
  // The groups that carry it out, used by nothing else.
  struct Carriers {
    std::shared_ptr<Group> host;      // the members of this rank's host; nullptr: this rank alone
    std::shared_ptr<Group> lane;      // nullptr: this rank is in none
    std::shared_ptr<Group> between;   // all ranks; for collectives
    std::shared_ptr<Group> messages;  // all ranks; for messages of the group's users
  };
  GroupOverHosts(const std::string& name, const std::vector<int64_t>& ranks, int64_t rank,
                 HostMembers hosts, Carriers carriers, const SharedProcess& process);

  // Queues a collective for the group's thread. Messages start at once.
  std::shared_ptr<Work> transfer(Transfer transfer) override;
  void connect_pairs(const std::vector<Pair>& pairs) override;

 private:
  struct Place {
    int64_t host = 0, member = 0;
  };

  // Returns the member of a host that stands for the member `other` of another host.
  int64_t partner(int64_t host, int64_t other) const {
    return other % std::ssize(hosts_[static_cast<size_t>(host)]);
  }
  bool on_own_host(int64_t position) const { return places_[position].host == own_.host; }
  // Returns whether this rank stands for `position` on its host.
  bool stands_for(int64_t position) const {
    return partner(own_.host, places_[position].member) == own_.member;
  }
  Transfer broadcast_within(const at::Tensor& input, const at::Tensor& output, int64_t root) const;

  void all_reduce(const Transfer& t) const;
  void all_gather(const Transfer& t) const;
  void reduce_scatter(const Transfer& t) const;
  void all_to_all(const Transfer& t) const;
  void broadcast(const Transfer& t) const;
  void barrier() const;
  void carry_out(Transfer& t) const;
  Error failure_of(const WorkOverHosts& work, const std::exception& error) const;
  void run(WorkOverHosts& work);

  HostMembers hosts_;
  std::vector<Place> places_;  // by position
  Place own_;
  int64_t members_;    // of this rank's host
  int64_t lanes_;      // at least 1
  int64_t slots_ = 0;  // pieces of a reduce-scatter that the workspace holds at a time
  Carriers carriers_;
  SharedProcess process_;
  // Of the first collective that failed, with which the later ones fail.
  std::exception_ptr failure_;
  TaskThread thread_;
};

}  // namespace perigee::exec
