// The local server of `perigee watch`, in the plugin perigee_watch (cpp-httplib).
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace perigee::view {

struct WatchOptions {
  std::vector<std::string> paths;  // of RunList
  std::string page;                // folder with index.html
  int port = 0;                    // of 127.0.0.1; 0: any that is free
};

class WatchServer {
 public:
  virtual ~WatchServer() = default;
  virtual int port() const = 0;
  // Answers requests until stop(), which another thread calls, also before this begins.
  virtual void run() = 0;
  virtual void stop() = 0;
};

// Returns a server that listens on 127.0.0.1 and answers requests for that host or localhost only.
// It reads files of runs and writes none. Throws Error where the port is in use, a path is no folder, or
// the plugin does not load.
std::unique_ptr<WatchServer> open_watch_server(const WatchOptions& options);

// The function that the plugin libperigee_watch.so exports as "perigee_watch_open".
using OpenWatchServer = void (*)(const WatchOptions& options, std::unique_ptr<WatchServer>& server);

}  // namespace perigee::view
