#include "train/serve/text_server.h"

#include "base/fail.h"
#include "base/plugin.h"

namespace perigee::train {

std::unique_ptr<TextServer> open_text_server(const TextServerOptions& options) {
  if (options.token.empty() && !is_loopback(options.host)) {
    fail("serve",
         "other hosts reach {}, so a token is needed: give a file with it by --token-file, or "
         "PERIGEE_TOKEN",
         options.host);
  }
  static const auto open = reinterpret_cast<OpenTextServer>(
      open_plugin("serve", "perigee serve", "perigee_serve", "perigee_serve_open"));
  std::unique_ptr<TextServer> server;
  open(options, server);
  return server;
}

}  // namespace perigee::train
