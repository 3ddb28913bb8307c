#include "base/files/durable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/fail.h"

namespace perigee {
namespace {

[[noreturn]] void refuse(const std::string& path, int why) {
  fail_run("file", "{} must be written, but: {}", path, std::strerror(why));
}

// Returns 0, or errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  // Devices and pipes cannot be synced and say so by EINVAL.
  return ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
}

std::string folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

void make_folders(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error, ignored;
  std::vector<std::string> changed;  // folders that get a new name
  for (auto folder = fs::absolute(path, ignored); !folder.empty() && !fs::exists(folder, ignored);
       folder = folder.parent_path()) {
    changed.push_back(folder.parent_path().string());
  }
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path, error)) {
    fail_run("file", "{} must be a folder that can be written, but: {}", path,
             error ? error.message() : "a file has that name");
  }
  for (const auto& folder : changed) sync_folder(folder);
}

Destination::Destination(const std::string& path) : path_(path), written_(path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const auto target = fs::weakly_canonical(path, ignored);
  if (!target.empty()) path_ = target.string();
  const bool replaced = !fs::exists(path_, ignored) || fs::is_regular_file(path_, ignored) ||
                        fs::is_directory(path_, ignored);
  written_ = replaced ? path_ + ".partial" : path_;
}

void Destination::rename() const {
  if (written_ != path_) rename_durably(written_, path_);
}

void Destination::discard() const {
  if (written_ != path_) ::unlink(written_.c_str());
}

int create_file(const std::string& path) {
  // A device, a pipe or a socket, also by a link such as /dev/stdout, is not replaced.
  struct stat target {};
  if (::stat(path.c_str(), &target) == 0 && !S_ISREG(target.st_mode)) {
    return ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return -1;
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
}

void require_writable(const std::string& path) {
  const Destination to(path);
  const auto& written = to.written();
  struct stat target {};
  const bool exists = ::stat(path.c_str(), &target) == 0;
  if (exists && S_ISDIR(target.st_mode)) refuse(path, EISDIR);
  const bool direct = exists && !S_ISREG(target.st_mode);
  if (direct) {
    if (::access(written.c_str(), W_OK) != 0) refuse(path, errno);
    return;
  }
  const auto folder = folder_of(written);
  if (::stat(folder.c_str(), &target) != 0) refuse(path, errno);
  if (!S_ISDIR(target.st_mode)) refuse(path, ENOTDIR);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) refuse(path, errno);
}

void write_durably(const std::string& path, std::string_view text) {
  const Destination to(path);
  const int fd = create_file(to.written());
  if (fd < 0) refuse(path, errno);
  int why = write_all(fd, text);
  if (::close(fd) != 0 && why == 0) why = errno;
  if (why != 0) {
    to.discard();
    refuse(path, why);
  }
  try {
    to.rename();
  } catch (...) {
    to.discard();
    throw;
  }
}

void rename_durably(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) refuse(to, errno);
  sync_folder(folder_of(to));
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 && errno == EACCES) return;  // a folder that may be written but not read
  if (fd < 0) refuse(path, errno);
  // Some file systems cannot sync folders and say so by EINVAL.
  const int why = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  ::close(fd);
  if (why != 0) refuse(path, why);
}

}  // namespace perigee
