// The launcher in a process of its own: its end after failures of ranks, signals and ports.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "base/error.h"
#include "tests/command/hosts/launched_job.h"

using namespace perigee;
using Catch::Matchers::Contains;
using command::launch;
using command::LaunchOptions;
using command::Place;
using test::hang;
using test::Shared;
using test::wait_to_stop;

namespace {

using Job = test::LaunchedJob;

// Stopping takes 1.5 s of grace; a longer time shows a rank that was not stopped.
constexpr double kSoon = 2.0;

}  // namespace

TEST_CASE("each rank knows its place, and rank 0 has a socket that listens") {
  Job job({.ranks = 3}, [](const Place& place, Shared& shared) {
    shared.world[place.rank] = static_cast<int>(place.world);
    shared.port[place.rank] = place.port;
    int listens = 0;
    socklen_t size = sizeof listens;
    if (place.listen_fd >= 0)
      ::getsockopt(place.listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
    shared.listening[place.rank] = listens;
    return place.local_rank == place.rank && place.local_world == 3 && place.host == "127.0.0.1"
               ? 0
               : 1;
  });
  CHECK(job.status() == 0);
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(job.shared().world[rank] == 3);
    CHECK(job.shared().port[rank] > 0);
    CHECK(job.shared().port[rank] == job.shared().port[0]);
    CHECK(job.shared().listening[rank] == (rank == 0 ? 1 : 0));
  }
  CHECK(job.written() == "");
}

TEST_CASE("the first failed rank determines the status, and the launcher stops the others") {
  Job job({.ranks = 3}, [](const Place& place, Shared& shared) {
    if (place.rank != 1) return hang(place, shared);
    while (shared.ready < 2) ::usleep(1000);
    return 3;
  });
  CHECK(job.status() == 3);
}

