#include "base/files/durable_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fail.h"

namespace perigee {

DurableFile::DurableFile(const std::string& path)
    : path_(path), to_(path), fd_(create_file(to_.written())) {
  if (fd_ < 0) refuse(errno);
}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  to_.discard();
}

void DurableFile::refuse(int why) const {
  fail_run("file", "{} must be written, but: {}", path_, std::strerror(why));
}

void DurableFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void DurableFile::finish() {
  // Devices and pipes cannot be synced and say so by EINVAL.
  if (::fsync(fd_) != 0 && errno != EINVAL) refuse(errno);
  if (::close(std::exchange(fd_, -1)) != 0) {
    const int why = errno;
    to_.discard();
    refuse(why);
  }
  to_.rename();
}

}  // namespace perigee
