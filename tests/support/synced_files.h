// Records which files are written to the disk and which are renamed, in that order. It takes the
// place of fsync() and rename() in the whole process: one source of a test executable includes it.
#pragma once

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

namespace perigee::test {

// "sync PATH" and "rename PATH PATH", while a test records them.
inline std::vector<std::string>* file_events = nullptr;

// Returns the events of `f`, with `folder` left out of the paths.
template <class F>
std::vector<std::string> file_events_of(const std::string& folder, F f) {
  std::vector<std::string> events;
  file_events = &events;
  f();
  file_events = nullptr;
  for (auto& event : events) {
    for (size_t at = 0; (at = event.find(folder, at)) != std::string::npos;) {
      event.replace(at, folder.size(), ".");
    }
  }
  return events;
}

}  // namespace perigee::test

extern "C" int fsync(int fd) {
  const int result = static_cast<int>(::syscall(SYS_fsync, fd));
  if (perigee::test::file_events) {
    std::error_code ignored;
    const auto link = fmt::format("/proc/self/fd/{}", fd);
    perigee::test::file_events->push_back("sync " +
                                          std::filesystem::read_symlink(link, ignored).string());
  }
  return result;
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (perigee::test::file_events) {
    perigee::test::file_events->push_back(fmt::format("rename {} {}", from, to));
  }
  return static_cast<int>(::syscall(SYS_renameat, -100 /* AT_FDCWD */, from, -100, to));
}
