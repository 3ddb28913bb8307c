#include "exec/comm/gloo.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/fail.h"
#include "base/network/socket.h"
#include "compile/draft/collective.h"
#include "exec/comm/reduce.h"
#include "exec/task_thread.h"

namespace perigee::exec {
namespace {

using Kind = Collective::Kind;
using at::Tensor;
using GlooGroup = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

// Returns whether an all-reduce adds up floating-point numbers, which it leaves to Gloo. Gloo's max
// and min may drop a NaN; it adds up integers and booleans in their own type, and no int16.
bool adds_floats(const Transfer& t) {
  const auto type = t.input.scalar_type();
  return (c10::isFloatingType(type) || c10::isComplexType(type)) &&
         (t.reduce == mesh::Reduce::sum || t.reduce == mesh::Reduce::average);
}

// Returns the result of `start`, which hands a collective or message to c10d. Only one thread of the
// process does so at a time: c10d's flight recorder looks up and extends its table of groups
// without a lock (FlightRecorder::recordWithResetEnabled, LibTorch 2.11).
template <class Start>
auto one_at_a_time(Start start) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  return start();
}

// Messages within collectives; those of programs have tag 0.
constexpr int kTag = 1;

// Sends and receives that run at the same time.
class Messages {
 public:
  Messages(c10d::ProcessGroupGloo& gloo, std::chrono::milliseconds timeout)
      : gloo_(gloo), timeout_(timeout) {}

  void send(const Tensor& tensor, int64_t peer) {
    std::vector<Tensor> tensors = {tensor};
    if (tensor.numel() == 0) return;
    running_.push_back(
        one_at_a_time([&] { return gloo_.send(tensors, static_cast<int>(peer), kTag); }));
  }
  void receive(const Tensor& tensor, int64_t peer) {
    std::vector<Tensor> tensors = {tensor};
    if (tensor.numel() == 0) return;
    running_.push_back(
        one_at_a_time([&] { return gloo_.recv(tensors, static_cast<int>(peer), kTag); }));
  }
  void wait() {
    for (const auto& message : running_) message->wait(timeout_);
    running_.clear();
  }

 private:
  c10d::ProcessGroupGloo& gloo_;
  std::chrono::milliseconds timeout_;
  std::vector<c10::intrusive_ptr<c10d::Work>> running_;
};

// Returns a tensor over the same memory that does not own it: c10d's threads drop their tensor some
// time after they report completion, when the owner may have freed the memory.
Tensor borrowed(const Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
}

// Returns the first element of each rank's part, and the end.
std::vector<int64_t> offsets(const std::vector<int64_t>& counts) {
  std::vector<int64_t> begin = {0};
  for (auto count : counts) begin.push_back(begin.back() + count);
  return begin;
}

// Every rank sends its part to every rank, received at its final address: Gloo's own all-gather
// allocates a buffer as large as the result.
void all_gather(Messages& messages, Transfer& t, int64_t index) {
  const auto begin = offsets(t.output_counts);
  const auto part = [&](int64_t i) { return t.output.narrow(0, begin[i], t.output_counts[i]); };
  for (int64_t i = 0; i < std::ssize(t.output_counts); ++i) {
    if (i == index) continue;
    messages.receive(part(i), i);
    messages.send(t.input, i);
  }
  if (t.input.data_ptr() != part(index).data_ptr()) part(index).copy_(t.input);
  messages.wait();
}

// Sends non-empty parts only: most parts of a shift are empty.
void all_to_all(Messages& messages, Transfer& t, int64_t index) {
  const auto from = offsets(t.input_counts), to = offsets(t.output_counts);
  const auto sent = [&](int64_t i) { return t.input.narrow(0, from[i], t.input_counts[i]); };
  const auto part = [&](int64_t i) { return t.output.narrow(0, to[i], t.output_counts[i]); };
  for (int64_t i = 0; i < std::ssize(t.input_counts); ++i) {
    if (i == index) continue;
    messages.receive(part(i), i);
    messages.send(sent(i), i);
  }
  part(index).copy_(sent(index));
  messages.wait();
}

// Every rank receives all contributions to its part, a piece of each at a time, and sums them in
// the group's order.
void reduce_scatter(Messages& messages, Transfer& t, int64_t index) {
  const auto ranks = std::ssize(t.input_counts);
  const auto begin = offsets(t.input_counts);
  const int64_t most = *std::max_element(t.input_counts.begin(), t.input_counts.end());
  const int64_t piece = std::max<int64_t>(t.workspace.numel() / (ranks - 1), 1);
  for (int64_t at = 0; at < most; at += piece) {
    const auto length = [&](int64_t i) {
      return std::clamp<int64_t>(t.input_counts[i] - at, 0, piece);
    };
    const auto of_part = [&](int64_t i) {
      return t.input.narrow(0, begin[i] + std::min(at, t.input_counts[i]), length(i));
    };
    std::vector<Tensor> contributions;
    for (int64_t i = 0, slot = 0; i < ranks; ++i) {
      contributions.push_back(i == index ? of_part(i)
                                         : t.workspace.narrow(0, piece * slot++, length(index)));
      if (i == index) continue;
      messages.receive(contributions.back(), i);
      messages.send(of_part(i), i);
    }
    messages.wait();
    if (length(index) == 0) continue;
    const auto result = t.output.narrow(0, at, length(index));
    reduce_elements(contributions, std::span(&result, 1), t.reduce, 0, length(index));
  }
}

// Every rank reduces its part, which the others gather.
void all_reduce(c10d::ProcessGroupGloo& gloo, std::chrono::milliseconds timeout, const Transfer& t,
                int64_t ranks, int64_t index) {
  const auto output = t.output.view({-1});
  const auto counts = compile::part_lengths(output.numel(), ranks);
  const auto part = output.split_with_sizes(counts)[index];
  const auto elements = compile::workspace_elements("comm::reduce_scatter", counts);
  std::vector<std::byte> workspace(static_cast<size_t>(elements * output.element_size()));
  Messages messages(gloo, timeout);  // end before the workspace, also after an error
  Transfer reduced{.kind = Kind::reduce_scatter,
                   .input = t.input.view({-1}),
                   .output = part,
                   .reduce = t.reduce,
                   .input_counts = counts,
                   .workspace = at::from_blob(workspace.data(), {elements}, output.options())};
  reduce_scatter(messages, reduced, index);
  Transfer gathered{
      .kind = Kind::all_gather, .input = part, .output = output, .output_counts = counts};
  all_gather(messages, gathered, index);
}

// A device of Gloo, and the sockets at which it listens.
struct ListeningDevice {
  std::shared_ptr<::gloo::transport::Device> device;
  std::set<int> sockets;
};

// Devices are made one at a time, so that the sockets that appear are the device's.
ListeningDevice listen_on(const std::string& address) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const auto before = listening_sockets();
  ListeningDevice made{.device = c10d::ProcessGroupGloo::createDeviceForHostname(address)};
  std::ranges::set_difference(listening_sockets(), before,
                              std::inserter(made.sockets, made.sockets.end()));
  return made;
}

