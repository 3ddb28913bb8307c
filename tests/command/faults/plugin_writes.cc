// A library that a test preloads: it records the changes to the files under the folder WRITES_OF in
// the file WRITES_LOG (writes.h), in the order in which they end. All processes of a job share it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/command/faults/writes.h"

namespace {

using perigee::test::ChangeHead;
using perigee::test::ChangeKind;

template <class Function>
Function real(const char* name, Function) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int fd) {
  char path[4096];
  const auto link = "/proc/self/fd/" + std::to_string(fd);
  const auto size = ::readlink(link.c_str(), path, sizeof path);
  return {path, size > 0 ? static_cast<size_t>(size) : 0};
}

bool is_recorded(std::string_view path) {
  static const char* const folder = std::getenv("WRITES_OF");
  return folder && path.starts_with(folder);
}

void record(ChangeKind kind, const std::string& path, const std::string& target = "",
            int64_t offset = 0, std::string_view data = "") {
  if (!is_recorded(path)) return;
  const int kept = errno;
  static const int log = ::open(std::getenv("WRITES_LOG"), O_WRONLY | O_APPEND | O_CLOEXEC);
  const ChangeHead head{kind, static_cast<uint32_t>(path.size()),
                        static_cast<uint32_t>(target.size()), offset, data.size()};
  std::string text(reinterpret_cast<const char*>(&head), sizeof head);
  text.append(path).append(target).append(data);
  static const auto next = real("write", &::write);
  if (next(log, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  errno = kept;
}

void record_write(int fd, ssize_t written, const void* data, int64_t offset) {
  if (written <= 0) return;
  record(ChangeKind::write, path_of(fd), "", offset,
         {static_cast<const char*>(data), static_cast<size_t>(written)});
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  static const auto next = real("open", &open);
  va_list list;
  va_start(list, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
  va_end(list);
  const int fd = next(path, flags, mode);
  if (fd >= 0 && (flags & O_CREAT)) record(ChangeKind::create, path_of(fd));
  if (fd >= 0 && (flags & O_TRUNC)) record(ChangeKind::truncate, path_of(fd));
  return fd;
}

extern "C" ssize_t write(int fd, const void* data, size_t size) {
  static const auto next = real("write", &write);
  const auto written = next(fd, data, size);
  if (written > 0 && is_recorded(path_of(fd))) {
    record_write(fd, written, data, ::lseek(fd, 0, SEEK_CUR) - written);
  }
  return written;
}

extern "C" ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  static const auto next = real("pwrite", &pwrite);
  const auto written = next(fd, data, size, at);
  record_write(fd, written, data, at);
  return written;
}

extern "C" int ftruncate(int fd, off_t size) noexcept {
  static const auto next = real("ftruncate", &ftruncate);
  const int result = next(fd, size);
  if (result == 0) record(ChangeKind::truncate, path_of(fd), "", size);
  return result;
}

extern "C" int rename(const char* from, const char* to) noexcept {
  static const auto next = real("rename", &rename);
  const int result = next(from, to);
  if (result == 0) record(ChangeKind::rename, from, to);
  return result;
}

extern "C" int remove(const char* path) noexcept {
  static const auto next = real("remove", &remove);
  const int result = next(path);
  if (result == 0) record(ChangeKind::remove, path);
  return result;
}

extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  static const auto next = real("mkdir", &mkdir);
  const int result = next(path, mode);
  if (result == 0) record(ChangeKind::make_folder, path);
  return result;
}

extern "C" int fsync(int fd) {
  static const auto next = real("fsync", &fsync);
  const int result = next(fd);
  if (result == 0) record(ChangeKind::sync, path_of(fd));
  return result;
}
