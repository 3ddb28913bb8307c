// An HTTP server for an API, in the plugin perigee_serve (cpp-httplib). Torch-free.
#pragma once

#include <arpa/inet.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "train/serve/api.h"

namespace perigee::train {

struct TextServerOptions {
  std::string host = "127.0.0.1";  // interface: an address or a name
  int port = 0;                    // 0: any that is free
  // What clients prove by "Authorization: Bearer TOKEN"; "": nothing, and requests must be for
  // 127.0.0.1, ::1 or localhost.
  std::string token;
  size_t threads = 16;           // connections that are answered at once
  size_t body_bytes = 4u << 20;  // most of a request
};

class TextServer {
 public:
  virtual ~TextServer() = default;
  virtual int port() const = 0;
  // Answers requests until stop(), which another thread calls. A client that goes away ends its
  // exchange within a second.
  virtual void run(Api& api) = 0;
  virtual void stop() = 0;
};

// Returns whether connections to an address or name come from this host alone. A name such as
// 127.example.org may be that of another host.
inline bool is_loopback(const std::string& host) {
  in_addr address{};
  return host == "localhost" || host == "::1" ||
         (::inet_pton(AF_INET, host.c_str(), &address) == 1 && host.starts_with("127."));
}

// Returns a server that listens: connections wait for run(). Throws Error where the port is in use, the
// host is no interface of this machine, other hosts reach it and there is no token, or the plugin
// does not load.
std::unique_ptr<TextServer> open_text_server(const TextServerOptions& options);

// The function that the plugin libperigee_serve.so exports as "perigee_serve_open".
using OpenTextServer = void (*)(const TextServerOptions& options,
                                std::unique_ptr<TextServer>& server);

}  // namespace perigee::train