// Carries out one collective and returns when it is done.
void carry_out(c10d::ProcessGroupGloo& gloo, std::chrono::milliseconds timeout, Transfer& t,
               int64_t ranks, int64_t index) {
  Messages messages(gloo, timeout);
  if (t.pack) t.pack();
  switch (t.kind) {
    case Kind::all_reduce: {
      if (!adds_floats(t)) {
        all_reduce(gloo, timeout, t, ranks, index);
        break;
      }
      if (t.input.data_ptr() != t.output.data_ptr()) t.output.copy_(t.input);
      std::vector<Tensor> tensors = {borrowed(t.output)};
      one_at_a_time([&] { return gloo.allreduce(tensors); })->wait();
      if (t.reduce == mesh::Reduce::average) t.output.div_(ranks);
      break;
    }
    case Kind::all_gather:
      all_gather(messages, t, index);
      break;
    case Kind::reduce_scatter:
      reduce_scatter(messages, t, index);
      break;
    case Kind::all_to_all:
      all_to_all(messages, t, index);
      break;
    case Kind::broadcast: {
      if (t.peer == index && t.input.data_ptr() != t.output.data_ptr()) t.output.copy_(t.input);
      // As bytes: Gloo does not broadcast all types.
      std::vector<Tensor> tensors = {borrowed(t.output.view({-1}).view(at::kByte))};
      one_at_a_time([&] {
        return gloo.broadcast(tensors, {.rootRank = t.peer, .rootTensor = 0});
      })->wait();
      break;
    }
    case Kind::barrier:
      one_at_a_time([&] { return gloo.barrier(); })->wait();
      break;
    case Kind::send:
    case Kind::receive:
      break;  // not queued: GlooEnd::transfer
  }
  if (t.unpack) t.unpack();
}

class GlooEnd;

// A collective in the queue of its group, or a message in flight.
class GlooWork : public Work {
 public:
  GlooWork(GlooEnd& group, Transfer transfer) : group_(group), transfer_(std::move(transfer)) {}
  void wait() override;

 private:
  friend class GlooEnd;
  GlooEnd& group_;
  Transfer transfer_;
  c10::intrusive_ptr<c10d::Work> message_;  // send, receive
  std::promise<void> promise_;              // collectives: fulfilled at their end
  std::shared_future<void> done_ = promise_.get_future().share();
};

class GlooEnd : public Group {
 public:
  GlooEnd(const std::string& name, const std::vector<int64_t>& ranks, const GlooOptions& options,
          const Meeting& meeting)
      : Group(name, ranks, options.rank), store_(meeting.store), timeout_(options.timeout) {
    if (size() == 1) return;
    gloo_ = connect(meeting);
  }

  [[noreturn]] void fail_transfer(const Transfer& t, const std::string& seen) const {
    fail_run(
        "communicator",
        "rank {}: {} over {} (ranks {}) must finish within {} s (cluster.timeout), but got: {}",
        rank(), name_of(t.kind), name(), fmt::join(ranks(), ","),
        std::chrono::duration<double>(timeout_).count(),
        failure_among(*store_, rank(), ranks(), seen));
  }

