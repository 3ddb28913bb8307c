// A group of ranks that are processes of one host. A rank publishes where its operands lie; when
// all have, any of them runs pieces of the collective (exec/comm/pieces.h) in all ranks' memory:
// the last one to join, those that wait, and their helper threads where the host has idle cores.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "exec/comm/pieces.h"
#include "exec/comm/rendezvous.h"
#include "exec/comm/shared/peer.h"
#include "exec/comm/shared/slots.h"

namespace perigee::exec {

// What the groups of a process have in common.
struct SharedProcess {
  Store store;
  std::shared_ptr<SharedMemory> memory;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of one wait
  bool crowded = false;  // the host has fewer cores than ranks: a waiting rank sleeps at once
  bool helps = false;    // the process has a helper thread that runs pieces
  // Wakes the helper thread, which is started where there is none.
  std::function<void()> call_helper;
};

class SharedWork;

class SharedGroup : public Group {
 public:
  // `peers`: by position in the group; nullptr at this rank's. `segment`: the group's, as large
  // as GroupLayout::bytes.
  SharedGroup(const std::string& name, const std::vector<int64_t>& ranks, int64_t rank,
              const SharedProcess& process, std::vector<std::shared_ptr<PeerMemory>> peers,
              std::shared_ptr<std::byte> segment);

  std::shared_ptr<Work> transfer(Transfer transfer) override;
  // The first rank's memory, which the others map.
  std::shared_ptr<std::byte> one_memory(int64_t bytes) override;

  // Joins the slots that transfers wait for, and runs pieces of collectives that all ranks have joined
  // where the process's helper does. Returns whether transfers still wait. Any thread calls it.
  bool help();

 private:
  friend class SharedWork;
  // The collectives, or the messages from one rank to another one, in their order.
  struct Channel {
    Ring ring;
    std::vector<int64_t> positions;                   // in the group, of its participants
    int64_t me = 0;                                   // this rank among them
    int64_t next = 0;                                 // number of the next one
    std::deque<std::shared_ptr<SharedWork>> waiting;  // for a free slot
    std::deque<std::shared_ptr<SharedWork>> started;  // end not seen
  };

  Channel& channel(Collective::Kind kind, int64_t peer);
  // With the lock held: joins the slots of works that wait for one, and appends to `complete` those
  // that no other rank misses.
  void join_slots(Channel& channel, std::vector<std::shared_ptr<SharedWork>>& complete);
  bool join(Channel& channel, SharedWork& work);   // returns whether all ranks have joined
  void begin(Channel& channel, SharedWork& work);  // after the last rank has joined
  void resolve(SharedWork& work);
  // Notes the ends of works whose slots have ended.
  void observe(Channel& channel);
  void start(const std::vector<std::shared_ptr<SharedWork>>& complete);
  // Counts this thread among the work's users; returns false where it has ended. Throws Error where
  // an operand cannot be mapped.
  bool enter(SharedWork& work);
  void run_pieces(SharedWork& work);
  void wait(SharedWork& work);
  void rest(Slot& slot, uint32_t seen);
  void finish(SharedWork& work);
  // Returns the positions of the ranks that have not joined the work.
  std::vector<int64_t> missing(const SharedWork& work) const;
  // Throws Error where a rank that the work needs has failed or ended.
  void check_peers(const SharedWork& work) const;
  void check_time(const SharedWork& work, std::chrono::steady_clock::duration waited) const;
  [[noreturn]] void fail_transfer(const SharedWork& work, const std::string& cause) const;

  static constexpr int64_t kLeastSpin = 5'000, kMostSpin = 50'000;  // nanoseconds

  SharedProcess process_;
  std::atomic<int64_t> spin_ = kMostSpin;
  std::vector<std::shared_ptr<PeerMemory>> peers_;
  std::shared_ptr<std::byte> segment_;
  GroupLayout layout_;
  mutable std::mutex mutex_;
  Channel collectives_;
  std::map<std::pair<int64_t, int64_t>, Channel> messages_;  // (from, to)
};

}  // namespace perigee::exec
