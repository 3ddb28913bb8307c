#include "exec/comm/rendezvous.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/fail.h"
#include "base/network/address.h"
#include "exec/comm/job_store.h"
#include "exec/error_text.h"

namespace perigee::exec {
namespace {

constexpr const char* kFailureKey = "perigee/failure";
using std::chrono::milliseconds;
// How long a rank waits after a failed transfer: for the other ranks to report that they are alive,
// for the store to answer, and for the store to accept the reason. Their sum bounds the time from
// the time-out to the error that names a silent rank.
constexpr milliseconds kRollCall{800}, kAnswer{1000}, kLeave{300};

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// Asks the store on a separate thread: a store whose process is stopped never answers, and the call
// has no time-out. Returns nothing after `limit`. Throws the exceptions of `question`.
std::optional<std::string> ask(c10d::Store& store, milliseconds limit,
                               std::function<std::string(c10d::Store&)> question) {
  auto answer = std::make_shared<std::promise<std::string>>();
  auto result = answer->get_future();
  std::thread([answer, question = std::move(question),
               kept = Store::reclaim_copy(&store)] {  // the thread may outlive the caller
    try {
      answer->set_value(question(*kept));
    } catch (...) {
      answer->set_exception(std::current_exception());
    }
  })
      .detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

std::string failure_or(c10d::Store& store, const std::string& seen,
                       std::function<std::string(c10d::Store&)> question) {
  try {
    const auto left = ask(store, kAnswer, std::move(question));
    if (!left) return "rank 0, which has the store, does not answer";
    return left->empty() ? seen : *left;
  } catch (const std::exception&) {
    return seen + " (rank 0's store is gone, too)";
  }
}

// Returns the reason that a rank wrote, or a text that names the silent ranks, or "".
std::string roll_call(c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks) {
  const auto key = [](int64_t other) { return fmt::format("perigee/alive/{}", other); };
  store.set(key(rank), bytes_of("1"));
  const auto deadline = std::chrono::steady_clock::now() + kRollCall;
  std::vector<int64_t> silent;
  do {
    if (auto left = left_failure(store); !left.empty()) return left;
    silent.clear();
    for (const int64_t other : ranks) {
      if (!store.check({key(other)})) silent.push_back(other);
    }
    if (silent.empty()) return "";
    std::this_thread::sleep_for(milliseconds(20));
  } while (std::chrono::steady_clock::now() < deadline);
  return fmt::format("rank {} {} not answer", fmt::join(silent, ", "),
                     silent.size() == 1 ? "does" : "do");
}

}  // namespace

namespace {

constexpr const char* kJoined = "joined";

// The keys of a meeting in the store.
class Keys {
 public:
  explicit Keys(const std::string& name) : prefix_("perigee/" + name + "/") {}
  std::string settings() const { return prefix_ + "settings"; }            // of rank 0
  std::string taken(int64_t rank) const { return number("taken", rank); }  // counts processes
  std::string address(int64_t rank) const { return number("address", rank); }
  std::string joined() const { return prefix_ + "joined"; }  // counts ranks
  // kJoined once all ranks have joined, or why the meeting ends. Written once.
  std::string verdict() const { return prefix_ + "verdict"; }

