// An S3 service on the loopback interface (s3_server.py), for one test.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::test {

class S3Server {
 public:
  // Starts the server. Throws std::runtime_error where it does not start within 4 minutes (the
  // first start fetches packages from PyPI); without these packages `is_there` is false.
  S3Server();
  ~S3Server();
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  bool is_there() const { return pid_ > 0; }
  // Returns why there is no server.
  const std::string& why() const { return output_; }
  const std::string& endpoint() const { return endpoint_; }
  const std::string& secret() const { return secret_; }

  // Returns the variables for its only bucket, "bucket". Requests are tried `attempts` times, and
  // parts of an upload have 64 KiB.
  std::map<std::string, std::string> environment(int attempts = 3) const;

  // Sets the faults of requests from now on (s3_server.py).
  void set_faults(std::string_view rules) const;
  // Waits until a request is stalled.
  void wait_for_stall();
  // Kills the server.
  void stop();

  // Forgets the requests so far.
  void clear_requests() const;
  // Returns "METHOD PATH?QUERY STATUS BYTES" of each request.
  std::vector<std::string> requests() const;

 private:
  void wait_for(std::string_view text, double seconds);

  std::filesystem::path folder_;
  std::string endpoint_, key_, secret_;
  std::string output_;
  pid_t pid_ = -1;
  int out_ = -1;
};

// Sets variables of this process, and restores them at the end.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& values);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::map<std::string, std::string> before_;
  std::vector<std::string> changed_;
};

}  // namespace perigee::test
