// The server of `perigee watch`: the page, and what it shows as JSON and SVG.
#include <fmt/format.h>
#include <httplib.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/files/file.h"
#include "view/run_list.h"
#include "view/watch_server.h"

namespace perigee::view {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kMostBytes = 64 << 10;  // of a request
constexpr auto kFresh = std::chrono::milliseconds(500);

// httplib's own stop() has no effect on a server that does not answer yet.
class Http final : public httplib::Server {
 public:
  void end() {
    const socket_t socket = svr_sock_.exchange(INVALID_SOCKET);
    if (socket == INVALID_SOCKET) return;
    shutdown(socket, SHUT_RDWR);
    close(socket);
  }
};

class Server final : public WatchServer {
 public:
  explicit Server(const WatchOptions& options)
      : runs_(options.paths), page_(read_file(options.page + "/index.html", "watch")) {
    server_.set_payload_max_length(kMostBytes);
    server_.set_pre_routing_handler([this](const auto& request, auto& response) {
      return is_local(request) ? httplib::Server::HandlerResponse::Unhandled : refuse(response);
    });
    server_.Get("/", [this](const auto&, auto& response) {
      response.set_header(
          "Content-Security-Policy",
          "default-src 'none'; style-src 'unsafe-inline'; script-src "
          "'unsafe-inline'; connect-src 'self'; img-src 'self' data:; frame-src 'self'");
      response.set_content(page_, "text/html; charset=utf-8");
    });
    get("/api/runs", [this](const auto&) { return runs_.overview(); });
    get("/api/run",
        [this](const auto& request) { return runs_.details(request.get_param_value("name")); });
    get("/api/differences", [this](const auto& request) {
      return runs_.differences(request.get_param_value("a"), request.get_param_value("b"));
    });
    server_.Get("/api/charts.svg", [this](const auto& request, auto& response) {
      answer(response, [&] { response.set_content(charts(request), "image/svg+xml"); });
    });
    // The page of a run's folder, which another may have written: it runs no script and loads nothing.
    server_.Get("/api/report", [this](const auto& request, auto& response) {
      response.set_header("Content-Security-Policy",
                          "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:");
      answer(response, [&] {
        response.set_content(runs_.report(request.get_param_value("name")),
                             "text/html; charset=utf-8");
      });
    });
    // httplib's own options let two servers listen on one port.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    port_ = options.port;
    const bool bound = port_ == 0 ? (port_ = server_.bind_to_any_port(kHost)) > 0
                                  : server_.bind_to_port(kHost, port_);
    if (!bound) {
      fail("watch", "port {} of {} must be free, but is in use: choose another by --port, or 0",
           options.port, kHost);
    }
  }

  int port() const override { return port_; }
  void run() override { server_.listen_after_bind(); }
  void stop() override { server_.end(); }

 private:
  static constexpr const char* kHost = "127.0.0.1";

  // A page of another site, whose name resolves to this host, sends its own name.
  bool is_local(const httplib::Request& request) const {
    const auto host = request.get_header_value("Host");
    const auto name = host.substr(0, host.rfind(':'));
    return name == kHost || name == "localhost";
  }

  static httplib::Server::HandlerResponse refuse(httplib::Response& response) {
    response.status = 403;
    response.set_content("this server answers requests for 127.0.0.1 and localhost\n",
                         "text/plain");
    return httplib::Server::HandlerResponse::Handled;
  }

  template <class F>
  void get(const char* path, F make) {
    server_.Get(path, [this, make](const auto& request, auto& response) {
      answer(response, [&] {
        const auto text = make(request).dump(-1, ' ', false, json::error_handler_t::replace);
        response.set_content(text, "application/json");
      });
    });
  }

  // Calls f with the runs' new steps; an Error becomes the answer.
  template <class F>
  void answer(httplib::Response& response, F f) {
    const std::lock_guard lock(mutex_);
    response.set_header("Cache-Control", "no-store");
    try {
      if (Clock::now() - read_ > kFresh) {
        runs_.refresh();
        read_ = Clock::now();
      }
      f();
    } catch (const Error& error) {
      response.status = 400;
      response.set_content(std::string(error.what()) + "\n", "text/plain; charset=utf-8");
    }
  }

  // Of the parameters `runs` (names, one each), `chart` (columns, one chart each), `x`, `log` and `width`.
  std::string charts(const httplib::Request& request) const {
    std::vector<std::string> names;
    PlotOptions options;
    for (const auto& [name, value] : request.params) {
      if (name == "run") names.push_back(value);
      if (name == "chart") options.charts.push_back(columns_of(value));
      if (name == "x") options.x = value;
      if (name == "log") options.logarithmic = value == "1";
    }
    Size size;
    if (request.has_param("width")) {
      size.width = std::clamp(std::atoi(request.get_param_value("width").c_str()), 300, 4000);
    }
    return to_svg(runs_.charts(names, options), size);
  }

  std::mutex mutex_;  // of the runs
  RunList runs_;
  Clock::time_point read_ = Clock::now();
  const std::string page_;
  Http server_;
  int port_ = 0;
};

}  // namespace

extern "C" void perigee_watch_open(const WatchOptions& options,
                                   std::unique_ptr<WatchServer>& server) {
  server = std::make_unique<Server>(options);
}

}  // namespace perigee::view
