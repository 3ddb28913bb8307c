// The server and client of a job's store: authentication, requests, limits and foreign connections.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/network/address.h"
#include "base/network/descriptor.h"
#include "base/network/store_client.h"
#include "base/network/store_server.h"

using namespace perigee;
using namespace perigee::store;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

// A keyed hash without cryptographic strength: these tests need only that it depends on the secret.
// HMAC-SHA256 is tested in tests/exec.
KeyedHash hash_of(const std::string& secret) {
  return [secret](std::string_view text) {
    return std::to_string(std::hash<std::string>{}(secret + "/" + std::string(text)));
  };
}

class RunningServer {
 public:
  explicit RunningServer(const Limits& limits = {}, size_t strangers = 64,
                         std::chrono::milliseconds handshake = 5s) {
    const auto listener = listen_at("127.0.0.1", 0, false);
    port = listener.port;
    server_ = std::make_unique<Server>(ServerOptions{.listen_socket = listener.socket,
                                                     .keyed_hash = hash_of("secret"),
                                                     .limits = limits,
                                                     .strangers = strangers,
                                                     .handshake = handshake});
  }
  ClientOptions options(const std::string& secret = "secret") const {
    return {.host = "127.0.0.1",
            .port = port,
            .keyed_hash = hash_of(secret),
            .name = "rank 3",
            .timeout = 10s};
  }
  void end() { server_.reset(); }

  int port = 0;

 private:
  std::unique_ptr<Server> server_;
};

