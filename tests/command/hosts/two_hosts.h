// Two hosts with network stacks, names and hosts files of their own: Linux's namespaces.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/command/hosts/slow_cable.h"

namespace perigee::test {

inline bool succeeds(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

// Two hosts, "pg-a" at 10.93.0.1 and "pg-b" at 10.93.0.2, joined by a cable. Their names and those
// of their files contain the test's process id, so that several tests can run at once.
class TwoHosts {
 public:
  // `hosts`: the hosts file of each, without the line of localhost.
  TwoHosts(const std::string& first, const std::string& second, const Cable& cable = {}) {
    ready_ = ::geteuid() == 0;
    for (const int host : {0, 1}) {
      ready_ = ready_ && succeeds("ip netns add " + name(host)) &&
               succeeds("ip -n " + name(host) + " link set lo up");
      if (!ready_) break;
      std::error_code error;
      std::filesystem::create_directories("/etc/netns/" + name(host), error);
      std::ofstream("/etc/netns/" + name(host) + "/hosts") << "127.0.0.1 localhost\n"
                                                           << (host == 0 ? first : second);
      std::ofstream("/etc/netns/" + name(host) + "/resolv.conf") << "";  // no name server
      ready_ = std::filesystem::exists("/etc/netns/" + name(host) + "/hosts");
    }
    if (ready_ && cable.slow()) {
      cable_ = std::make_unique<SlowCable>(cable, SlowCable::End{name(0), "pgv0"},
                                           SlowCable::End{name(1), "pgv1"});
      ready_ = cable_->ready();
    } else {
      ready_ = ready_ && succeeds("ip link add pgv0 netns " + name(0) +
                                  " type veth peer name pgv1 netns " + name(1));
    }
    for (const int host : {0, 1}) {
      const auto in = "ip -n " + name(host);
      const auto device = "pgv" + std::to_string(host);
      ready_ = ready_ &&
               succeeds(in + " addr add 10.93.0." + std::to_string(host + 1) + "/24 dev " +
                        device) &&
               succeeds(in + " link set " + device + " up");
    }
    // The mounts that `ip netns exec` makes may be forbidden where namespaces are not.
    ready_ = ready_ && succeeds("ip netns exec " + name(0) + " unshare --uts hostname pg-a");
    if (!ready_)
      WARN("this system permits no network namespaces or devices: two hosts were not tested");
  }

  ~TwoHosts() {
    cable_.reset();
    for (const int host : {0, 1}) {
      succeeds("ip netns delete " + name(host));
      std::error_code error;
      std::filesystem::remove_all("/etc/netns/" + name(host), error);
    }
  }

  bool ready() const { return ready_; }
  const SlowCable& slow_cable() const { return *cable_; }

  // Pulls the cable, and mends it.
  void disconnect() const { succeeds("ip -n " + name(0) + " link set pgv0 down"); }
  void connect() const { succeeds("ip -n " + name(0) + " link set pgv0 up"); }

  // Returns the command as one that runs on the host.
  std::vector<std::string> on(int host, const std::vector<std::string>& command) const {
    std::vector<std::string> words = {
        "ip",
        "netns",
        "exec",
        name(host),
        "unshare",
        "--uts",
        "sh",
        "-c",
        "hostname " + std::string(host == 0 ? "pg-a" : "pg-b") + "; exec \"$@\"",
        "sh"};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

 private:
  static std::string name(int host) {
    return "perigee-" + std::to_string(::getpid()) + "-" + std::to_string(host);
  }
  bool ready_ = false;
  std::unique_ptr<SlowCable> cable_;
};

}  // namespace perigee::test
