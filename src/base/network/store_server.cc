#include "base/network/store_server.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include "base/fail.h"
#include "base/network/descriptor.h"
#include "base/network/socket.h"
#include "base/network/store_requests.h"

namespace perigee::store {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kAccepts = 64;                             // in one round, before clients are served
constexpr auto kPause = std::chrono::milliseconds(100);  // after the system has no descriptor
constexpr auto kLinger = std::chrono::seconds(1);        // for a client to read its error

// A client's connection.
struct Connection {
  Descriptor socket;
  std::string nonce;
  bool trusted = false;  // has proved that it knows the secret
  bool ending = false;   // its last answer is on the way; further bytes are dropped
  Clock::time_point deadline = Clock::time_point::max();  // of the handshake, or of the end
  std::string input, output;
};

}  // namespace

class Server::Impl {
 public:
  explicit Impl(ServerOptions options)
      : options_(std::move(options)),
        listener_(options_.listen_socket),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        requests_(options_.limits) {
    const int flags = ::fcntl(listener_.get(), F_GETFL);
    if (stop_.get() < 0 || flags < 0 ||
        ::fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
      fail_run("store", "the store must have a socket that listens and an event, but got: {}",
               std::strerror(errno));
    }
    sigset_t all, before;  // signals reach the threads of the host program
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      fail_run("store", "the store must have a thread, but got: {}", error.what());
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Impl() {
    stopped_ = true;
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }

 private:
  void run() {
    while (!stopped_) serve_round();
  }

  // Waits for events and handles those of each connection once.
  void serve_round() {
    const auto now = Clock::now();
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
    std::vector<ClientId> ids = {0};
    auto wake = Clock::time_point::max();
    if (accept_after_ <= now) {
      polled.push_back({listener_.get(), POLLIN, 0});
      ids.push_back(0);
    } else {
      wake = accept_after_;
    }
    const size_t first = ids.size();
    for (const auto& [id, one] : connections_) {
      polled.push_back({one.socket.get(), events_of(id, one), 0});
      ids.push_back(id);
      wake = std::min(wake, one.deadline);
    }
    if (::poll(polled.data(), polled.size(), milliseconds_until(wake)) < 0 && errno != EINTR) {
      // No memory, or fewer descriptors allowed than are open.
      if (!close_oldest_stranger()) std::this_thread::sleep_for(kPause);
      return;
    }
    for (size_t i = first; i < ids.size(); ++i) {
      if (polled[i].revents != 0) guard(ids[i], polled[i].revents);
    }
    close_late();
    if (first == 2 && polled[1].revents != 0) accept_all();
  }

  short events_of(ClientId id, const Connection& one) const {
    if (!one.output.empty()) return POLLOUT;
    // A client that waits for keys sends nothing: only its end is of interest.
    return requests_.waits(id) ? POLLRDHUP : POLLIN;
  }

  // Handles the events of a connection; its errors end only this connection.
  void guard(ClientId id, short events) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    auto& one = found->second;
    try {
      const bool hung_up = (events & (POLLERR | POLLNVAL)) != 0 ||
                           (requests_.waits(id) && (events & (POLLRDHUP | POLLHUP)) != 0);
      if (hung_up || !handle_events(id, one)) close(id);
    } catch (const std::exception&) {  // out of memory
      close(id);
    }
  }

