// A library that a test preloads: the first fsync of a file whose name contains a word of
// SLOW_FSYNC takes SLOW_FSYNC_SECONDS, once for each word. The words go to the file
// SLOW_FSYNC_SAYS, through which processes know of each other.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Returns whether no process has said the word; says it.
bool is_first(const std::string& word) {
  const int fd = ::open(environment("SLOW_FSYNC_SAYS").c_str(), O_RDWR | O_CREAT | O_APPEND, 0644);
  if (fd < 0) return false;
  ::flock(fd, LOCK_EX);
  char said[4096];
  const auto size = ::pread(fd, said, sizeof said, 0);
  const bool first = std::string(said, size > 0 ? static_cast<size_t>(size) : 0).find(word) ==
                     std::string::npos;
  const auto line = word + "\n";
  const bool written = first && ::write(fd, line.data(), line.size()) > 0;
  ::close(fd);
  return written;
}

void wait_if_slow(int fd) {
  char path[4096];
  const auto link = "/proc/self/fd/" + std::to_string(fd);
  const auto size = ::readlink(link.c_str(), path, sizeof path);
  const std::string name(path, size > 0 ? static_cast<size_t>(size) : 0);
  std::istringstream words(environment("SLOW_FSYNC"));
  for (std::string word; words >> word;) {
    if (name.find(word) == std::string::npos || !is_first(word)) continue;
    const auto seconds = std::atof(environment("SLOW_FSYNC_SECONDS").c_str());
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
}

}  // namespace

extern "C" int fsync(int fd) {
  static const auto real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  wait_if_slow(fd);
  return real(fd);
}
