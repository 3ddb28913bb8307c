// Communicators whose messages go another way than their collectives.
#include "exec/comm/messages.h"

#include "exec/comm/threads.h"
#include "tests/exec/processes.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

// Returns a pointer to a communicator that outlives it.
std::shared_ptr<Communicator> borrowed(Communicator& communicator) {
  return {std::shared_ptr<void>(), &communicator};
}

// The sum of ones of all ranks, and the number that the previous rank sent (-1: it did not arrive).
struct Received {
  double sum = 0, message = 0;
};

Received run_both(Communicator& communicator) {
  const int64_t n = communicator.world(), me = communicator.rank();
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < n; ++rank) ranks.push_back(rank);
  const auto group = communicator.group("pipe", ranks);
  auto sum = at::ones({3}), received = at::full({3}, -1.0);
  group->run({.kind = Collective::Kind::all_reduce, .input = sum, .output = sum});
  const auto sending = group->start({.kind = Collective::Kind::send,
                                     .input = at::full({3}, static_cast<double>(me)),
                                     .peer = (me + 1) % n});
  group->run({.kind = Collective::Kind::receive, .output = received, .peer = (me + n - 1) % n});
  sending->wait();
  return {sum[0].item<double>(), received[0].item<double>()};
}

// A communicator of two ranks whose groups run nothing.
class Idle : public Communicator {
 public:
  explicit Idle(bool recordable) : recordable_(recordable) {}
  int64_t rank() const override { return 0; }
  int64_t world() const override { return 2; }
  std::shared_ptr<Group> group(const std::string& name,
                               const std::vector<int64_t>& ranks) override {
    return std::make_shared<IdleGroup>(name, ranks, recordable_);
  }
  void abort(const std::string&) override {}

 private:
  class IdleGroup : public Group {
   public:
    IdleGroup(const std::string& name, const std::vector<int64_t>& ranks, bool recordable)
        : Group(name, ranks, 0), recordable_(recordable) {}
    bool recordable(Collective::Kind) const override { return recordable_; }
    std::shared_ptr<Work> transfer(Transfer) override { return nullptr; }

   private:
    bool recordable_;
  };

  bool recordable_;
};

}  // namespace

TEST_CASE("messages go by one communicator, and collectives of the same groups by another") {
  run_ranks(3, [](Communicator& threads) {
    const int64_t n = threads.world(), me = threads.rank();
    // An echo returns the rank's own operand, and no messages.
    const std::shared_ptr<Communicator> echo = echo_communicator(me, n);
    const auto messages = with_messages(echo, borrowed(threads));
    must(messages->rank() == me && messages->world() == n, "ranks");
    auto found = run_both(*messages);
    must(found.sum == 1, "a sum goes by the communicator of messages");
    must(found.message == static_cast<double>((me + n - 1) % n), "a message is lost");
    found = run_both(*with_messages(borrowed(threads), echo));
    must(found.sum == static_cast<double>(n), "a sum is lost");
    must(found.message == -1, "a message goes by the communicator of collectives");
  });
}

TEST_CASE("a step can be recorded if that holds for what carries its messages or collectives") {
  using Kind = Collective::Kind;
  for (const bool messages : {true, false}) {
    const auto group = with_messages(std::make_shared<Idle>(!messages),
                                     std::make_shared<Idle>(messages))
                           ->group("pipe", {0, 1});
    for (const auto kind : {Kind::send, Kind::receive}) CHECK(group->recordable(kind) == messages);
    for (const auto kind : {Kind::all_reduce, Kind::all_gather, Kind::broadcast}) {
      CHECK(group->recordable(kind) == !messages);
    }
  }
}

TEST_CASE("a rank that fails ends the waits of both communicators") {
  for (const bool message : {true, false}) {
    auto first = thread_communicators(2), second = thread_communicators(2);
    const auto failing = [&](Communicator& c) {
      const auto rank = static_cast<size_t>(c.rank());
      const auto both = with_messages(borrowed(*first[rank]), borrowed(*second[rank]));
      const auto group = both->group("pipe", {0, 1});
      if (rank == 1) return both->abort("the disk is full");
      auto x = at::ones({3});
      group->run(message
                     ? Collective{.kind = Collective::Kind::receive, .output = x, .peer = 1}
                     : Collective{.kind = Collective::Kind::all_reduce, .input = x, .output = x});
    };
    CHECK_THROWS_WITH(run_ranks(2, failing), Catch::Contains("the disk is full"));
  }
}

}  // namespace perigee::exec
