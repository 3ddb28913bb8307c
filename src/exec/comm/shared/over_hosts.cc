#include "exec/comm/shared/over_hosts.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>
#include <map>
#include <utility>

#include "compile/draft/collective.h"
#include "exec/comm/reduce.h"

namespace perigee::exec {

using at::Tensor;
using Counts = std::vector<int64_t>;
using Kind = Collective::Kind;

// A collective in the queue of its group.
class WorkOverHosts : public Work {
 public:
  explicit WorkOverHosts(Transfer transfer) : transfer_(std::move(transfer)) {}

  // The carriers limit the time of each phase.
  void wait() override { done_.get(); }

 private:
  friend class GroupOverHosts;
  Transfer transfer_;
  std::promise<void> promise_;
  std::shared_future<void> done_ = promise_.get_future().share();
};

namespace {

// Transfers of one phase, which run at the same time.
class Phase {
 public:
  void start(Group& group, Transfer transfer) {
    works_.push_back(group.transfer(std::move(transfer)));
  }
  void send(Group& group, const Tensor& tensor, int64_t peer) {
    if (tensor.numel() == 0) return;
    start(group, {.kind = Kind::send, .input = tensor, .peer = peer});
  }
  void receive(Group& group, const Tensor& tensor, int64_t peer) {
    if (tensor.numel() == 0) return;
    start(group, {.kind = Kind::receive, .output = tensor, .peer = peer});
  }
  void wait() {
    for (const auto& work : works_) work->wait();
    works_.clear();
  }

 private:
  std::vector<std::shared_ptr<Work>> works_;
};

// Runs a phase of one transfer.
void finish(Group& group, Transfer transfer) { group.transfer(std::move(transfer))->wait(); }

void copy_unless_same(const Tensor& from, const Tensor& to) {
  if (from.const_data_ptr() != to.const_data_ptr()) to.copy_(from);
}

mesh::Reduce without_division(mesh::Reduce reduce) {
  return reduce == mesh::Reduce::average ? mesh::Reduce::sum : reduce;
}

// Returns whether partial sums may overflow the operand's type where the result does not.
bool averages_integers(const Transfer& t) {
  return t.reduce == mesh::Reduce::average &&
         c10::isIntegralType(t.input.scalar_type(), /*includeBool=*/true);
}

}  // namespace

HostMembers members_of_hosts(std::span<const std::string> hosts) {
  HostMembers members;
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const auto number = numbers.try_emplace(hosts[i], numbers.size()).first->second;
    members.resize(numbers.size());
    members[number].push_back(static_cast<int64_t>(i));
  }
  return members;
}

int64_t lanes_of(const HostMembers& hosts) {
  return std::ssize(*std::ranges::min_element(hosts, {}, [](const auto& h) { return h.size(); }));
}

GroupOverHosts::GroupOverHosts(const std::string& name, const std::vector<int64_t>& ranks,
                               int64_t rank, HostMembers hosts, Carriers carriers,
                               const SharedProcess& process)
    : Group(name, ranks, rank),
      hosts_(std::move(hosts)),
      places_(ranks.size()),
      lanes_(lanes_of(hosts_)),
      carriers_(std::move(carriers)),
      process_(process) {
  for (int64_t h = 0; h < std::ssize(hosts_); ++h) {
    const auto members = std::ssize(hosts_[h]);
    for (int64_t m = 0; m < members; ++m) places_[hosts_[h][m]] = {h, m};
    // Sums that a member sends, at most, and one that it receives from each other host. A rank that
    // is alone sends its operand.
    auto slots = std::ssize(hosts_) - 1;
    for (int64_t other = 0; other < std::ssize(hosts_) && members > 1; ++other) {
      if (other != h) slots += (std::ssize(hosts_[other]) + members - 1) / members;
    }
    slots_ = std::max<int64_t>(slots_, slots);
  }
  own_ = places_[index()];
  members_ = std::ssize(hosts_[own_.host]);
}

std::shared_ptr<Work> GroupOverHosts::transfer(Transfer transfer) {
  if (transfer.kind == Kind::send || transfer.kind == Kind::receive) {
    if (!carriers_.host || !on_own_host(transfer.peer)) {
      return carriers_.messages->transfer(std::move(transfer));
    }
    transfer.peer = places_[transfer.peer].member;
    return carriers_.host->transfer(std::move(transfer));
  }
  auto work = std::make_shared<WorkOverHosts>(std::move(transfer));
  thread_.add([this, work] { run(*work); });
  return work;
}

void GroupOverHosts::connect_pairs(const std::vector<Pair>& pairs) {
  std::vector<Pair> within, between;
  for (const auto& pair : pairs) {
    if (places_[pair.from].host == places_[pair.to].host) {
      within.push_back({places_[pair.from].member, places_[pair.to].member});
    } else {
      between.push_back(pair);
    }
  }
  if (!within.empty()) carriers_.host->connect_pairs(within);
  if (!between.empty()) carriers_.messages->connect_pairs(between);
}

