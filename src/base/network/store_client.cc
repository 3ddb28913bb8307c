#include "base/network/store_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/fail.h"
#include "base/network/socket.h"

namespace perigee::store {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kTry = std::chrono::seconds(5);  // of one connection
constexpr int kTries = 5;
constexpr milliseconds kFirstPause{10}, kLastPause{500};

Clock::time_point deadline_of(milliseconds timeout) {
  const auto now = Clock::now();
  const auto longest = std::chrono::duration_cast<milliseconds>(Clock::time_point::max() - now);
  const bool none = timeout.count() <= 0 || timeout >= longest;
  return none ? Clock::time_point::max() : now + timeout;
}

// Waits for events on the socket and returns those that happened. Throws TimedOut.
short wait_for(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    pollfd one{socket, events, 0};
    const int ready = ::poll(&one, 1, milliseconds_until(deadline));
    if (ready > 0) return one.revents;
    if (ready < 0 && errno != EINTR) throw Lost(std::strerror(errno));
    if (Clock::now() >= deadline) throw TimedOut("no answer in time");
  }
}

// Sends a frame, or stops early where the store answers before it has all: with an error.
void send(int socket, const std::string& frame, Clock::time_point deadline) {
  for (size_t at = 0; at < frame.size();) {
    const auto sent = ::send(socket, frame.data() + at, frame.size() - at, MSG_NOSIGNAL);
    if (sent >= 0) {
      at += static_cast<size_t>(sent);
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return;  // the store may have sent the reason
    } else if (errno == EAGAIN) {
      if ((wait_for(socket, POLLIN | POLLOUT, deadline) & POLLIN) != 0) return;
    } else if (errno != EINTR) {
      throw Lost(std::strerror(errno));
    }
  }
}

Frame receive(int socket, size_t limit, Clock::time_point deadline) {
  std::string received;
  std::vector<char> piece(std::min(limit, kReceived));
  for (;;) {
    if (auto frame = take_frame(received, limit)) return std::move(*frame);
    const auto got = ::recv(socket, piece.data(), piece.size(), 0);
    if (got > 0) {
      received.append(piece.data(), static_cast<size_t>(got));
    } else if (got == 0) {
      throw Lost("the store closed the connection");
    } else if (errno == EAGAIN) {
      wait_for(socket, POLLIN, deadline);
    } else if (errno != EINTR) {
      throw Lost(std::strerror(errno));
    }
  }
}

// Connects to one address. Throws Lost with the system's reason, and TimedOut.
Descriptor connect_to(const addrinfo& address, Clock::time_point deadline) {
  Descriptor socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (socket.get() < 0) throw Lost(std::strerror(errno));
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) throw Lost(std::strerror(errno));
    wait_for(socket.get(), POLLOUT, deadline);
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) throw Lost(std::strerror(error));
  }
  keep_alive(socket.get());
  return socket;
}

// Connects to the first address of the host that answers, IPv4 before IPv6.
Descriptor connect_to(const std::string& host, int port, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    throw Lost(::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::string reason = "the host has no address";
  for (const int family : {AF_INET, AF_INET6}) {
    for (const auto* one = found; one; one = one->ai_next) {
      if (one->ai_family != family) continue;
      try {
        return connect_to(*one, deadline);
      } catch (const Lost& error) {
        reason = error.what();
      }
    }
  }
  throw Lost(reason);
}

}  // namespace

Client::Client(ClientOptions options) : options_(std::move(options)) {
  const auto deadline = deadline_of(options_.timeout);
  auto pause = kFirstPause;
  for (;;) {
    std::string reason;
    try {
      idle_.push_back(connect(deadline));
      return;
    } catch (const Lost& error) {
      reason = error.what();
    } catch (const TimedOut& error) {
      reason = error.what();
    }
    if (Clock::now() + pause >= deadline) throw TimedOut(reason);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLastPause);
  }
}

Descriptor Client::connect(Time deadline) const {
  deadline = std::min(deadline, Clock::now() + kTry);
  try {
    for (int left = kTries - 1;; --left) {
      auto socket = connect_to(options_.host, options_.port, deadline);
      try {
        return prove(std::move(socket), deadline);
      } catch (const Lost&) {  // connections of strangers may have displaced it
        if (left == 0) throw;
      }
      std::this_thread::sleep_for(kFirstPause);
    }
  } catch (const Malformed& error) {
    fail_run("communicator",
             "{} must find the job's store at {}:{}, but another program or version answers: {}",
             options_.name, options_.host, options_.port, error.what());
  }
}

Descriptor Client::prove(Descriptor socket, Time deadline) const {
  const auto hello = receive(socket.get(), kFirstFrame, deadline);
  if (hello.kind != Kind::hello) throw Malformed("the first message is not a store's");
  const std::string server_nonce(Reader(hello).text());
  const auto nonce = random_bytes(kNonceSize);
  send(socket.get(),
       std::move(Writer(Kind::proof)
                     .text(nonce)
                     .text(options_.keyed_hash(client_claim(server_nonce, nonce))))
           .finish(),
       deadline);
  const auto answer = receive(socket.get(), kFirstFrame, deadline);
  if (answer.kind == Kind::refused) {
    fail("communicator",
         "{} must know the job's secret (PERIGEE_SECRET or --secret-file), but the store refuses "
         "it",
         options_.name);
  }
  if (answer.kind != Kind::welcome) throw Malformed("the second message is not a store's");
  if (!same_proof(Reader(answer).text(), options_.keyed_hash(server_claim(server_nonce, nonce)))) {
    fail("communicator",
         "{} must find the job's store at {}:{}, but the program there does not know the job's "
         "secret: another job or program has the port",
         options_.name, options_.host, options_.port);
  }
  return socket;
}

Frame Client::ask(Writer request, milliseconds timeout) {
  const auto deadline = deadline_of(timeout);
  if (request.size() > Limits().frame()) {
    fail_run("store", "keys and values of one request must have at most {} bytes, but have {}",
             Limits().frame(), request.size());
  }
  Descriptor socket;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      socket = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (socket.get() < 0) socket = connect(deadline);
  Frame answer;
  try {
    send(socket.get(), std::move(request).finish(), deadline);
    answer = receive(socket.get(), Limits().frame() + kFirstFrame, deadline);
  } catch (const Malformed& error) {
    throw Lost(error.what());
  }
  if (answer.kind == Kind::error) fail_run("store", "{}", Reader(answer).text());
  if (answer.kind != Kind::done) throw Lost("the store sent an unknown answer");
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(socket));
  return answer;
}

}  // namespace perigee::store
