// Communication between ranks: one small interface for all back ends (threads of one process, Gloo,
// NCCL). Every collective is asynchronous: the caller waits for its handle before it reads the
// result or writes the operand. The ranks of a group start the same collectives in the same order.
// A sum is taken in a fixed order (the group's; over hosts see shared/over_hosts.h), so that results
// are bit-equal from run to run and on all ranks. An average is the sum divided by the number of
// ranks; a sum of floating-point numbers may overflow. The largest or least of numbers with a NaN is
// NaN. NCCL may drop that NaN, and adds up integers in their own type. In a group of one rank a
// collective copies its input to its output.
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/placement.h"

namespace perigee::exec {

// Nanoseconds of the steady clock.
int64_t now();

struct Collective {
  enum class Kind : uint8_t {
    all_reduce,      // output like input; may be the same tensor
    all_gather,      // output: the inputs joined along `dim`, in group order
    reduce_scatter,  // this rank's part of `dim` of the reduced input
    all_to_all,      // part i of `dim` goes to rank i; received parts are joined along `other_dim`
    broadcast,       // the input of rank `peer` of the group to all outputs, its own included
    send,            // the input to rank `peer` of the group
    receive,         // the output from rank `peer` of the group
    barrier,
  };
  Kind kind = Kind::all_reduce;
  at::Tensor input;   // undefined for receive and barrier, and broadcast away from its root
  at::Tensor output;  // undefined for send and barrier
  mesh::Reduce reduce = mesh::Reduce::sum;
  int64_t dim = 0;
  int64_t other_dim = 0;
  int64_t peer = 0;  // position in the group
};

std::string_view name_of(Collective::Kind kind);

// A collective over contiguous flat buffers, as programs state it and back ends run it. The input
// is the concatenation of the parts for each rank, the output that of the parts from each. Counts
// are in elements. Back ends on the CPU allocate no tensors: `workspace` is all they need.
struct Transfer {
  Collective::Kind kind = Collective::Kind::all_reduce;
  at::Tensor input;
  at::Tensor output;
  mesh::Reduce reduce = mesh::Reduce::sum;
  std::vector<int64_t> input_counts;   // reduce_scatter, all_to_all: elements for each rank
  std::vector<int64_t> output_counts;  // all_gather, all_to_all: elements from each rank
  int64_t peer = 0;
  // compile::workspace_elements() elements of the input's type; overwritten until the
  // collective ends.
  at::Tensor workspace;
  // If set: called before the input is read, and after the output is written.
  std::function<void()> pack;
  std::function<void()> unpack;
};

// The handle of a collective or copy that was started.
class Work {
 public:
  virtual ~Work() = default;
  // Returns when the result may be read (on a GPU: makes the current stream wait). Throws Error
  // naming rank and group when another rank failed or did not join within the time-out.
  virtual void wait() = 0;
  // When it ran, in nanoseconds of now(); valid after wait(), or (on a GPU) after the device was
  // synchronised and settle() was called.
  int64_t began = 0, ended = 0;
  virtual void settle() {}
};

// Memory that Device::allocate() gave for communication, in which buffers of a program's
// collectives lie.
struct CollectiveMemory {
  std::shared_ptr<std::byte> memory;
  int64_t bytes = 0;
  // Identifies the offsets of the group's buffers in the memory, collective by collective: ranks
  // with equal texts start each collective at the same offsets, or in place. "": no buffer lies
  // in it.
  std::string layout;
};

// This rank's end of one group.
class Group {
 public:
  Group(std::string name, std::vector<int64_t> ranks, int64_t rank);
  virtual ~Group() = default;

  const std::string& name() const { return name_; }
  const std::vector<int64_t>& ranks() const { return ranks_; }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  int64_t index() const { return index_; }  // this rank's position
  int64_t rank() const { return ranks_[index_]; }

  // Starts a collective over tensors of any layout, allocating the buffers that it needs. Throws
  // Error for shapes that do not fit it.
  std::shared_ptr<Work> start(const Collective& collective);

  // Starts a collective and waits for it.
  void run(const Collective& collective) { start(collective)->wait(); }

  // Starts a collective over flat buffers. Throws Error for buffers that do not fit the counts.
  std::shared_ptr<Work> start_flat(Transfer transfer);

  // A message's direction, as positions in the group. Compared by sender, then receiver.
  struct Pair {
    int64_t from = 0, to = 0;
    auto operator<=>(const Pair&) const = default;
  };
  // Connects pairs of ranks, of which this rank is one each time, before their first message. Called
  // at most once, by both ranks of each pair: a back end that connects at the first message may
  // wait for a rank that waits for another.
  virtual void connect_pairs(const std::vector<Pair>& /*pairs*/) {}

  // Returns whether a transfer of the kind is work of the device's streams alone, so that the
  // device can record it (exec/recorder.h).
  virtual bool recordable(Collective::Kind /*kind*/) const { return false; }

  // Returns zeroed memory that all ranks of the group map, 64-byte aligned, or nullptr where they
  // cannot. A rank counts its share as frames (exec/memory/allocator.h). Collective: all ranks call
  // it with as many bytes, a multiple of their number. Throws Error when there is not enough.
  virtual std::shared_ptr<std::byte> one_memory(int64_t /*bytes*/) { return nullptr; }

  // Registers memory with the transport: collectives need no copies. Returns the registration, which
  // ends with the pointer, or nullptr where the ranks' layouts differ or the transport has no use
  // for it. Collective: all ranks call it, and drop the pointers, in one order. Throws Error where
  // they do not call it within the time-out, or the transport fails.
  virtual std::shared_ptr<void> register_memory(CollectiveMemory /*memory*/) { return nullptr; }

  // Implements start() and start_flat(), which have checked the buffers; the group has at least
  // two ranks.
  virtual std::shared_ptr<Work> transfer(Transfer transfer) = 0;

 private:
  std::string name_;
  std::vector<int64_t> ranks_;
  int64_t index_;
};

// This rank's end of the job.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world() const = 0;

  // Returns the group of these ranks (this one among them), made at the first call with these ranks
  // and `name`. Collective: all these ranks call it, and ranks that share several groups call it in
  // one order. Throws Error when they do not connect within the time-out.
  virtual std::shared_ptr<Group> group(const std::string& name,
                                       const std::vector<int64_t>& ranks) = 0;

  // Throws Error when another rank has failed or a collective has exceeded the time-out. For back
  // ends whose wait() does not block the host (GPUs).
  virtual void check() {}

  // Tells the other ranks that this one has failed: their waits throw Error with the reason.
  virtual void abort(const std::string& reason) = 0;

  // Makes this rank's end usable again after abort() and forgets collectives that did not end. All
  // ranks call it while none communicates. Returns false, and does nothing, where the job has ended
  // for good, as it has where ranks are processes.
  virtual bool restore() { return false; }
};

// Returns the communicator of a job with one rank.
std::unique_ptr<Communicator> single_communicator();

// Returns a communicator that simulates the other ranks: a collective ends at once, and every rank
// is taken to contribute this rank's data (zeros where that is too short; a sum is the rank's own
// summand; a receive leaves its output as it is). For measuring a rank's compute
// between collectives.
std::unique_ptr<Communicator> echo_communicator(int64_t rank, int64_t world);

}  // namespace perigee::exec
