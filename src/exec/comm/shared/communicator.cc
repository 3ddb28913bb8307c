#include "exec/comm/shared/communicator.h"

#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "base/log_format.h"
#include "exec/comm/gloo.h"
#include "exec/comm/shared/group.h"
#include "exec/comm/shared/over_hosts.h"
#include "exec/comm/shared/slots.h"

namespace perigee::exec {
namespace {

using Ranks = std::vector<int64_t>;

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

int64_t cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// A rank's text in the store: its address, or why it has no shared memory.
constexpr const char* kNone = "none: ";

class Sharing : public Communicator {
 public:
  explicit Sharing(ProcessOptions options);
  ~Sharing() override;

  int64_t rank() const override { return options_.rendezvous.rank; }
  int64_t world() const override { return options_.rendezvous.world; }
  std::shared_ptr<Group> group(const std::string& name, const Ranks& ranks) override;
  void abort(const std::string& reason) override;

 private:
  struct Peer {
    std::string text;  // that it published
    std::shared_ptr<PeerMemory> memory;
    std::string refusal;  // why its memory cannot be mapped
  };

  std::string key(const std::string& rest) const {
    return "perigee/" + options_.rendezvous.name + "/memory/" + rest;
  }
  // Waits for keys of a group's ranks and returns their texts.
  std::vector<std::string> texts(const std::vector<std::string>& keys) const;
  Peer& peer(int64_t rank, const std::string& text);
  // Why a rank cannot share memory with others.
  struct Refusal {
    std::string reason;  // "": it can
    HostMembers hosts;   // of the group, the same on all its ranks; empty: they are not the reason
  };
  Refusal refusal_of(const Ranks& ranks);
  std::shared_ptr<Group> share(const std::string& name, const Ranks& ranks);
  std::shared_ptr<Group> over_hosts(const std::string& name, const Ranks& ranks,
                                    const HostMembers& hosts);
  std::shared_ptr<std::byte> attach(const std::string& name, const Ranks& ranks,
                                    const std::string& place) const;
  void await_attached(const Ranks& ranks, std::byte* segment);
  void call_helper();
  void help();

