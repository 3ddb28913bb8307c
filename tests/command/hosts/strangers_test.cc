// Strangers connect to every port of a running job, and change no step.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <vector>

#include "base/network/descriptor.h"
#include "tests/command/hosts/sockets.h"
#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using perigee::Descriptor;

namespace {

// Begins to connect, and sends what is not a message of any protocol where that succeeds.
Descriptor stranger(int port, bool idle) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  REQUIRE(socket.get() >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  if (!idle) ::send(socket.get(), "GET / HTTP/1.1\r\n\r\n\xff\xff\xff\xff\xff", 23, MSG_NOSIGNAL);
  return socket;
}

}  // namespace

TEST_CASE("two thousand strangers at the ports of a job with 1024 descriptors change no step") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  const std::string communicator = GENERATE("gloo", "auto");
  INFO(communicator);
  const TrainingJob job;
  const std::string more = "--nproc 2 --set train.steps=800 --set cluster.communicator=" +
                           communicator;
  job.good("train", more);
  const auto undisturbed = job.losses();
  auto words = job.words("train", more + " --overwrite");
  words.insert(words.begin(), {"sh", "-c", "ulimit -n 1024 && exec \"$@\"", "sh"});
  Process running(words, job.how());
  running.wait_for("step 10/");
  const auto ports = listening_ports(running.pid());
  CHECK(ports.size() >= (communicator == "gloo" ? 3 : 1));
  std::vector<Descriptor> strangers;
  for (int count = 0; count < 2000; ++count) {
    for (const auto& [address, port] : ports) {
      if (strangers.size() + 100 < limit.rlim_max)
        strangers.push_back(stranger(port, count % 8 > 0));
    }
  }
  const auto ran = running.wait();
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK(job.losses() == undisturbed);
}
