// The sockets on which the processes of a job listen, as /proc lists them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/types.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/command/support.h"

namespace perigee::test {

// Returns a process and all that it and its descendants have started, parents first.
inline std::vector<pid_t> family(pid_t pid) {
  std::vector<pid_t> found = {pid};
  for (size_t i = 0; i < found.size(); ++i) {
    for (const auto child : children(found[i])) found.push_back(child);
  }
  return found;
}

// Returns the inodes of a process's sockets.
inline std::set<std::string> socket_inodes(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/" + std::to_string(pid) + "/fd", error);
  for (const auto& file : files) {
    const auto target = std::filesystem::read_symlink(file.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// Returns "127.0.0.1" for "0100007F:1F90", a line's text: words of 32 bits in this machine's order.
inline std::string address_of(const std::string& text) {
  const auto digits = text.substr(0, text.find(':'));
  uint32_t words[4] = {};
  for (size_t i = 0; i < digits.size() / 8; ++i) {
    words[i] = static_cast<uint32_t>(std::stoul(digits.substr(8 * i, 8), nullptr, 16));
  }
  char printed[INET6_ADDRSTRLEN];
  return ::inet_ntop(digits.size() == 8 ? AF_INET : AF_INET6, words, printed, sizeof printed);
}

// Returns the numeric addresses and ports on which a process and its descendants listen (TCP).
inline std::set<std::pair<std::string, int>> listening_ports(pid_t pid) {
  std::set<std::pair<std::string, int>> found;
  for (const auto process : family(pid)) {
    const auto inodes = socket_inodes(process);
    for (const char* table : {"tcp", "tcp6"}) {  // of the process's own network namespace
      std::istringstream lines(read("/proc/" + std::to_string(process) + "/net/" + table));
      std::string line;
      std::getline(lines, line);  // the names of the columns
      while (std::getline(lines, line)) {
        std::istringstream text(line);
        std::string number, local, remote, state, skipped, inode;
        text >> number >> local >> remote >> state;
        for (int i = 0; i < 5; ++i) text >> skipped;
        text >> inode;
        if (state != "0A" || !inodes.contains(inode)) continue;
        found.emplace(address_of(local), std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
      }
    }
  }
  return found;
}

// Returns the addresses alone.
inline std::set<std::string> listening(pid_t pid) {
  std::set<std::string> addresses;
  for (const auto& [address, port] : listening_ports(pid)) addresses.insert(address);
  return addresses;
}

}  // namespace perigee::test