  ProcessOptions options_;
  Meeting meeting_;
  std::string unavailable_;  // why this process has no shared memory
  SharedProcess process_;
  std::unique_ptr<Communicator> gloo_;
  std::map<int64_t, Peer> peers_;
  std::mutex mutex_;  // of the helper and its groups
  std::map<std::pair<std::string, Ranks>, std::shared_ptr<Group>> groups_;
  std::vector<std::shared_ptr<SharedGroup>> helped_;
  std::thread helper_;
  std::atomic<bool> ends_ = false;
  bool aborted_ = false;
};

Sharing::Sharing(ProcessOptions options)
    : options_(std::move(options)), meeting_(meet(options_.rendezvous)) {
  std::string text;
  try {
    if (!options_.memory) options_.memory = SharedMemory::open();
    options_.memory->board().state.store(Board::runs);
    auto address = address_of(*options_.memory);
    if (!options_.host.empty()) address.host = options_.host;
    text = address.print();
  } catch (const std::exception& error) {
    unavailable_ = first_line(error);
    text = kNone + unavailable_;
  }
  const int64_t found = cores();
  process_ = {
      .store = meeting_.store,
      .memory = options_.memory,
      .timeout = options_.rendezvous.timeout,
      // A rank that is bound to one core has company on the others.
      .crowded = options_.local_ranks > (found == 1 ? sysconf(_SC_NPROCESSORS_ONLN) : found),
      .helps = options_.local_ranks * options_.threads < found,
      .call_helper = [this] { call_helper(); }};
  meeting_.store->set(key(fmt::format("process/{}", rank())), bytes_of(text));
  gloo_ = gloo_communicator(options_.rendezvous, meeting_);
}

Sharing::~Sharing() {
  ends_ = true;
  if (helper_.joinable()) {
    auto& bell = options_.memory->board().bell;
    bell.fetch_add(1);
    futex_wake(bell);
    helper_.join();
  }
  if (!options_.memory) return;
  auto expected = static_cast<uint32_t>(Board::runs);
  options_.memory->board().state.compare_exchange_strong(expected, Board::left);
}

void Sharing::abort(const std::string& reason) {
  if (aborted_) return;
  aborted_ = true;
  leave_failure(*meeting_.store, rank(), reason);
  if (!options_.memory) return;
  auto& board = options_.memory->board();
  const auto text = fmt::format("rank {} failed: {}", rank(), reason);
  const auto length = std::min(text.size(), board.reason.size() - 1);
  std::memcpy(board.reason.data(), text.data(), length);
  board.state.store(Board::aborted, std::memory_order_release);
}

std::vector<std::string> Sharing::texts(const std::vector<std::string>& keys) const {
  meeting_.store->wait(keys, options_.rendezvous.timeout);
  std::vector<std::string> texts;
  for (const auto& bytes : meeting_.store->multiGet(keys)) {
    texts.emplace_back(bytes.begin(), bytes.end());
  }
  return texts;
}

Sharing::Peer& Sharing::peer(int64_t rank, const std::string& text) {
  auto& found = peers_[rank];
  if (!found.text.empty()) return found;
  found.text = text;
  try {
    const auto address = ProcessAddress::parse(text);
    if (!address) fail_run("memory", "rank {} must publish its memory, but got \"{}\"", rank, text);
    found.memory = std::make_shared<PeerMemory>(*address);
  } catch (const std::exception& error) {
    found.refusal = first_line(error);
  }
  return found;
}

Sharing::Refusal Sharing::refusal_of(const Ranks& ranks) {
  std::vector<std::string> keys;
  for (const auto other : ranks) keys.push_back(key(fmt::format("process/{}", other)));
  const auto published = texts(keys);
  // All ranks of the group read the same texts, and so decide alike.
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (published[i].starts_with(kNone)) {
      return {fmt::format("rank {}: {}", ranks[i], published[i].substr(std::strlen(kNone)))};
    }
  }
  std::vector<std::string> names;
  for (const auto& text : published) names.push_back(text.substr(0, text.find(' ')));
  const auto hosts = members_of_hosts(names);
  if (hosts.size() > 1) {
    return {fmt::format("ranks {} and {} are on different hosts", ranks[0], ranks[hosts[1][0]]),
            hosts};
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank()) continue;
    const auto& refusal = peer(ranks[i], published[i]).refusal;
    if (refusal.empty()) continue;
    return {
        fmt::format("rank {} cannot read the memory of rank {}: {}", rank(), ranks[i], refusal)};
  }
  return {};
}

// Maps the group's segment, which the group's first rank has made and published as `place`.
std::shared_ptr<std::byte> Sharing::attach(const std::string& name, const Ranks& ranks,
                                           const std::string& place) const {
  auto published = ProcessAddress::parse(place);
  if (!published) fail_run("memory", "the memory of {} must be published, but got {}", name, place);
  const auto mapping = std::make_shared<Mapping>(published->process, published->board);
  if (mapping->bytes < GroupLayout::bytes(std::ssize(ranks))) {
    fail_run("memory", "the memory of {} must have room for {} ranks, but has {} bytes", name,
             ranks.size(), mapping->bytes);
  }
  auto& attached = GroupLayout(mapping->begin, std::ssize(ranks)).attached();
  attached.fetch_add(1);
  futex_wake(attached);
  return {mapping, mapping->begin};
}

