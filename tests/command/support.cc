#include "tests/command/support.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>

namespace perigee::test {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

// Opens a terminal: bytes written to ends[1] are read at ends[0].
bool open_terminal(int (&ends)[2], int columns) {
  ends[0] = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  char name[128];
  if (ends[0] < 0 || ::grantpt(ends[0]) != 0 || ::unlockpt(ends[0]) != 0 ||
      ::ptsname_r(ends[0], name, sizeof name) != 0) {
    return false;
  }
  ends[1] = ::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
  const winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns)};
  return ends[1] >= 0 && ::ioctl(ends[1], TIOCSWINSZ, &size) == 0;
}

}  // namespace

Process::Process(const std::vector<std::string>& command, const How& how)
    : deadline_(now() + how.seconds) {
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 ||
      (how.columns > 0 ? !open_terminal(err, how.columns) : ::pipe2(err, O_CLOEXEC) != 0)) {
    throw std::runtime_error("no pipe");
  }
  std::vector<char*> words;
  for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("no process");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    const int input = ::open("/dev/null", O_RDONLY);
    ::dup2(input, 0);
    if (!how.output.empty()) ::dup2(::open(how.output.c_str(), O_WRONLY), 1);
    if (how.closed_output) ::close(1);
    if (how.closed_errors) ::close(2);
    if (how.file_bytes > 0) {
      const rlimit limit{static_cast<rlim_t>(how.file_bytes), static_cast<rlim_t>(how.file_bytes)};
      ::signal(SIGXFSZ, SIG_IGN);  // then a write beyond it fails as on a full disk
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (how.columns > 0) {
      ::setenv("TERM", "xterm", 1);
      ::unsetenv("NO_COLOR");
    }
    for (const auto& [name, value] : how.environment) ::setenv(name.c_str(), value.c_str(), 1);
    if (!how.folder.empty() && ::chdir(how.folder.c_str()) != 0) ::_exit(126);
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Process::~Process() {
  if (!waited_) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {out_, err_}) {
    if (fd >= 0) ::close(fd);
  }
}

void Process::signal(int number) const { ::kill(pid_, number); }

// Returns false if both streams have ended.
bool Process::read_some() {
  pollfd streams[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  const double left = deadline_ - now();
  if (left <= 0 || ::poll(streams, 2, static_cast<int>(left * 1000) + 1) == 0) {
    throw std::runtime_error("the command runs too long; it wrote: " + ran_.out + ran_.err);
  }
  char buffer[65536];
  for (int i = 0; i < 2; ++i) {
    if (streams[i].revents == 0) continue;
    const auto count = ::read(streams[i].fd, buffer, sizeof buffer);
    auto& fd = i == 0 ? out_ : err_;
    if (count > 0) {
      (i == 0 ? ran_.out : ran_.err).append(buffer, static_cast<size_t>(count));
    } else {
      ::close(fd);
      fd = -1;
    }
  }
  return out_ >= 0 || err_ >= 0;
}

void Process::wait_for(std::string_view text) {
  while (ran_.err.find(text) == std::string::npos && ran_.out.find(text) == std::string::npos) {
    if (!read_some()) {
      throw std::runtime_error("the command ended before \"" + std::string(text) +
                               "\"; it wrote: " + ran_.out + ran_.err);
    }
  }
}

Ran Process::wait() {
  while ((out_ >= 0 || err_ >= 0) && read_some()) {
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  waited_ = true;
  ran_.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return ran_;
}

std::string command_path() {
  if (const char* command = std::getenv("PERIGEE_COMMAND")) return command;
  const char* build = std::getenv("PERIGEE_BUILD");
  return fs::absolute(std::string(build ? build : "build") + "/perigee").string();
}

std::vector<std::string> perigee_command(std::string_view arguments) {
  std::vector<std::string> words{command_path()};
  std::istringstream text{std::string(arguments)};
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

Ran run(std::string_view arguments, const How& how) {
  return Process(perigee_command(arguments), how).wait();
}

Ran run(const std::vector<std::string>& arguments, const How& how) {
  auto words = arguments;
  words.insert(words.begin(), command_path());
  return Process(words, how).wait();
}

bool is_short(const std::string& error) {
  const auto lines = std::count(error.begin(), error.end(), '\n');
  return lines >= 1 && lines <= 10 && error.find("traceback") == std::string::npos;
}

Folder::Folder() {
  auto name = (fs::temp_directory_path() / "perigee-command-XXXXXX").string();
  if (!::mkdtemp(name.data())) throw std::runtime_error("no folder " + name);
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, std::string_view text) const {
  fs::create_directories((path_ / name).parent_path());
  std::ofstream(path_ / name, std::ios::binary) << text;
  return (path_ / name).string();
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<pid_t> children(pid_t pid) {
  const auto text = std::to_string(pid);
  std::istringstream list(read("/proc/" + text + "/task/" + text + "/children"));
  std::vector<pid_t> result;
  for (pid_t child; list >> child;) result.push_back(child);
  return result;
}

int free_port() {
  // The kernel takes ports of connections from 32768 on: a port below stays free until it is used.
  static std::minstd_rand random(std::random_device{}());
  std::uniform_int_distribution<int> any(10000, 29000);
  for (int tries = 0; tries < 1000; ++tries) {
    const int probe = ::socket(AF_INET, SOCK_STREAM, 0);
    const int port = any(random);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_free = ::bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(probe);
    if (is_free) return port;
  }
  throw std::runtime_error("no free port");
}

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace perigee::test
