// How ranks exchange tensors: one small interface, whatever carries the bytes (threads of one
// process, Gloo, NCCL). Every collective is asynchronous; its handle is waited for before the
// result is read or the operand is written. The ranks of a group start the same collectives in the
// same order. A sum is taken in the group's order, so that results are bit-equal from run to run
// and on all ranks. A group of one rank is the identity.
#pragma once

#include <ATen/core/Tensor.h>

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
    all_gather,      // `dim` of output is `dim` of the inputs one after the other, in group order
    reduce_scatter,  // this rank's part of `dim` of the reduced input
    all_to_all,  // part i of `dim` goes to rank i; what comes in is put together along `other_dim`
    broadcast,   // from rank `peer` of the group; there the input, which is copied to the output
    send,        // the input to rank `peer` of the group
    receive,     // the output from rank `peer` of the group
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

// A collective over contiguous buffers, as programs have it and back ends carry it out: the input
// is the parts that go to each rank one after the other, the output those that come from each.
// Counts are elements, the same lists on all ranks. Neither uneven counts nor any kind makes a back
// end allocate tensors of its own.
struct Transfer {
  Collective::Kind kind = Collective::Kind::all_reduce;
  at::Tensor input;
  at::Tensor output;
  mesh::Reduce reduce = mesh::Reduce::sum;
  std::vector<int64_t> input_counts;   // reduce_scatter, all_to_all: what goes to each rank
  std::vector<int64_t> output_counts;  // all_gather, all_to_all: what comes from each rank
  int64_t peer = 0;
  // compile::workspace_elements of the input's type, written at will until the collective is over.
  at::Tensor workspace;
  // Run before the input is read and after the output is written, where they are set.
  std::function<void()> pack;
  std::function<void()> unpack;
};

// A collective that was started.
class Work {
 public:
  virtual ~Work() = default;
  // Returns when the result may be read (on a GPU: makes the current stream wait). Throws Error
  // when another rank failed or did not come in time, naming it and the group.
  virtual void wait() = 0;
  // When it ran; valid after wait(), or (on a GPU) after the device was synchronised and settle().
  int64_t began = 0, ended = 0;
  virtual void settle() {}
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

  // Starts one and waits.
  void run(const Collective& collective) { start(collective)->wait(); }

  // Starts one that brings all its buffers. Throws Error for sizes that do not fit the counts.
  std::shared_ptr<Work> start_flat(Transfer transfer);

  // Starts what one of these found to fit, over at least two ranks.
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

  // Returns the group of these ranks, which hold this one, made at the first call for them and
  // `name`. All of them call this, and ranks that share several groups ask for them in one order.
  virtual std::shared_ptr<Group> group(const std::string& name,
                                       const std::vector<int64_t>& ranks) = 0;

  // Throws Error when another rank has failed, or a collective has not ended within the time-out,
  // where waiting does not tell by itself (on a GPU).
  virtual void check() {}

  // Tells the others that this rank has failed: what they wait for throws Error with the reason.
  virtual void abort(const std::string& reason) = 0;
};

// Returns the communicator of a job with one rank.
std::unique_ptr<Communicator> single_communicator();

// Returns this rank's end of a job whose other ranks are not there: a collective is over once
// it is started, and brings back what this rank gave to it, from every rank, and zeros where
// that is less (a sum: its own summand; a message: nothing). For measuring what a rank does
// between its collectives.
std::unique_ptr<Communicator> echo_communicator(int64_t rank, int64_t world);

}  // namespace perigee::exec
