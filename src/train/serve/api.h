// What an HTTP server asks of an API. Torch-free.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace perigee::train {

// A request of a client.
struct Call {
  std::string method;        // "GET", "POST"
  std::string path;          // "/v1/models"
  std::string content_type;  // of the body
  std::string body;
};

// What an answer begins with.
struct Head {
  int status = 200;
  std::string content_type = "application/json";
  std::map<std::string, std::string> headers = {};
  bool streams = false;  // the body's pieces are for the client at once
};

// An answer while it is made.
class Exchange {
 public:
  // Gives up what is not made yet.
  virtual ~Exchange() = default;

  // Returns what the answer begins with; nothing: not known within `wait`.
  virtual std::optional<Head> head(std::chrono::milliseconds wait) = 0;

  struct Piece {
    std::string text;
    bool last = false;  // nothing follows
  };
  // Called after head(). Returns the body's next piece; nothing: it was not made within `wait`.
  virtual std::optional<Piece> next(std::chrono::milliseconds wait) = 0;
};

// Thread-safe.
class Api {
 public:
  virtual ~Api() = default;
  // Throws no Error: it becomes the answer.
  virtual std::unique_ptr<Exchange> open(const Call& call) = 0;
  // Returns the body of an error that the server finds.
  virtual std::string error(int status, const std::string& message) const = 0;
};

}  // namespace perigee::train
