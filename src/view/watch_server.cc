#include "view/watch_server.h"

#include "base/plugin.h"

namespace perigee::view {

std::unique_ptr<WatchServer> open_watch_server(const WatchOptions& options) {
  static const auto open = reinterpret_cast<OpenWatchServer>(
      open_plugin("watch", "perigee watch", "perigee_watch", "perigee_watch_open"));
  std::unique_ptr<WatchServer> server;
  open(options, server);
  return server;
}

}  // namespace perigee::view