// Returns a broadcast from member `root` of this host, to the others of which `input` is nothing.
Transfer GroupOverHosts::broadcast_within(const Tensor& input, const Tensor& output,
                                          int64_t root) const {
  return {.kind = Kind::broadcast,
          .input = root == own_.member ? input : Tensor(),
          .output = output,
          .peer = root};
}

void GroupOverHosts::all_reduce(const Transfer& t) const {
  const auto& [host, lane, between, messages] = carriers_;
  if (averages_integers(t)) return finish(*between, t);
  const auto reduce = without_division(t.reduce);
  Tensor input = t.input, output = t.output;
  std::shared_ptr<std::byte> copy;  // of operands that are not shared: one for all phases
  const auto bytes = static_cast<int64_t>(output.nbytes());
  const auto is_shared = [&](const Tensor& tensor) {
    return process_.memory->find(tensor.const_data_ptr(), bytes).has_value();
  };
  if (host && bytes > 0 && !(is_shared(input) && is_shared(output))) {
    copy = process_.memory->borrow(bytes);
    output = at::from_blob(copy.get(), output.sizes(), output.options());
    input = output.copy_(input);
  }
  auto counts = compile::part_lengths(output.numel(), lanes_);
  counts.resize(static_cast<size_t>(members_));  // members in no lane have no part
  const auto part = output.split_with_sizes(counts)[own_.member];
  if (host) {
    finish(*host, {.kind = Kind::reduce_scatter,
                   .input = input,
                   .output = part,
                   .reduce = reduce,
                   .input_counts = counts});
  } else {
    copy_unless_same(input, output);
  }
  if (part.numel() > 0) {
    finish(*lane, {.kind = Kind::all_reduce, .input = part, .output = part, .reduce = reduce});
    if (t.reduce == mesh::Reduce::average) part.div_(size());
  }
  if (host) {
    finish(*host,
           {.kind = Kind::all_gather, .input = part, .output = output, .output_counts = counts});
  }
  if (copy) t.output.copy_(output);
}

void GroupOverHosts::all_gather(const Transfer& t) const {
  const auto& [host, lane, between, messages] = carriers_;
  const auto parts = t.output.split_with_sizes(t.output_counts);
  Phase sent, within;
  std::vector<Phase> received(parts.size());
  for (int64_t p = 0; p < size(); ++p) {
    if (!on_own_host(p) && stands_for(p)) received[p].receive(*between, parts[p], p);
  }
  for (int64_t h = 0; h < std::ssize(hosts_); ++h) {
    if (h != own_.host) sent.send(*between, t.input, hosts_[h][partner(h, own_.member)]);
  }
  if (!host) copy_unless_same(t.input, parts[index()]);
  // The host's own parts first, while those of others are in flight.
  for (const bool own : {true, false}) {
    for (int64_t p = 0; p < size(); ++p) {
      if (on_own_host(p) != own) continue;
      received[p].wait();
      if (!host || t.output_counts[p] == 0) continue;
      const auto root = partner(own_.host, places_[p].member);
      within.start(*host, broadcast_within(own ? t.input : parts[p], parts[p], root));
    }
  }
  sent.wait();
  within.wait();
}

// A piece of each part at a time: the workspace holds the sums to send and those received.
void GroupOverHosts::reduce_scatter(const Transfer& t) const {
  const auto& [host, lane, between, messages] = carriers_;
  const int64_t piece = t.workspace.numel() / slots_;
  if (piece == 0 || averages_integers(t)) return finish(*between, t);
  const auto reduce = without_division(t.reduce);
  const auto parts = t.input.split_with_sizes(t.input_counts);
  const int64_t most = *std::ranges::max_element(t.input_counts);
  for (int64_t at = 0; at < most; at += piece) {
    const auto piece_of = [&](const Tensor& part) {
      const auto begin = std::min(at, part.numel());
      return part.narrow(0, begin, std::min(piece, part.numel() - begin));
    };
    const auto result = piece_of(t.output);
    int64_t slot = 0;
    const auto room = [&](int64_t length) { return t.workspace.narrow(0, piece * slot++, length); };
    // One member sums what goes to a rank: the rank itself, or the one that sends it.
    Phase within, exchanged;
    std::vector<Tensor> sums;
    for (int64_t p = 0; p < size(); ++p) {
      const auto summand = piece_of(parts[p]);
      const auto length = summand.numel();
      sums.push_back(summand);
      if (!host || length == 0) continue;
      if (p == index()) {
        sums[p] = result;
      } else {
        sums[p] = stands_for(p) ? room(length) : summand.narrow(0, 0, 0);
      }
      Counts counts(static_cast<size_t>(members_));
      counts[partner(own_.host, places_[p].member)] = length;
      within.start(*host, {.kind = Kind::reduce_scatter,
                           .input = summand,
                           .output = sums[p],
                           .reduce = reduce,
                           .input_counts = std::move(counts)});
    }
    within.wait();
    std::vector<Tensor> summands;  // of this rank's result, by host
    for (int64_t h = 0; h < std::ssize(hosts_); ++h) {
      if (h == own_.host) {
        summands.push_back(sums[index()]);
      } else {
        summands.push_back(room(result.numel()));
        exchanged.receive(*between, summands.back(), hosts_[h][partner(h, own_.member)]);
      }
    }
    for (int64_t p = 0; p < size(); ++p) {
      if (!on_own_host(p) && stands_for(p)) exchanged.send(*between, sums[p], p);
    }
    exchanged.wait();
    reduce_elements(summands, std::span(&result, 1), reduce, 0, result.numel());
  }
  if (t.reduce == mesh::Reduce::average) t.output.div_(size());
}