 private:
  std::string number(const char* name, int64_t rank) const {
    return fmt::format("{}{}/{}", prefix_, name, rank);
  }
  std::string prefix_;
};

std::string text_of(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// A rank's address and the store's, as the rank sees them.
struct Addresses {
  std::string own, store;
};

Addresses find_addresses(const RendezvousOptions& options) {
  const auto store = resolve(options.host);
  if (!options.interface.empty()) return {address_of_interface(options.interface), store};
  return {local_address_towards(store), store};
}

// Returns why a rank may not join, or "".
std::string reason_to_refuse(c10d::Store& store, const Keys& keys,
                             const RendezvousOptions& options) {
  if (options.rank > 0) {
    auto difference = settings_difference(text_of(store, keys.settings()),
                                          fmt::format("rank {}", options.rank), options.settings);
    if (!difference.empty()) return difference;
  }
  if (store.add(keys.taken(options.rank), 1) == 1) return "";
  return fmt::format(
      "each process must have a rank of its own, but two have rank {}: give each host its "
      "--node-rank",
      options.rank);
}

[[noreturn]] void fail_missing(c10d::Store& store, const Keys& keys,
                               const RendezvousOptions& options) {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < options.world; ++rank) {
    if (!store.check({keys.address(rank)})) missing.push_back(rank);
  }
  fail_run("communicator", "all {} ranks must meet at {}:{} within {} s, but rank {} did not join",
           options.world, options.host, options.port, options.seconds(), fmt::join(missing, ", "));
}

// Returns the address to which ranks of other hosts connected, or that of the loopback interface
// where all ranks are on one host.
std::string address_seen_by_others(c10d::Store& store, const Keys& keys,
                                   const RendezvousOptions& options) {
  const bool local = options.host == "127.0.0.1" || options.host == "localhost";
  for (int64_t rank = 0; rank < options.world && !local; ++rank) {
    const auto text = text_of(store, keys.address(rank));
    const auto space = text.find(' ');
    const auto own = text.substr(0, space), seen = text.substr(space + 1);
    if (!is_loopback(own) && !is_loopback(seen)) return seen;
  }
  return "127.0.0.1";
}

// Ends the meeting, unless it has ended.
void decide(c10d::Store& store, const Keys& keys, const std::string& verdict) {
  store.compareSet(keys.verdict(), {}, bytes_of(verdict));
}

Meeting join(const Store& store, const RendezvousOptions& options) {
  const Keys keys(options.name);
  if (options.rank == 0) store->set(keys.settings(), bytes_of(print_settings(options.settings)));
  if (const auto reason = reason_to_refuse(*store, keys, options); !reason.empty()) {
    decide(*store, keys, reason);
    fail("job", "{}", reason);
  }
  const auto addresses = find_addresses(options);
  store->set(keys.address(options.rank), bytes_of(addresses.own + " " + addresses.store));
  if (store->add(keys.joined(), 1) == options.world) decide(*store, keys, kJoined);
  try {
    // The rank with the store leaves last: the others ask it who is missing.
    store->wait({keys.verdict()},
                options.serve ? options.timeout + kRollCall / 2 : options.timeout);
  } catch (const std::exception&) {
    fail_missing(*store, keys, options);
  }
  if (const auto reason = text_of(*store, keys.verdict()); reason != kJoined) {
    if (options.serve) std::this_thread::sleep_for(kRollCall / 2);
    fail("job", "{}", reason);
  }
  if (options.interface.empty() && is_loopback(addresses.own)) {
    return {store, address_seen_by_others(*store, keys, options)};
  }
  return {store, addresses.own};
}

}  // namespace

Meeting meet(const RendezvousOptions& options) {
  try {
    const auto store = c10::make_intrusive<JobStore>(
        JobStoreOptions{.host = options.host,
                        .port = options.port,
                        .rank = options.rank,
                        .secret = options.secret,
                        .timeout = options.timeout,
                        .listen_socket = options.listen_socket});
    return join(store, options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_run("communicator", "rank {} must reach the store at {}:{} within {} s, but got: {}",
             options.rank, options.host, options.port, options.seconds(), first_line(error));
  }
}

void leave_failure(c10d::Store& store, int64_t rank, const std::string& reason) {
  const auto text = fmt::format("rank {} failed: {}", rank, reason);
  try {
    ask(store, kLeave, [text](c10d::Store& kept) {
      if (!kept.check({kFailureKey})) kept.set(kFailureKey, bytes_of(text));
      return std::string();
    });
  } catch (const std::exception&) {
    // The store ended with rank 0: every rank finds that by itself.
  }
}

std::string left_failure(c10d::Store& store) {
  if (!store.check({kFailureKey})) return "";
  const auto bytes = store.get(kFailureKey);
  return {bytes.begin(), bytes.end()};
}

std::string failure_or(c10d::Store& store, const std::string& seen) {
  return failure_or(store, seen, left_failure);
}

std::string failure_among(c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks,
                          const std::string& seen) {
  return failure_or(store, seen,
                    [rank, ranks](c10d::Store& kept) { return roll_call(kept, rank, ranks); });
}

std::string first_line(const std::exception& error) {
  const auto text = error_text(error);
  return text.substr(0, text.find('\n'));
}

}  // namespace perigee::exec
