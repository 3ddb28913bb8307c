// The server of `perigee serve`: connections, the token, limits and streams.
#include <fmt/format.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>

#include "base/fail.h"
#include "train/serve/text_server.h"

namespace perigee::train {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTurn(100);        // how often a wait looks at the client
constexpr milliseconds kReading(10'000);  // most time without a byte of a request
constexpr milliseconds kWriting(10'000);  // most time without a byte taken
constexpr size_t kRequests = 10'000;      // most of a connection
constexpr milliseconds kIdle(5'000);      // of a connection between requests

// A connection of a client.
class Connection final : public httplib::Stream {
 public:
  explicit Connection(int socket) : socket_(socket) {}

  bool is_readable() const override { return first_ < last_ || wait(POLLIN, kReading); }
  bool is_writable() const override { return wait(POLLOUT, kWriting); }

  ssize_t read(char* bytes, size_t size) override {
    if (first_ == last_) {
      if (!wait(POLLIN, kReading)) return -1;
      ssize_t count;
      while ((count = recv(socket_, buffer_.data(), buffer_.size(), 0)) < 0 && errno == EINTR) {
      }
      if (count <= 0) return count;
      first_ = 0;
      last_ = static_cast<size_t>(count);
    }
    const auto count = std::min(size, last_ - first_);
    std::copy_n(buffer_.data() + first_, count, bytes);
    first_ += count;
    return static_cast<ssize_t>(count);
  }

  ssize_t write(const char* bytes, size_t size) override {
    if (!is_writable()) return -1;
    ssize_t count;
    // MSG_DONTWAIT: a client that reads slowly takes a part.
    while ((count = send(socket_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0 &&
           errno == EINTR) {
    }
    return count;
  }

  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

  // Whether a request, or its end, comes within `time`.
  bool has_more(milliseconds time) const { return first_ < last_ || wait(POLLIN, time); }

  // Whether the client closed the connection.
  bool is_gone() const {
    pollfd event{socket_, POLLRDHUP, 0};
    return poll(&event, 1, 0) > 0;
  }

 private:
  bool wait(short events, milliseconds time) const {
    pollfd event{socket_, events, 0};
    int ready;
    while ((ready = poll(&event, 1, static_cast<int>(time.count()))) < 0 && errno == EINTR) {
    }
    return ready > 0;
  }

  const int socket_;
  std::array<char, 16 << 10> buffer_;
  size_t first_ = 0, last_ = 0;  // bytes of the buffer that are not read yet
};

// The connection whose request this thread answers.
thread_local const Connection* current = nullptr;

class Http final : public httplib::Server {
 public:
  std::atomic<bool> stopping = false;

 private:
  bool process_and_close_socket(socket_t socket) override {
    Connection connection(socket);
    current = &connection;
    bool good = true;
    for (size_t left = keep_alive_max_count_; good && left > 0 && comes(connection); --left) {
      bool closed = false;
      good = process_request(connection, left == 1, closed, nullptr) && !closed;
    }
    current = nullptr;
    shutdown(socket, SHUT_RDWR);
    close(socket);
    return good;
  }

  // Waits for the connection's next request.
  bool comes(const Connection& connection) const {
    for (milliseconds waited(0); waited < kIdle && !stopping; waited += kTurn) {
      if (connection.has_more(kTurn)) return true;
    }
    return false;
  }
};

// Compares in a time that does not depend on where the texts differ.
bool same(const std::string& a, const std::string& b) {
  unsigned difference = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b[i % (b.size() + 1)]);
  }
  return difference == 0;
}

class Server final : public TextServer {
 public:
  explicit Server(const TextServerOptions& options) : options_(options) {
    server_.set_payload_max_length(options.body_bytes);
    server_.set_tcp_nodelay(true);
    server_.set_keep_alive_max_count(kRequests);
    server_.new_task_queue = [threads = options.threads] {
      return new httplib::ThreadPool(threads);  // httplib deletes it
    };
    server_.set_pre_routing_handler([this](const auto& request, auto& response) {
      return admit(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                      : httplib::Server::HandlerResponse::Handled;
    });
    const auto answer = [this](const httplib::Request& request, httplib::Response& response) {
      this->answer(request, response);
    };
    server_.Get(".*", answer);
    server_.Post(".*", answer);
    server_.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty()) return;
      const auto message = response.status == 413
                               ? fmt::format("a body may have at most {} bytes",
                                             options_.body_bytes)
                               : fmt::format("the request cannot be answered (status {})",
                                             response.status);
      response.set_content(api_->error(response.status, message), "application/json");
    });
    // httplib's own options let two servers listen on one port.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    port_ = options.port;
    const bool bound = port_ == 0 ? (port_ = server_.bind_to_any_port(options.host)) > 0
                                  : server_.bind_to_port(options.host, port_);
    if (!bound) {
      fail(
          "serve",
          "port {} of {} must be free, and the host an interface of this machine: choose others by "
          "--port (0: any) and --host",
          options.port, options.host);
    }
  }

  int port() const override { return port_; }
  void run(Api& api) override {
    api_ = &api;
    server_.listen_after_bind();
  }
  void stop() override {
    server_.stopping = true;
    server_.stop();
  }

 private:
  // Answers requests that are not admitted.
  bool admit(const httplib::Request& request, httplib::Response& response) const {
    const auto refuse = [&](int status, const std::string& message) {
      response.status = status;
      response.set_content(api_->error(status, message), "application/json");
      return false;
    };
    if (options_.token.empty()) {
      // A page of another site, whose name resolves to this host, sends its own name.
      const auto host = request.get_header_value("Host");
      const auto name = host.starts_with("[") ? host.substr(1, host.find(']') - 1)
                                              : host.substr(0, host.rfind(':'));
      return is_loopback(name) ||
             refuse(403, "this server answers requests for 127.0.0.1, ::1 and localhost");
    }
    if (same(request.get_header_value("Authorization"), "Bearer " + options_.token)) return true;
    response.set_header("WWW-Authenticate", "Bearer");
    return refuse(401,
                  "the header \"Authorization: Bearer TOKEN\" with this server's token is needed");
  }

  void answer(const httplib::Request& request, httplib::Response& response) {
    std::shared_ptr<Exchange> exchange = api_->open(
        {.method = request.method,
         .path = request.path,
         .content_type = request.get_header_value("Content-Type"),
         .body = request.body});
    std::optional<Head> head;
    while (!(head = exchange->head(kTurn))) {
      if (current->is_gone()) return;
    }
    response.status = head->status;
    for (const auto& [name, value] : head->headers) response.set_header(name, value);
    if (head->streams) {
      response.set_chunked_content_provider(
          head->content_type,
          [exchange](size_t, httplib::DataSink& sink) { return stream(*exchange, sink); });
      return;
    }
    std::string body;
    while (const auto piece = exchange->next(kTurn)) {
      body += piece->text;
      if (piece->last) break;
    }
    response.set_content(body, head->content_type);
  }

  // Writes the next piece. Returns false where the client is gone.
  static bool stream(Exchange& exchange, httplib::DataSink& sink) {
    std::optional<Exchange::Piece> piece;
    while (!(piece = exchange.next(kTurn))) {
      if (current->is_gone()) return false;
    }
    if (!piece->text.empty() && !sink.write(piece->text.data(), piece->text.size())) return false;
    if (piece->last) sink.done();
    return true;
  }

  const TextServerOptions options_;
  Api* api_ = nullptr;  // from run() on
  Http server_;
  int port_ = 0;
};

}  // namespace

extern "C" void perigee_serve_open(const TextServerOptions& options,
                                   std::unique_ptr<TextServer>& server) {
  server = std::make_unique<Server>(options);
}

}  // namespace perigee::train
