// Which hosts take part in a round, decided without a network or a clock.
#include "tools/perigee/launch/membership.h"

#include <catch2/catch.hpp>
#include <map>

#include "base/error.h"

using namespace perigee::command;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Kind = Outcome::Kind;

namespace {

const Time kStart{};

// Hosts that register and the verdicts that they get.
struct MemberHosts {
  explicit MemberHosts(const MembershipOptions& options) : membership(options) {}

  void come(const std::string& name, const Outcome& outcome = {}, int64_t node_rank = -1,
            int64_t ranks = 1) {
    membership.add({.id = name,
                    .attempt = ++attempts[name],
                    .name = name,
                    .ranks = ranks,
                    .node_rank = node_rank,
                    .address = name + ".net",
                    .port = 7,
                    .trained = outcome.kind != Kind::fresh,
                    .job = verdicts[name].job,
                    .outcome = outcome},
                   now);
  }
  // Decides, and returns the hosts of a new round in their order, or "".
  std::string decide() {
    std::map<int64_t, std::string> nodes;
    for (const auto& answer : membership.decide(now)) {
      CHECK(answer.attempt == attempts[answer.id]);
      verdicts[answer.id] = answer.verdict;
      if (!answer.verdict.end) nodes[answer.verdict.node] = answer.id;
    }
    std::string text;
    for (const auto& [node, name] : nodes) text += name;
    return text;
  }
  std::string after(std::chrono::milliseconds time) {
    now += time;
    return decide();
  }
  bool ordered(Stop stop, int64_t round) const {
    const auto& orders = membership.orders();
    return !orders.empty() && orders.back().round == round && orders.back().stop == stop;
  }

  Time now = kStart;
  Membership membership;
  std::map<std::string, int64_t> attempts;
  std::map<std::string, Verdict> verdicts;
};

Outcome failed(const std::string& cause, bool lost_peers = false) {
  return {Kind::failed, 1, cause, lost_peers};
}

const MembershipOptions kElastic{.least = 1, .most = 2, .max_restarts = 1};

}  // namespace

TEST_CASE("a round has all hosts, or those that have come until the last call") {
  MemberHosts both(kElastic);
  both.come("a");
  CHECK(both.decide() == "");
  both.come("b");
  CHECK(both.decide() == "ab");
  CHECK(both.verdicts["b"].host == "a.net");
  CHECK(both.verdicts["b"].port == 7);
  CHECK(both.verdicts["b"].nodes == 2);
  CHECK_FALSE(both.verdicts["b"].again);
  CHECK(both.verdicts["b"].note == "");

  MemberHosts one(kElastic);
  one.come("a");
  CHECK(one.after(29s) == "");
  CHECK(one.after(1s) == "a");

  MemberHosts numbered({.least = 2, .most = 2});
  numbered.come("b", {}, 1);
  numbered.come("a", {}, 0);
  CHECK(numbered.decide() == "ab");
}

TEST_CASE("fewer hosts than the job needs end it after the time-out with those that came") {
  MemberHosts hosts({.least = 2, .most = 3});
  hosts.come("a");
  CHECK(hosts.after(59s) == "");
  CHECK_FALSE(hosts.membership.ended());
  hosts.after(1s);
  CHECK(hosts.membership.done());
  CHECK(hosts.verdicts["a"].status == 1);
  CHECK(hosts.verdicts["a"].text ==
        "[launch] 2 hosts must come within 60 s, but 1 did: a; start the others, "
        "all with the same --nodes and --max-restarts");
}

TEST_CASE("a job has one id on all hosts, in all rounds and with another keeper") {
  MemberHosts hosts(kElastic);
  hosts.come("a");
  hosts.come("b");
  hosts.decide();
  const auto id = hosts.verdicts["a"].job;
  CHECK(id != "");
  CHECK(hosts.verdicts["b"].job == id);
  hosts.come("b", failed("lost a", true));
  hosts.decide();
  CHECK(hosts.after(2s) == "b");
  CHECK(hosts.verdicts["b"].job == id);

  MemberHosts later(kElastic);
  later.verdicts = hosts.verdicts;
  later.come("c");
  later.come("b", failed("lost the keeper", true));
  CHECK(later.decide() == "cb");
  CHECK(later.verdicts["c"].job == id);
  MemberHosts another(kElastic);
  another.come("c");
  another.come("d");
  another.decide();
  CHECK(another.verdicts["d"].job != id);
}

TEST_CASE("a lost host's round ends everywhere, and the others go on after the grace") {
  MemberHosts hosts(kElastic);
  hosts.come("a");
  hosts.come("b");
  hosts.decide();
  hosts.come("b", failed("lost a", true));
  CHECK(hosts.decide() == "");
  CHECK(hosts.ordered(Stop::over, 1));
  CHECK(hosts.after(1s) == "");
  CHECK(hosts.after(1s) == "b");
  const auto& verdict = hosts.verdicts["b"];
  CHECK((verdict.node == 0 && verdict.nodes == 1 && verdict.host == "b.net" && verdict.again));
  CHECK(verdict.restarts == 0);  // a lost host is no restart
  CHECK_THAT(verdict.note, Contains("host a does not answer") && Contains("on 1 host"));
}

TEST_CASE("a host that comes back is taken in after the others have saved") {
  MemberHosts hosts(kElastic);
  hosts.come("a");
  hosts.after(30s);
  hosts.come("b");
  CHECK(hosts.decide() == "");
  CHECK(hosts.ordered(Stop::save, 1));
  CHECK(hosts.after(100s) == "");  // however long the running step takes
  hosts.come("a", {Kind::saved, 1, "stopped"});
  CHECK(hosts.decide() == "ab");
  CHECK(hosts.verdicts["a"].again);
  CHECK_THAT(hosts.verdicts["a"].note, Contains("host b joins"));
  CHECK(hosts.verdicts["a"].restarts == 0);
}

