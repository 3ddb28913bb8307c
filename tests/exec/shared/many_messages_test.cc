// More collectives and messages of one rank at once than a group has slots for.
#include <algorithm>

#include "tests/exec/processes.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

TEST_CASE("a rank starts any number of collectives and messages before it waits for one") {
  constexpr int kMany = 200;
  check_no_errors(fork_ranks(2, [](Communicator& c) {
    const auto group = c.group("data", range(c.world()));
    const auto me = c.rank(), other = 1 - me;
    std::vector<at::Tensor> sums, sent, received;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < kMany; ++i) {
      sums.push_back(at::full({100}, static_cast<double>(i + me)));
      sent.push_back(at::full({10}, static_cast<double>(i + 1000 * me)));
      received.push_back(at::zeros({10}));
      works.push_back(group->start(
          {.kind = Collective::Kind::all_reduce, .input = sums.back(), .output = sums.back()}));
      works.push_back(
          group->start({.kind = Collective::Kind::send, .input = sent.back(), .peer = other}));
    }
    for (int i = 0; i < kMany; ++i) {
      works.push_back(
          group->start({.kind = Collective::Kind::receive, .output = received[i], .peer = other}));
    }
    for (const auto& work : works) work->wait();
    for (int i = 0; i < kMany; ++i) {
      must(sums[i].eq(2 * i + 1).all().item<bool>(), "sum");
      must(received[i].eq(i + 1000 * other).all().item<bool>(), "message");
    }
  }));
}

// Sends to another rank, or receives from it, in the group of the two.
void exchange(Communicator& c, Collective::Kind kind, int64_t other) {
  const auto group = c.group("pair", {std::min(c.rank(), other), std::max(c.rank(), other)});
  const int64_t peer = other < c.rank() ? 0 : 1;
  const auto tensor = at::ones({10});
  group->run(kind == Collective::Kind::send
                 ? Collective{.kind = kind, .input = tensor, .peer = peer}
                 : Collective{.kind = kind, .output = tensor, .peer = peer});
}

// As the first stage of a pipeline that sends all microbatches before it waits for a gradient. The
// last rank answers after the second one has received all.
void send_before_an_answer(Communicator& c) {
  constexpr int kMany = 100;
  const auto last = c.world() - 1;
  const auto group = c.rank() < 2 ? c.group("forward", {0, 1}) : nullptr;
  if (c.rank() == 0) {
    std::vector<at::Tensor> sent;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < kMany; ++i) {
      sent.push_back(at::full({10}, static_cast<double>(i)));
      works.push_back(
          group->start({.kind = Collective::Kind::send, .input = sent.back(), .peer = 1}));
    }
    exchange(c, Collective::Kind::receive, last);
    for (const auto& work : works) work->wait();
  }
  if (c.rank() == 1) {
    for (int i = 0; i < kMany; ++i) {
      const auto received = at::zeros({10});
      group->run({.kind = Collective::Kind::receive, .output = received, .peer = 0});
      must(received.eq(i).all().item<bool>(), "message");
    }
    if (last != 1) exchange(c, Collective::Kind::send, last);
  }
  if (c.rank() == last) {
    if (last != 1) exchange(c, Collective::Kind::receive, 1);
    exchange(c, Collective::Kind::send, 0);
  }
}

TEST_CASE("transfers that wait for a slot go on while their rank waits in another group") {
  check_no_errors(fork_ranks(2, send_before_an_answer, std::chrono::seconds(5)));
}

TEST_CASE("transfers that wait for a slot go on while their rank waits for another host") {
  check_no_errors(fork_over_hosts("AAB", send_before_an_answer, std::chrono::seconds(5)));
}

}  // namespace
}  // namespace perigee::exec
