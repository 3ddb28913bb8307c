#include "base/network/socket.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace perigee {

void keep_alive(int socket) {
  const int on = 1, idle_seconds = 60, pause_seconds = 15, probes = 4;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &pause_seconds, sizeof pause_seconds);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

std::set<int> listening_sockets() {
  std::set<int> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const auto name = entry.path().filename().string();
    int socket = -1, listens = 0;
    std::from_chars(name.data(), name.data() + name.size(), socket);
    socklen_t size = sizeof listens;
    if (::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens) {
      found.insert(socket);
    }
  }
  return found;
}

void drop_connections(int listening_socket) {
  sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);  // bytes of a packet that pass
  const sock_fprog program{.len = 1, .filter = &nothing};
  ::setsockopt(listening_socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

int milliseconds_until(std::chrono::steady_clock::time_point time) {
  using Clock = std::chrono::steady_clock;
  if (time == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

}  // namespace perigee