// Returns once all other ranks have mapped the group's segment, whose file may then be closed.
void Sharing::await_attached(const Ranks& ranks, std::byte* segment) {
  const auto others = static_cast<uint32_t>(ranks.size() - 1);
  auto& attached = GroupLayout(segment, std::ssize(ranks)).attached();
  const auto until = std::chrono::steady_clock::now() + options_.rendezvous.timeout;
  for (auto seen = attached.load(); seen != others; seen = attached.load()) {
    futex_wait(attached, seen, 40);
    for (const auto other : ranks) {
      if (other == rank()) continue;
      const auto& memory = *peers_[other].memory;
      if (memory.board().state.load() == Board::aborted) {
        throw std::runtime_error(memory.board().reason.data());
      }
      if (!memory.runs()) throw std::runtime_error(fmt::format("rank {} does not answer", other));
    }
    if (std::chrono::steady_clock::now() > until) throw std::runtime_error("no answer");
  }
  options_.memory->close(segment);
}

// Returns the group over shared memory, or over hosts, or nullptr where its ranks cannot share.
std::shared_ptr<Group> Sharing::share(const std::string& name, const Ranks& ranks) {
  using Carrier = ProcessOptions::Carrier;
  if (ranks.size() == 1 || options_.carrier == Carrier::gloo) return nullptr;
  const auto refuse = [&](const std::string& reason) {
    if (options_.carrier == Carrier::shared) {
      fail_run("communicator",
               "with cluster.communicator = \"shared\" the ranks of a group must share memory, but "
               "in {} (ranks {}) {}: use \"auto\"",
               name, fmt::join(ranks, ","), reason);
    }
    return nullptr;
  };
  const auto prefix = fmt::format("{}/{}/", name, fmt::join(ranks, ","));
  std::vector<std::string> keys;
  for (const auto member : ranks) keys.push_back(key(fmt::format("{}{}", prefix, member)));
  const bool first = rank() == ranks[0];
  const auto own = std::ranges::find(ranks, rank()) - ranks.begin();
  // Each rank says whether it can read the others' memory, and the first one where the group's is.
  std::shared_ptr<std::byte> segment;
  auto [verdict, hosts] = refusal_of(ranks);
  if (!hosts.empty() && options_.carrier == Carrier::automatic) {
    return over_hosts(name, ranks, hosts);
  }
  if (verdict.empty() && first) {
    try {
      segment = options_.memory->allocate(GroupLayout::bytes(std::ssize(ranks)), true);
    } catch (const std::exception& error) {
      verdict = fmt::format("rank {}: {}", rank(), first_line(error));
    }
  }
  std::string text = kNone + verdict;
  if (verdict.empty()) {
    auto address = address_of(*options_.memory);
    if (segment) address.board = *options_.memory->find(segment.get(), 1);
    text = address.print();
  }
  meeting_.store->set(keys[own], bytes_of(text));
  const auto verdicts = texts(keys);
  for (const auto& other : verdicts) {
    if (!other.starts_with(kNone)) continue;
    const auto reason = other.substr(std::strlen(kNone));
    if (first && hosts.empty() && meeting_.store->add(key("warned"), 1) == 1) {
      log::warn("ranks {} exchange tensors by Gloo, not through shared memory: {}",
                fmt::join(ranks, ","), reason);
    }
    return refuse(reason);
  }
  if (first) {
    await_attached(ranks, segment.get());
  } else {
    segment = attach(name, ranks, verdicts[0]);
  }
  std::vector<std::shared_ptr<PeerMemory>> members;
  for (const auto member : ranks)
    members.push_back(member == rank() ? nullptr : peers_[member].memory);
  if (first) log::debug("group {} (ranks {}) shares memory", name, fmt::join(ranks, ","));
  auto made = std::make_shared<SharedGroup>(name, ranks, rank(), process_, std::move(members),
                                            std::move(segment));
  {
    std::lock_guard lock(mutex_);
    helped_.push_back(made);
  }
  if (process_.helps) call_helper();
  return made;
}

