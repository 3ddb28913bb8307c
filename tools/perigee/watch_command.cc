// watch: a local page that follows runs.
#include <csignal>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/log_format.h"
#include "command.h"
#include "view/watch_server.h"

namespace perigee::command {
namespace {

constexpr int kPort = 8737;

int run_watch(const view::WatchOptions& options) {
  const auto server = view::open_watch_server(options);
  // Threads that start later inherit the mask: the signals wait for this one.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::printf("http://127.0.0.1:%d\n", server->port());
  std::fflush(stdout);
  log::info("open the address in a browser; Ctrl-C ends the server, and no run");
  std::thread answers([&] { server->run(); });
  int signal = 0;
  sigwait(&signals, &signal);
  server->stop();
  answers.join();
  return 0;
}

}  // namespace

void add_watch_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<view::WatchOptions>();
  options->port = kPort;
  auto* sub = add_command(app, "watch", "show runs on a local page while they train",
                          {"perigee watch runs", "perigee watch runs/a runs/b --port 0"});
  sub->add_option("RUN", options->paths,
                  "folders of runs, or folders that contain them; default: runs");
  add_integer(*sub, "--port", options->port, "port of 127.0.0.1; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->default_str(std::to_string(kPort));
  sub->callback([options, &action] {
    action = [options] {
      if (options->paths.empty()) options->paths = {"runs"};
      options->page = shipped_folder("runtime") + "/watch";
      return run_watch(*options);
    };
  });
}

}  // namespace perigee::command