// A raw connection to a port, which may send any bytes.
class RawConnection {
 public:
  explicit RawConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("a stranger could not connect");
    }
    const timeval limit{20, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  void send(const std::string& bytes) const {
    ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Returns the next frame, or nothing at the end of the connection.
  std::optional<Frame> receive() {
    char piece[4096];
    for (;;) {
      if (auto frame = take_frame(received_, 1 << 20)) return frame;
      const auto got = ::recv(socket_.get(), piece, sizeof piece, 0);
      if (got < 0 && errno == EAGAIN) throw std::runtime_error("the connection did not end");
      if (got <= 0) return std::nullopt;
      received_.append(piece, static_cast<size_t>(got));
    }
  }
  // Proves that it knows the secret, and returns the kind of the answer.
  Kind prove(const std::string& secret) {
    const auto hello = receive();
    const auto nonce = random_bytes(kNonceSize);
    send(std::move(Writer(Kind::proof)
                       .text(nonce)
                       .text(hash_of(secret)(client_claim(Reader(*hello).text(), nonce))))
             .finish());
    const auto answer = receive();
    return answer ? answer->kind : Kind::error;
  }
  // Returns whether the server has closed the connection.
  bool ended() const {
    pollfd one{socket_.get(), POLLRDHUP, 0};
    return ::poll(&one, 1, 0) > 0;
  }

 private:
  Descriptor socket_;
  std::string received_;
};

Writer request(Kind kind, const std::vector<std::string>& texts) {
  Writer made(kind);
  for (const auto& text : texts) made.text(text);
  return made;
}

std::string get(Client& client, const std::string& key) {
  const auto answer = client.ask(request(Kind::get, {key}), 10s);
  return std::string(Reader(answer).text());
}

uint64_t number(Client& client, Writer asked) {
  const auto answer = client.ask(std::move(asked), 10s);
  return Reader(answer).number();
}

void set(Client& client, const std::string& key, const std::string& value) {
  client.ask(request(Kind::set, {key, value}), 10s);
}

// Returns the error of a request.
std::string refusal(Client& client, Writer asked) {
  try {
    client.ask(std::move(asked), 10s);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a store reads, writes, counts and deletes keys") {
  RunningServer served;
  Client client(served.options()), other(served.options());
  const std::string binary("\0\xff\n", 3);
  set(client, "a", binary);
  CHECK(get(other, "a") == binary);
  other.ask(request(Kind::append, {"a", "tail"}), 10s);
  CHECK(get(client, "a") == binary + "tail");
  CHECK(number(client, std::move(Writer(Kind::add).text("n").number(5))) == 5);
  CHECK(number(other, std::move(Writer(Kind::add).text("n").number(uint64_t(-7)))) == uint64_t(-2));
  CHECK(get(client, "n") == "-2");
  CHECK(number(client, request(Kind::check, {"a", "n"})) == 1);
  CHECK(number(client, request(Kind::check, {"a", "none"})) == 0);
  CHECK(number(client, Writer(Kind::count)) == 2);
  CHECK(number(client, request(Kind::erase, {"a"})) == 1);
  CHECK(number(client, request(Kind::erase, {"a"})) == 0);
  CHECK(number(client, Writer(Kind::count)) == 1);
}

TEST_CASE("compare_set writes only if the value is the expected one") {
  RunningServer served;
  Client client(served.options());
  const auto swap = [&](const char* expected, const char* wanted) {
    const auto answer = client.ask(request(Kind::compare_set, {"k", expected, wanted}), 10s);
    return std::string(Reader(answer).text());
  };
  CHECK(swap("old", "new") == "old");  // no value: nothing written
  CHECK(number(client, request(Kind::check, {"k"})) == 0);
  CHECK(swap("", "first") == "first");
  CHECK(swap("", "second") == "first");
  CHECK(swap("first", "second") == "second");
}

TEST_CASE("a request that waits is answered when all its keys exist and blocks no other") {
  RunningServer served;
  Client client(served.options());
  auto values = std::async(std::launch::async, [&] {
    const auto answer = client.ask(request(Kind::get, {"x", "y", "x"}), 20s);
    Reader reader(answer);
    const std::string first(reader.text()), second(reader.text()), third(reader.text());
    return first + second + third;
  });
  // Another request of the same client, while its other thread waits.
  set(client, "y", "2");
  CHECK(number(client, request(Kind::check, {"x"})) == 0);
  CHECK(values.wait_for(0s) == std::future_status::timeout);
  set(client, "x", "1");
  CHECK(values.get() == "121");
}

TEST_CASE("a wait ends at its time-out, after which the client sends further requests") {
  RunningServer served;
  Client client(served.options());
  CHECK_THROWS_AS(client.ask(request(Kind::wait, {"none"}), 20ms), TimedOut);
  set(client, "none", "1");
  client.ask(request(Kind::wait, {"none"}), 10s);
  CHECK(get(client, "none") == "1");
}

TEST_CASE("large values pass in both directions") {
  RunningServer served;
  Client client(served.options());
  std::string large(size_t{24} << 20, 'x');
  for (size_t i = 0; i < large.size(); i += 4096) large[i] = static_cast<char>(i >> 12);
  set(client, "large", large);
  CHECK(get(client, "large") == large);
}

TEST_CASE("a client connects to a server that starts later") {
  const auto reserved = listen_at("127.0.0.1", 0, false);
  ::close(reserved.socket);
  auto client = std::async(std::launch::async, [&] {
    Client made({.host = "127.0.0.1",
                 .port = reserved.port,
                 .keyed_hash = hash_of("secret"),
                 .name = "rank 1",
                 .timeout = 20s});
    return number(made, Writer(Kind::count));
  });
  CHECK(client.wait_for(50ms) == std::future_status::timeout);
  Server server({.listen_socket = listen_at("127.0.0.1", reserved.port, false).socket,
                 .keyed_hash = hash_of("secret")});
  CHECK(client.get() == 0);
}

TEST_CASE("a client without a server, or with a silent one, fails at its time-out") {
  const auto reserved = listen_at("127.0.0.1", 0, false);
  const auto connect = [&] {
    Client({.host = "127.0.0.1",
            .port = reserved.port,
            .keyed_hash = hash_of("secret"),
            .timeout = 100ms});
  };
  CHECK_THROWS_AS(connect(), TimedOut);  // the system connects, and nobody answers
  ::close(reserved.socket);
  CHECK_THROWS_AS(connect(), TimedOut);
}

TEST_CASE("a store refuses a wrong secret before any key is read or written") {
  RunningServer served;
  CHECK_THROWS_WITH(Client(served.options("guess")),
                    "[communicator] rank 3 must know the job's secret (PERIGEE_SECRET or "
                    "--secret-file), but the store refuses it");
  CHECK_THROWS_WITH(Client(served.options("")), Contains("refuses it"));
  // Requests before and after a refused proof.
  RawConnection early(served.port), late(served.port);
  early.send(request(Kind::set, {"k", "v"}).finish());
  CHECK(early.receive()->kind == Kind::hello);
  CHECK_FALSE(early.receive());
  CHECK(late.prove("guess") == Kind::refused);
  late.send(request(Kind::set, {"k", "v"}).finish());
  CHECK_FALSE(late.receive());
  Client client(served.options());
  CHECK(number(client, Writer(Kind::count)) == 0);
}

TEST_CASE("a proof for one nonce is not valid for another") {
  RunningServer served;
  RawConnection first(served.port), second(served.port);
  const auto nonce = random_bytes(kNonceSize);
  const auto hello = first.receive();
  const auto proof = std::move(
                         Writer(Kind::proof)
                             .text(nonce)
                             .text(hash_of("secret")(client_claim(Reader(*hello).text(), nonce))))
                         .finish();
  REQUIRE(second.receive());
  second.send(proof);
  CHECK(second.receive()->kind == Kind::refused);
  first.send(proof);
  CHECK(first.receive()->kind == Kind::welcome);
}

TEST_CASE("a client refuses a store that does not know the secret") {
  const auto listener = listen_at("127.0.0.1", 0, false);
  // The server repeats the client's own proof.
  std::thread impostor([&] {
    const Descriptor socket(::accept(listener.socket, nullptr, nullptr));
    const auto hello = std::move(Writer(Kind::hello).text(std::string(kNonceSize, 'n'))).finish();
    ::send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    std::string received;
    char piece[512];
    for (;;) {
      if (const auto frame = take_frame(received, kFirstFrame)) {
        Reader reader(*frame);
        reader.text();
        const auto welcome = std::move(Writer(Kind::welcome).text(reader.text())).finish();
        ::send(socket.get(), welcome.data(), welcome.size(), MSG_NOSIGNAL);
        break;
      }
      const auto got = ::recv(socket.get(), piece, sizeof piece, 0);
      if (got <= 0) break;
      received.append(piece, static_cast<size_t>(got));
    }
  });
  CHECK_THROWS_WITH(Client({.host = "127.0.0.1",
                            .port = listener.port,
                            .keyed_hash = hash_of("secret"),
                            .name = "rank 2",
                            .timeout = 10s}),
                    Contains("rank 2") && Contains("does not know the job's secret"));
  impostor.join();
  ::close(listener.socket);
}

TEST_CASE("bytes of another protocol end only their own connection") {
  RunningServer served;
  Client client(served.options());
  for (const auto& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff'), std::string(8, '\0'),
        std::string("\x06\0\0\0\x09\x02zzzz", 10), Writer(Kind::proof).finish()}) {
    RawConnection stranger(served.port);
    REQUIRE(stranger.receive()->kind == Kind::hello);
    stranger.send(bytes);
    CHECK_FALSE(stranger.receive());
    set(client, "k", "v");
  }
  RawConnection proved(served.port);
  REQUIRE(proved.prove("secret") == Kind::welcome);
  proved.send(Writer(Kind::hello).finish());  // no request
  CHECK(proved.receive()->kind == Kind::error);
  CHECK_FALSE(proved.receive());
  CHECK(get(client, "k") == "v");
}

TEST_CASE("a client that disconnects while it waits is removed") {
  RunningServer served;
  Client client(served.options());
  {
    RawConnection gone(served.port);
    REQUIRE(gone.prove("secret") == Kind::welcome);
    gone.send(request(Kind::wait, {"k"}).finish());
  }
  set(client, "k", "v");
  CHECK(get(client, "k") == "v");
}

TEST_CASE("a connection without a proof is closed after a time limit") {
  RunningServer served({}, 64, 50ms);
  Client client(served.options());
  RawConnection idle(served.port), half(served.port);
  half.send(std::string("\x52\0\0\0\1\2", 6));  // the first bytes of a proof
  CHECK(idle.receive()->kind == Kind::hello);
  CHECK_FALSE(idle.receive());
  CHECK(half.receive()->kind == Kind::hello);
  CHECK_FALSE(half.receive());
  set(client, "k", "v");  // a client with a proof has no time limit
}

TEST_CASE("at the limit of connections, the newest replaces the oldest one without a proof") {
  RunningServer served({}, 3, 60s);
  Client client(served.options());
  std::vector<std::unique_ptr<RawConnection>> strangers;
  for (int i = 0; i < 5; ++i) {
    strangers.push_back(std::make_unique<RawConnection>(served.port));
    REQUIRE(strangers.back()->receive()->kind == Kind::hello);
  }
  CHECK_FALSE(strangers[0]->receive());
  CHECK_FALSE(strangers[1]->receive());
  for (int i = 2; i < 5; ++i) CHECK_FALSE(strangers[i]->ended());
  set(client, "k", "v");
  Client late(served.options());
  CHECK(get(late, "k") == "v");
}

TEST_CASE("a store refuses keys and values beyond its limits with the reason") {
  RunningServer served({.key = 8, .value = 100, .total = 250, .keys = 4});
  Client client(served.options());
  const auto refused = [&](Writer asked) { return refusal(client, std::move(asked)); };
  const std::string most(100, 'v');
  set(client, "12345678", most);
  CHECK_THAT(refused(request(Kind::set, {"123456789", ""})), Contains("at most 8 bytes"));
  CHECK_THAT(refused(request(Kind::wait, {"123456789"})), Contains("at most 8 bytes"));
  CHECK_THAT(refused(request(Kind::set, {"k", most + "v"})), Contains("at most 100 bytes"));
  CHECK_THAT(refused(request(Kind::append, {"12345678", "v"})), Contains("at most 100 bytes"));
  set(client, "second", most);
  CHECK_THAT(refused(request(Kind::set, {"third", most})), Contains("at most 250 bytes"));
  client.ask(request(Kind::set, {"a", "", "b", ""}), 10s);
  CHECK_THAT(refused(request(Kind::set, {"c", ""})), Contains("at most 4 keys"));
  CHECK_THAT(refused(std::move(Writer(Kind::add).text("second").number(1))), Contains("number"));
  // The space of a deleted key is available.
  CHECK(number(client, request(Kind::erase, {"second"})) == 1);
  set(client, "third", most);
  CHECK(number(client, Writer(Kind::count)) == 4);
}

TEST_CASE("a frame beyond the limit is refused before its bytes are read") {
  RunningServer served({.value = 100});
  Client client(served.options());
  RawConnection proved(served.port);
  REQUIRE(proved.prove("secret") == Kind::welcome);
  proved.send(std::string("\xff\xff\xff\xff\1\x10", 6));
  const auto answer = proved.receive();
  REQUIRE(answer);
  CHECK(answer->kind == Kind::error);
  CHECK_THAT(std::string(Reader(*answer).text()), Contains("4294967295"));
  CHECK_FALSE(proved.receive());
  // The client reads the reason although the server has not read its bytes.
  CHECK_THAT(refusal(client, request(Kind::set, {"k", std::string(size_t{8} << 20, 'v')})),
             Contains("a frame must have"));
  CHECK(number(client, Writer(Kind::count)) == 0);
}

TEST_CASE("requests fail at once after the server has ended") {
  RunningServer served;
  Client client(served.options());
  set(client, "k", "v");
  auto waiting = std::async(std::launch::async,
                            [&] { client.ask(request(Kind::wait, {"none"}), 60s); });
  CHECK(waiting.wait_for(20ms) == std::future_status::timeout);
  served.end();
  CHECK_THROWS_AS(waiting.get(), Lost);
  CHECK_THROWS_AS(set(client, "k", "w"), Lost);
}

TEST_CASE("2000 idle connections do not disturb a server with 256 descriptors") {
  const auto listener = listen_at("127.0.0.1", 0, false);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);
    const rlimit limit{256, 256};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    // The store's own limit is not reached: only the limit of descriptors closes connections.
    Server server({.listen_socket = listener.socket,
                   .keyed_hash = hash_of("secret"),
                   .strangers = 1000,
                   .handshake = 60s});
    for (;;) ::pause();
  }
  ::close(listener.socket);
  const ClientOptions options{.host = "127.0.0.1",
                              .port = listener.port,
                              .keyed_hash = hash_of("secret"),
                              .name = "rank 1",
                              .timeout = 20s};
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit before = limit;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  {
    Client early(options);
    set(early, "k", "v");
    std::vector<std::unique_ptr<RawConnection>> strangers;
    for (int i = 0; i < 2000; ++i)
      strangers.push_back(std::make_unique<RawConnection>(listener.port));
    CHECK(get(early, "k") == "v");
    Client late(options);
    CHECK(get(late, "k") == "v");
    CHECK(strangers.front()->receive()->kind == Kind::hello);
    CHECK_FALSE(strangers.front()->receive());
    CHECK_FALSE(strangers.back()->ended());
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  int status = 0;
  CHECK(::waitpid(child, &status, WNOHANG) == 0);  // still running
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
}