// Returns the group that shares memory within hosts, or nullptr where no ranks of it can.
std::shared_ptr<Group> Sharing::over_hosts(const std::string& name, const Ranks& ranks,
                                           const HostMembers& hosts) {
  if (std::ranges::all_of(hosts, [](const auto& members) { return members.size() == 1; })) {
    return nullptr;
  }
  GroupOverHosts::Carriers carriers;
  Ranks own, lane;
  for (const auto& members : hosts) {
    if (std::ranges::none_of(members, [&](auto p) { return ranks[p] == rank(); })) continue;
    for (const auto position : members) own.push_back(ranks[position]);
  }
  // Groups of one name and other ranks may have the same ranks on a host.
  const auto whole = fmt::format("{} (ranks {})", name, fmt::join(ranks, ","));
  if (own.size() > 1) carriers.host = share(whole + " within a host", own);
  // A host whose ranks cannot share has the whole group use Gloo.
  const auto prefix = fmt::format("{}/{}/hosts/", name, fmt::join(ranks, ","));
  std::vector<std::string> keys;
  for (const auto member : ranks) keys.push_back(key(fmt::format("{}{}", prefix, member)));
  const std::string answer = own.size() == 1 || carriers.host ? "shares" : "cannot";
  meeting_.store->set(key(fmt::format("{}{}", prefix, rank())), bytes_of(answer));
  if (std::ranges::count(texts(keys), "cannot") > 0) return nullptr;
  const auto member = std::ranges::find(own, rank()) - own.begin();
  if (member < lanes_of(hosts)) {
    for (const auto& members : hosts) lane.push_back(ranks[members[member]]);
    carriers.lane = gloo_->group(whole + " between hosts", lane);
  }
  carriers.between = gloo_->group(whole + " between hosts", ranks);
  carriers.messages = gloo_->group(name, ranks);
  if (rank() == ranks[0]) {
    log::debug("group {} (ranks {}) shares memory within each of {} hosts", name,
               fmt::join(ranks, ","), hosts.size());
  }
  return std::make_shared<GroupOverHosts>(name, ranks, rank(), hosts, std::move(carriers),
                                          process_);
}

std::shared_ptr<Group> Sharing::group(const std::string& name, const Ranks& ranks) {
  auto& group = groups_[{name, ranks}];
  if (group) return group;
  try {
    group = share(name, ranks);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_run("communicator",
             "rank {} must connect to the group {} (ranks {}) within {} s, but got: {}", rank(),
             name, fmt::join(ranks, ","), options_.rendezvous.seconds(),
             failure_among(*meeting_.store, rank(), ranks, first_line(error)));
  }
  if (!group) group = gloo_->group(name, ranks);
  return group;
}

void Sharing::call_helper() {
  {
    std::lock_guard lock(mutex_);
    if (!helper_.joinable()) helper_ = std::thread([this] { help(); });
  }
  auto& bell = options_.memory->board().bell;
  bell.fetch_add(1);
  futex_wake(bell);
}

// Runs collectives while the rank computes or waits, until the communicator ends.
void Sharing::help() {
  auto& bell = options_.memory->board().bell;
  while (!ends_) {
    const auto rung = bell.load();
    std::vector<std::shared_ptr<SharedGroup>> groups;
    {
      std::lock_guard lock(mutex_);
      groups = helped_;
    }
    bool waits = false;
    try {
      for (const auto& group : groups) waits |= group->help();
    } catch (const std::exception&) {
      // The rank's own wait meets the same error and reports it.
    }
    // Nobody rings where a rank has released a slot.
    if (!ends_ && bell.load() == rung) futex_wait(bell, rung, waits ? 1 : 1000);
  }
}

}  // namespace

std::unique_ptr<Communicator> process_communicator(ProcessOptions options) {
  if (options.carrier == ProcessOptions::Carrier::gloo) {
    return gloo_communicator(options.rendezvous);
  }
  return std::make_unique<Sharing>(std::move(options));
}

}  // namespace perigee::exec