TEST_CASE("a host that other hosts had lost is taken in without a restart") {
  MemberHosts hosts({.least = 1, .most = 2});
  hosts.come("b");
  hosts.after(30s);
  hosts.come("a", failed("it stood still"));
  hosts.decide();
  CHECK(hosts.ordered(Stop::save, 1));
  hosts.come("b", {Kind::saved, 1, "stopped"});
  CHECK(hosts.decide() == "ba");
}

TEST_CASE("a host more than the job may have waits until one is lost") {
  MemberHosts hosts(kElastic);
  for (const auto* name : {"a", "b", "c"}) hosts.come(name);
  CHECK(hosts.decide() == "ab");
  CHECK(hosts.after(100s) == "");
  CHECK(hosts.membership.orders().empty());
  hosts.come("b", failed("lost a", true));
  CHECK(hosts.decide() == "");  // a may yet come
  CHECK(hosts.after(2s) == "bc");
}

TEST_CASE("a failure with all hosts alive is a restart, with a pause, up to the limit") {
  MemberHosts hosts({.least = 2, .most = 2, .max_restarts = 2, .backoff_seconds = 4});
  hosts.come("a");
  hosts.come("b");
  CHECK(hosts.decide() == "ab");
  for (const auto pause : {4s, 8s}) {
    hosts.come("b", failed("lost rank 0", true));
    hosts.come("a", failed("rank 0: a bad disk"));
    CHECK(hosts.decide() == "");
    CHECK(hosts.after(pause - 1s) == "");
    CHECK(hosts.after(1s) == "ab");
    CHECK_THAT(hosts.verdicts["b"].note, Contains("host a: rank 0: a bad disk: restart"));
  }
  CHECK(hosts.verdicts["b"].restarts == 2);
  hosts.come("a", failed("rank 0: a bad disk"));
  hosts.come("b", failed("lost rank 0", true));
  hosts.decide();
  CHECK(hosts.membership.done());
  CHECK(hosts.verdicts["b"].status == 1);
  CHECK(hosts.verdicts["b"].text == "host a: rank 0: a bad disk");
  CHECK(hosts.verdicts["a"].mine);
}

TEST_CASE("an outcome that a restart cannot mend ends the job on all hosts") {
  MemberHosts hosts(kElastic);
  hosts.come("a");
  hosts.come("b");
  hosts.decide();
  hosts.come("a", {Kind::final, 2, "[job] a wrong key"});
  hosts.decide();
  CHECK(hosts.ordered(Stop::over, 1));
  CHECK_FALSE(hosts.membership.done());  // b has no verdict yet
  hosts.come("b", failed("lost a", true));
  hosts.decide();
  CHECK(hosts.membership.done());
  CHECK(
      (hosts.verdicts["b"].status == 2 && hosts.verdicts["b"].text == "host a: [job] a wrong key"));

  MemberHosts good(kElastic);
  good.come("a");
  good.come("b");
  good.decide();
  good.come("a", {Kind::final, 0, "done"});
  good.decide();
  CHECK(good.membership.orders().empty());  // b's ranks are about to end
}

TEST_CASE("a new keeper goes on with hosts that have trained before") {
  MemberHosts hosts(kElastic);
  hosts.come("b", failed("lost a", true));
  CHECK(hosts.after(1s) == "");
  CHECK(hosts.after(1s) == "b");
  CHECK(hosts.verdicts["b"].again);
}

TEST_CASE("hosts that do not fit are refused, alone where the job trains already") {
  MemberHosts hosts(kElastic);
  hosts.come("a");
  hosts.come("b", {}, -1, 3);
  hosts.decide();
  CHECK_THAT(hosts.verdicts["a"].text, Contains("--nproc") && Contains("b has 3"));
  CHECK(hosts.verdicts["b"].status == 2);

  MemberHosts late(kElastic);
  late.come("a", {}, 0);
  late.after(30s);
  late.come("b", {}, -1, 3);
  late.decide();
  CHECK(late.verdicts["b"].status == 2);
  CHECK_FALSE(late.verdicts["a"].end);
  late.come("c", {}, 1);
  late.come("d", {}, 1);
  late.decide();
  CHECK_THAT(late.verdicts["c"].text, Contains("--node-rank"));
  CHECK_FALSE(late.membership.ended());
}

TEST_CASE("messages of hosts survive printing, and others are errors") {
  const Registration one{
      "id", 3, "name \xff\n", 2, 1, "address", 7, true, 4, "job", {Kind::saved, 1, "cause", true}};
  const auto read = parse_registration(print(one));
  CHECK(print(one).find('\n') == std::string::npos);
  CHECK((read.id == "id" && read.attempt == 3 && read.ranks == 2 && read.node_rank == 1));
  CHECK((read.address == "address" && read.port == 7 && read.trained && read.restarts == 4));
  CHECK(read.job == "job");
  CHECK((read.outcome.kind == Kind::saved && read.outcome.status == 1 && read.outcome.lost_peers));
  const auto verdict = parse_verdict(
      print(Verdict{.round = 2, .node = 1, .nodes = 3, .job = "job", .note = "n"}));
  CHECK((verdict.round == 2 && verdict.node == 1 && verdict.nodes == 3 && verdict.job == "job"));
  CHECK(verdict.note == "n");
  CHECK_THROWS_AS(parse_registration("{}"), perigee::Error);
  CHECK_THROWS_AS(parse_verdict("x"), perigee::Error);
}