  // Returns whether the connection goes on.
  bool handle_events(ClientId id, Connection& one) {
    if (!one.output.empty()) {
      if (!flush(one)) return false;
      if (one.output.empty()) answer_requests(id, one);
      return true;
    }
    const size_t most = one.trusted ? kReceived : kFirstFrame;
    const auto got = ::recv(one.socket.get(), piece_.data(), most, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    if (!one.ending) {
      one.input.append(piece_.data(), static_cast<size_t>(got));
      answer_requests(id, one);
    }
    return true;
  }

  // Handles the received frames until one waits or its answer cannot be sent at once.
  void answer_requests(ClientId id, Connection& one) {
    try {
      while (!one.ending && one.output.empty() && !requests_.waits(id)) {
        const auto frame = take_frame(one.input,
                                      one.trusted ? options_.limits.frame() : kFirstFrame);
        if (!frame) break;
        if (!one.trusted) {
          check_proof(id, one, *frame);
        } else {
          for (const auto& answer : requests_.handle(id, *frame)) {
            auto& to = connections_.at(answer.client);  // others' leave in the next round
            to.output += answer.frame;
            if (answer.last) finish(to);
          }
        }
        if (!flush(one)) break;
      }
    } catch (const Malformed& error) {
      end(one, error.what());
    }
  }

  void check_proof(ClientId id, Connection& one, const Frame& frame) {
    Reader reader(frame);
    if (frame.kind != Kind::proof) throw Malformed("a client must first prove that it is one");
    const auto nonce = reader.text(), proof = reader.text();
    if (nonce.size() != kNonceSize || !reader.done()) throw Malformed("a proof must have a nonce");
    if (!same_proof(proof, options_.keyed_hash(client_claim(one.nonce, nonce)))) {
      one.output += Writer(Kind::refused).finish();
      finish(one);
      return;
    }
    one.output +=
        std::move(Writer(Kind::welcome).text(options_.keyed_hash(server_claim(one.nonce, nonce))))
            .finish();
    one.trusted = true;
    one.deadline = Clock::time_point::max();
    strangers_.erase(id);
  }

  // Ends a connection, with the reason for a client that has proved to be one.
  void end(Connection& one, const std::string& reason) {
    if (one.trusted) {
      one.output += std::move(Writer(Kind::error).text(reason)).finish();
    } else {
      one.output.clear();
    }
    finish(one);
  }

  // Sends the rest of the output. The client reads it before the connection ends: closing with
  // unread input would drop it.
  void finish(Connection& one) {
    one.ending = true;
    one.input = {};
    one.deadline = std::min(one.deadline, Clock::now() + kLinger);
    if (flush(one) && one.output.empty()) ::shutdown(one.socket.get(), SHUT_WR);
  }

  // Returns whether the connection is alive.
  bool flush(Connection& one) {
    if (one.output.empty()) return true;
    const auto sent = ::send(one.socket.get(), one.output.data(), one.output.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    one.output.erase(0, static_cast<size_t>(sent));
    if (one.ending && one.output.empty()) ::shutdown(one.socket.get(), SHUT_WR);
    return true;
  }

  void accept_all() {
    for (int i = 0; i < kAccepts; ++i) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() >= 0) {
        add(std::move(socket));
        continue;
      }
      if (errno == EAGAIN) return;
      if (errno == ECONNABORTED || errno == EINTR) continue;
      // Too many open files, no memory or an error of the network.
      if (close_oldest_stranger()) continue;
      accept_after_ = Clock::now() + kPause;
      return;
    }
  }

  void add(Descriptor socket) {
    if (strangers_.size() >= options_.strangers) close_oldest_stranger();
    keep_alive(socket.get());
    const auto id = ++last_;
    Connection one;
    one.socket = std::move(socket);
    one.nonce = random_bytes(kNonceSize);
    one.deadline = Clock::now() + options_.handshake;
    one.output = std::move(Writer(Kind::hello).text(one.nonce)).finish();
    flush(one);
    connections_.emplace(id, std::move(one));
    strangers_.insert(id);
  }

  void close(ClientId id) {
    requests_.leave(id);
    strangers_.erase(id);
    connections_.erase(id);
  }

  bool close_oldest_stranger() {
    if (strangers_.empty()) return false;
    close(*strangers_.begin());  // ids grow
    return true;
  }

  void close_late() {
    const auto now = Clock::now();
    std::vector<ClientId> late;
    for (const auto& [id, one] : connections_) {
      if (one.deadline <= now) late.push_back(id);
    }
    for (const auto id : late) close(id);
  }

  const ServerOptions options_;
  const Descriptor listener_, stop_;
  std::atomic<bool> stopped_ = false;
  std::vector<char> piece_ = std::vector<char>(kReceived);
  Requests requests_;
  std::map<ClientId, Connection> connections_;
  std::set<ClientId> strangers_;  // connections without a proof
  ClientId last_ = 0;
  Clock::time_point accept_after_ = Clock::time_point::min();
  std::thread thread_;
};

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;

}  // namespace perigee::store