// Within the host, each member sends to the one `shift` places on.
void GroupOverHosts::all_to_all(const Transfer& t) const {
  const auto& [host, lane, between, messages] = carriers_;
  const auto from = t.input.split_with_sizes(t.input_counts);
  const auto to = t.output.split_with_sizes(t.output_counts);
  Phase exchanged, within;
  for (int64_t p = 0; p < size(); ++p) {
    if (on_own_host(p)) continue;
    exchanged.receive(*between, to[p], p);
    exchanged.send(*between, from[p], p);
  }
  const auto& positions = hosts_[own_.host];
  for (int64_t shift = 1; shift < members_; ++shift) {
    const auto next = (own_.member + shift) % members_;
    const auto previous = (own_.member + members_ - shift) % members_;
    const auto &sent = from[positions[next]], &received = to[positions[previous]];
    Counts input_counts(static_cast<size_t>(members_)), output_counts(input_counts);
    input_counts[next] = sent.numel();
    output_counts[previous] = received.numel();
    within.start(*host, {.kind = Kind::all_to_all,
                         .input = sent,
                         .output = received,
                         .input_counts = std::move(input_counts),
                         .output_counts = std::move(output_counts)});
  }
  copy_unless_same(from[index()], to[index()]);
  within.wait();
  exchanged.wait();
}

void GroupOverHosts::broadcast(const Transfer& t) const {
  const auto& [host, lane, between, messages] = carriers_;
  const auto& root = places_[t.peer];
  const auto through = root.member % lanes_;  // the lane
  if (root.host == own_.host) {
    if (host) {
      finish(*host, broadcast_within(t.input, t.output, root.member));
    } else {
      copy_unless_same(t.input, t.output);
    }
  }
  if (own_.member == through) {
    finish(*lane, {.kind = Kind::broadcast,
                   .input = root.host == own_.host ? t.output : Tensor(),
                   .output = t.output,
                   .peer = root.host});
  }
  if (root.host != own_.host && host) finish(*host, broadcast_within(t.output, t.output, through));
}

void GroupOverHosts::barrier() const {
  const auto& [host, lane, between, messages] = carriers_;
  if (host) finish(*host, {.kind = Kind::barrier});
  if (own_.member == 0) finish(*lane, {.kind = Kind::barrier});
  if (host) finish(*host, {.kind = Kind::barrier});
}

void GroupOverHosts::carry_out(Transfer& t) const {
  if (const auto pack = std::exchange(t.pack, nullptr)) pack();
  const auto unpack = std::exchange(t.unpack, nullptr);
  for (auto* tensor : {&t.input, &t.output}) {
    if (tensor->defined()) *tensor = tensor->view({-1});
  }
  switch (t.kind) {
    case Kind::all_reduce:
      all_reduce(t);
      break;
    case Kind::all_gather:
      all_gather(t);
      break;
    case Kind::reduce_scatter:
      reduce_scatter(t);
      break;
    case Kind::all_to_all:
      all_to_all(t);
      break;
    case Kind::broadcast:
      if (t.output.numel() > 0) broadcast(t);
      break;
    case Kind::barrier:
      barrier();
      break;
    case Kind::send:
    case Kind::receive:
      break;  // not queued: transfer()
  }
  if (unpack) unpack();
}

// Returns the error of the phase. After a time-out it names the ranks that do not answer: the phase
// may have waited for a rank that waited for another one of its host.
Error GroupOverHosts::failure_of(const WorkOverHosts& work, const std::exception& error) const {
  const auto* phase = dynamic_cast<const Error*>(&error);
  auto cause = first_line(error);
  if (std::chrono::nanoseconds(now() - work.began) >= process_.timeout) {
    const auto known = failure_among(*process_.store, rank(), ranks(), "");
    if (cause.find(known) == std::string::npos) {
      cause = known;
      phase = nullptr;
    }
  }
  if (phase) return *phase;
  return {Status::failed, "communicator",
          fmt::format("rank {}: {} over {} (ranks {}) must finish within {} s (cluster.timeout), "
                      "but got: {}",
                      rank(), name_of(work.transfer_.kind), name(), fmt::join(ranks(), ","),
                      std::chrono::duration<double>(process_.timeout).count(), cause)};
}

void GroupOverHosts::run(WorkOverHosts& work) {
  work.began = now();
  if (!failure_) {
    try {
      carry_out(work.transfer_);
    } catch (const std::exception& error) {
      failure_ = std::make_exception_ptr(failure_of(work, error));
    }
  }
  work.ended = now();
  failure_ ? work.promise_.set_exception(failure_) : work.promise_.set_value();
}

}  // namespace perigee::exec
