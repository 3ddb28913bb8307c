// Signed requests to an S3 service, by libcurl.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/s3/settings.h"

namespace perigee::checkpoint::s3 {

struct Request {
  std::string method;  // GET, PUT, HEAD, POST, DELETE
  std::string bucket;
  std::string key;                   // "": the bucket
  std::string query;                 // "a=1&b=", sorted by name and encoded
  std::vector<std::string> headers;  // "name: value"
  std::span<const std::byte> body;
  // GET of a range: the object's bytes from `offset` on are read to `out`.
  uint64_t offset = 0;
  std::span<std::byte> out;
};

struct Answer {
  long status = 0;
  std::string body;  // without that of a range
  std::string etag;
  uint64_t length = 0;        // the header Content-Length
  std::string code, message;  // of an error: "NoSuchKey", one line of text; "": none

  bool is_good() const { return status >= 200 && status < 300; }
};

class Client {
 public:
  Client(Settings settings, std::function<void()> waiting);
  ~Client();

  const Settings& settings() const { return settings_; }

  // Sends the request, and sends it again after 0.1 s, 0.2 s, ... (at most 10 s) where the service
  // does not answer or answers 429 or 5xx, up to settings.attempts times; once after a request for
  // which no attempt succeeded. Returns the answer, which may be an error of another kind. Throws
  // Error (failed) where no attempt had an answer, or rethrows what `waiting` throws.
  Answer send(const Request& request);

 private:
  struct Attempt;
  Attempt attempt(const Request& request);
  void pause(int64_t attempt) const;

  Settings settings_;
  std::function<void()> waiting_;
  std::unique_ptr<void, void (*)(void*)> curl_;
  bool answers_ = true;  // the last request had an answer
};

// Returns "s3://BUCKET/KEY".
std::string path_of(const Request& request);

// Throws Error of the status: "PATH must be DONE, but SERVICE answered STATUS CODE (MESSAGE):
// REMEDY". `done`: "written", "read".
[[noreturn]] void refuse(const Client& client, const Request& request, const Answer& answer,
                         std::string_view done);

}  // namespace perigee::checkpoint::s3