 protected:
  std::shared_ptr<Work> transfer(Transfer transfer) override {
    const bool sends = transfer.kind == Kind::send;
    auto work = std::make_shared<GlooWork>(*this, std::move(transfer));
    if (sends || work->transfer_.kind == Kind::receive) {
      auto& t = work->transfer_;
      work->began = now();
      if (t.pack) t.pack();
      std::vector<Tensor> tensors = {sends ? t.input : t.output};
      const auto peer = static_cast<int>(t.peer);
      try {
        work->message_ = one_at_a_time(
            [&] { return sends ? gloo_->send(tensors, peer, 0) : gloo_->recv(tensors, peer, 0); });
      } catch (const std::exception& error) {
        fail_transfer(t, first_line(error));
      }
      return work;
    }
    thread_.add([this, work] { run(*work); });
    return work;
  }

 private:
  friend class GlooWork;

  // Connects the ranks of the group within the time-out. Gloo waits that long for each peer and for
  // each key, one after the other, so it connects on a thread of its own.
  GlooGroup connect(const Meeting& meeting) const {
    const auto prefix = fmt::format("perigee/{}/{}", name(), fmt::join(ranks(), ","));
    auto made = std::make_shared<std::promise<GlooGroup>>();
    auto result = made->get_future();
    std::thread([made, prefix, meeting, timeout = timeout_, index = static_cast<int>(index()),
                 size = static_cast<int>(size())] {
      try {
        auto options = c10d::ProcessGroupGloo::Options::create(timeout);
        const auto listening = listen_on(meeting.address);
        options->devices.push_back(listening.device);
        options->threads = 1;
        auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
            c10::make_intrusive<c10d::PrefixStore>(prefix, meeting.store), index, size, options);
        // Gloo ends the process when strangers have taken all its descriptors.
        for (const int socket : listening.sockets) drop_connections(socket);
        made->set_value(std::move(group));
      } catch (...) {
        made->set_exception(std::current_exception());
      }
    }).detach();
    std::string seen = "no answer";
    try {
      if (result.wait_for(timeout_) == std::future_status::ready) return result.get();
    } catch (const std::exception& error) {
      seen = first_line(error);
    }
    throw std::runtime_error(failure_among(*store_, rank(), ranks(), seen));
  }

  // Carries out a collective.
  void run(GlooWork& work) {
    work.began = now();
    std::exception_ptr failure;
    try {
      carry_out(*gloo_, timeout_, work.transfer_, size(), index());
    } catch (...) {
      failure = std::current_exception();
    }
    work.ended = now();
    failure ? work.promise_.set_exception(failure) : work.promise_.set_value();
  }

  Store store_;
  std::chrono::milliseconds timeout_;
  GlooGroup gloo_;
  TaskThread thread_;  // of collectives
};

void GlooWork::wait() {
  // Gloo's own time-out normally ends a collective first. Twice the time allows for a collective
  // before it in the queue.
  if (!message_ && done_.wait_for(2 * group_.timeout_) != std::future_status::ready) {
    group_.fail_transfer(transfer_, "no answer");
  }
  try {
    message_ ? void(message_->wait(group_.timeout_)) : done_.get();
  } catch (const std::exception& error) {
    group_.fail_transfer(transfer_, first_line(error));
  }
  if (!message_) return;
  if (transfer_.unpack) transfer_.unpack();
  ended = now();
}

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(const GlooOptions& options, Meeting meeting)
      : options_(options), meeting_(std::move(meeting)) {}

  ~GlooCommunicator() override { groups_.clear(); }

  int64_t rank() const override { return options_.rank; }
  int64_t world() const override { return options_.world; }

  std::shared_ptr<Group> group(const std::string& name,
                               const std::vector<int64_t>& ranks) override {
    auto& group = groups_[{name, ranks}];
    if (!group) {
      try {
        group = std::make_shared<GlooEnd>(name, ranks, options_, meeting_);
      } catch (const Error&) {
        throw;
      } catch (const std::exception& error) {
        fail_run("communicator",
                 "rank {} must connect to the group {} (ranks {}) within {} s, but got: {}",
                 options_.rank, name, fmt::join(ranks, ","), options_.seconds(), first_line(error));
      }
    }
    return group;
  }

  void abort(const std::string& reason) override {
    if (!aborted_) leave_failure(*meeting_.store, options_.rank, reason);
    aborted_ = true;
  }

 private:
  GlooOptions options_;
  Meeting meeting_;
  std::map<std::pair<std::string, std::vector<int64_t>>, std::shared_ptr<GlooEnd>> groups_;
  bool aborted_ = false;
};

}  // namespace

std::unique_ptr<Communicator> gloo_communicator(const GlooOptions& options) {
  return gloo_communicator(options, meet(options));
}

std::unique_ptr<Communicator> gloo_communicator(const GlooOptions& options,
                                                const Meeting& meeting) {
  return std::make_unique<GlooCommunicator>(options, meeting);
}

}  // namespace perigee::exec