TEST_CASE("the launcher reports a rank killed by a signal, and stops the others") {
  Job job({.ranks = 2}, [](const Place& place, Shared& shared) {
    if (place.rank != 1) return wait_to_stop(place, shared);
    while (shared.ready < 1) ::usleep(1000);
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  CHECK(job.status() == 1);
  CHECK_THAT(job.written(), Contains("rank 1 was killed by signal 9") && Contains("memory"));
}

TEST_CASE("a lost connection is reported only if no rank failed by itself") {
  const auto lose = [](const Place& place) -> int {
    throw Error(Status::failed, "communicator", fmt::format("I lost them, says {}", place.rank));
  };
  for (const int culprit : {0, 1}) {  // in both orders of their ends
    Job job({.ranks = 2}, [&](const Place& place, Shared& shared) {
      if (place.rank != culprit) {
        ++shared.ready;
        return lose(place);
      }
      while (shared.ready < 1) ::usleep(1000);
      ::usleep(20'000);
      return 3;
    });
    CHECK(job.status() == 3);
    CHECK(job.written() == "");
  }
  Job no_culprit({.ranks = 2}, [&](const Place& place, Shared& shared) {
    return place.rank == 1 ? hang(place, shared) : lose(place);
  });
  CHECK(no_culprit.status() == 1);
  CHECK(no_culprit.written() == "perigee: rank 0: [communicator] I lost them, says 0\n");
}

TEST_CASE("the launcher reports one message and its status if several ranks fail") {
  Job job({.ranks = 3}, [](const Place& place, Shared& shared) -> int {
    ++shared.ready;
    while (shared.ready < 3) ::usleep(1000);
    if (place.rank == 1) throw Error(Status::failed, "communicator", "lost");
    throw Error(Status::invalid, "test", "the disk is full");
  });
  CHECK(job.status() == 2);
  CHECK_THAT(job.written(),
             Catch::Matchers::Matches("perigee: rank [02]: \\[test\\] the disk is full\n"));
}

TEST_CASE("a killed rank is reported although another rank lost it first") {
  Job job({.ranks = 2}, [](const Place& place, Shared& shared) -> int {
    if (place.rank == 0) {
      ++shared.ready;
      throw Error(Status::failed, "communicator", "lost");
    }
    while (shared.ready < 1) ::usleep(1000);
    ::usleep(20'000);
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  CHECK(job.status() == 1);
  CHECK_THAT(job.written(), Contains("rank 1 was killed by signal 9") && !Contains("lost"));
}

TEST_CASE("SIGINT and SIGTERM to the launcher soon end all ranks, also ranks that ignore them") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const auto body : {hang, wait_to_stop}) {
      Job job({.ranks = 2}, body);
      job.wait_ready(2);
      ::kill(job.pid(), signal);
      CHECK(job.seconds_to_end() < kSoon);
      CHECK(job.status() == 1);
    }
  }
}

TEST_CASE("a signal reaches each rank once, also where another rank ends before it") {
  Job job({.ranks = 2}, [](const Place& place, Shared& shared) -> int {
    static volatile sig_atomic_t asked = 0;  // a second request ends the rank, as in a training
    ::signal(SIGTERM, [](int signal) {
      asked = 1;
      ::signal(signal, SIG_DFL);
    });
    ++shared.ready;
    while (asked == 0) ::usleep(1000);
    if (place.rank == 0) {
      ::usleep(300'000);
      std::fprintf(stderr, "rank 0 has written its log\n");
    }
    return 3;
  });
  job.wait_ready(2);
  ::kill(job.pid(), SIGINT);
  CHECK(job.status() == 3);
  CHECK_THAT(job.written(), Contains("rank 0 has written its log"));
}

TEST_CASE("a second signal kills at once") {
  Job job({.ranks = 2}, hang);
  job.wait_ready(2);
  ::kill(job.pid(), SIGINT);
  ::kill(job.pid(), SIGTERM);  // another number: equal pending signals are one
  CHECK(job.seconds_to_end() < 1);
}

TEST_CASE("kill -9 of the launcher ends all ranks") {
  Job job({.ranks = 3}, hang);
  job.wait_ready(3);
  ::kill(job.pid(), SIGKILL);
  CHECK(job.seconds_to_end() < kSoon);
  CHECK(job.status() == -SIGKILL);
}

TEST_CASE("a port in use is an error that names the port and the option to change") {
  const int taken = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  REQUIRE(::bind(taken, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(taken, 1) == 0);
  ::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin_port);
  for (const int64_t nodes : {1, 2}) {
    Job job({.nodes = nodes, .rendezvous = "127.0.0.1:" + std::to_string(port)}, hang);
    CHECK(job.status() == 1);
    CHECK(job.written() == "[network] rank 0 must listen on port " + std::to_string(port) +
                               " of 127.0.0.1, but got: it is in use; free the port or take "
                               "another (--rendezvous, or MASTER_PORT under another launcher)\n");
  }
  ::close(taken);
}

TEST_CASE("two launchers on one host form one world") {
  const auto rendezvous = "127.0.0.1:" + std::to_string(test::free_port());
  for (const int64_t node : {0, 1}) {
    Job job({.ranks = 2, .nodes = 2, .node_rank = node, .rendezvous = rendezvous},
            [node](const Place& place, Shared&) {
              return place.world == 4 && place.rank == 2 * node + place.local_rank &&
                             place.local_world == 2 && (place.listen_fd >= 0) == (place.rank == 0)
                         ? 0
                         : 1;
            });
    CHECK(job.status() == 0);
  }
}

TEST_CASE("ranks of one host share a random secret, and those of several hosts the given one") {
  std::set<int> secrets;
  for (int i = 0; i < 2; ++i) {
    Job job({.ranks = 2}, [](const Place& place, Shared& shared) {
      shared.port[place.rank] = static_cast<int>(std::hash<std::string>{}(place.secret));
      return place.secret.size() == 32 ? 0 : 1;
    });
    CHECK(job.status() == 0);
    CHECK(job.shared().port[0] == job.shared().port[1]);
    secrets.insert(job.shared().port[0]);
  }
  CHECK(secrets.size() == 2);
  const auto rendezvous = "127.0.0.1:" + std::to_string(test::free_port());
  for (const std::string given : {"given", ""}) {
    Job job({.nodes = 2, .rendezvous = rendezvous, .secret = given},
            [given](const Place& place, Shared&) { return place.secret == given ? 0 : 1; });
    CHECK(job.status() == 0);
  }
}

TEST_CASE("the launcher checks its options for several nodes") {
  const auto error = [](const LaunchOptions& options) -> std::string {
    try {
      launch(options, [](const Place&) { return 0; });
    } catch (const Error& error) {
      CHECK(error.status() == Status::invalid);
      return error.what();
    }
    return "no error";
  };
  CHECK(error({.nodes = 2}) ==
        "[launch] several nodes need --rendezvous HOST:PORT of node 0, but there is none");
  CHECK(error({.nodes = 2, .node_rank = 2, .rendezvous = "a:1"}) ==
        "[launch] --node-rank must be from 0 to 1, but got 2");
  for (const std::string text : {"a", "a:", ":1", "a:0", "a:65536", "a:1x"}) {
    CHECK(error({.nodes = 2, .rendezvous = text}) ==
          "[launch] --rendezvous must be HOST:PORT of node 0, but got \"" + text + "\"");
  }
}

TEST_CASE("the launcher works with 2,000 inherited descriptors, under the address sanitizer") {
  const auto folder = std::filesystem::path(test::command_path()).parent_path();
  const auto ran = test::Process({folder / "program_launcher"},
                                 {.environment = {{"ASAN_OPTIONS", "detect_leaks=0"}}})
                       .wait();
  INFO(ran.err);
  if (ran.status == 77) {
    WARN("this system permits no 2,000 descriptors: inheriting them was not tested");
    return;
  }
  CHECK(ran.status == 0);
  CHECK_THAT(ran.err, !Contains("AddressSanitizer"));
}
