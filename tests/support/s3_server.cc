#include "tests/support/s3_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace perigee::test {
namespace fs = std::filesystem;

S3Server::S3Server() {
  auto name = (fs::temp_directory_path() / "perigee-s3-XXXXXX").string();
  if (!::mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
  folder_ = name;
  const char* build = std::getenv("PERIGEE_BUILD");
  const auto packages = fmt::format("{}/python/s3", build ? build : "build");
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("no process");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(out[1], 1);
    ::execlp("python3", "python3", "tests/support/s3_server.py", name.c_str(), packages.c_str(),
             nullptr);
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);
  ::close(out[1]);
  out_ = out[0];
  try {
    wait_for("ready\n", 240);
  } catch (const std::runtime_error&) {
    const bool lacks = output_.find("no packages: ") != output_.npos;
    stop();
    fs::remove_all(folder_);
    if (!lacks) throw;
    return;
  }
  std::ifstream file(folder_ / "settings.json");
  const auto settings = nlohmann::json::parse(file);
  endpoint_ = settings.at("endpoint");
  key_ = settings.at("key");
  secret_ = settings.at("secret");
}

S3Server::~S3Server() {
  stop();
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void S3Server::wait_for(std::string_view text, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (output_.find(text) == output_.npos) {
    const std::chrono::duration<double, std::milli> left = deadline - Clock::now();
    pollfd stream{out_, POLLIN, 0};
    char buffer[4096];
    const bool ready = left.count() > 0 && ::poll(&stream, 1, static_cast<int>(left.count())) > 0;
    const auto bytes = ready ? ::read(out_, buffer, sizeof buffer) : 0;
    if (bytes <= 0) throw std::runtime_error("the S3 server does not work; it wrote: " + output_);
    output_.append(buffer, static_cast<size_t>(bytes));
  }
}

std::map<std::string, std::string> S3Server::environment(int attempts) const {
  return {{"AWS_ACCESS_KEY_ID", key_},
          {"AWS_SECRET_ACCESS_KEY", secret_},
          {"AWS_SESSION_TOKEN", ""},
          {"AWS_REGION", "us-east-1"},
          {"AWS_ENDPOINT_URL", endpoint_},
          {"AWS_ENDPOINT_URL_S3", ""},
          {"AWS_MAX_ATTEMPTS", std::to_string(attempts)},
          {"PERIGEE_S3_PART_BYTES", "65536"},
          {"no_proxy", "127.0.0.1"}};
}

void S3Server::set_faults(std::string_view rules) const {
  std::ofstream(folder_ / "new.json") << rules;
  fs::rename(folder_ / "new.json", folder_ / "faults.json");
}

void S3Server::wait_for_stall() { wait_for("stalled\n", 60); }

void S3Server::stop() {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  ::close(out_);
  pid_ = -1;
}

void S3Server::clear_requests() const { fs::remove(folder_ / "requests.txt"); }

std::vector<std::string> S3Server::requests() const {
  std::ifstream file(folder_ / "requests.txt");
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) found.push_back(line);
  return found;
}

Environment::Environment(const std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values) {
    if (const char* old = std::getenv(name.c_str())) before_[name] = old;
    changed_.push_back(name);
    ::setenv(name.c_str(), value.c_str(), 1);
  }
}

Environment::~Environment() {
  for (const auto& name : changed_) {
    const auto found = before_.find(name);
    if (found == before_.end()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), found->second.c_str(), 1);
    }
  }
}

}  // namespace perigee::test
