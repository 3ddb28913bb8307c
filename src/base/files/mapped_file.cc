#include "base/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/fail.h"
#include "base/files/find_mapped_file.h"

namespace perigee {
namespace {

// A mapped file, as a signal's handler finds it.
struct Entry {
  std::atomic<bool> taken = false;
  std::atomic<const std::byte*> begin = nullptr;  // nullptr: the other fields are not set
  size_t size = 0;
  std::array<char, 512> path{};
};

std::array<Entry, 4096>& entries() {
  static auto* entries = new std::array<Entry, 4096>;  // never destroyed: a signal may come last
  return *entries;
}

// Returns the file's entry, or nullptr where there are too many.
Entry* enter(const void* begin, size_t size, const std::string& path) {
  for (auto& entry : entries()) {
    if (entry.taken.exchange(true)) continue;
    entry.size = size;
    const auto length = std::min(path.size(), entry.path.size() - 1);
    std::copy_n(path.begin(), length, entry.path.begin());
    entry.path[length] = '\0';
    entry.begin = static_cast<const std::byte*>(begin);
    return &entry;
  }
  return nullptr;
}

void leave(Entry* entry) {
  if (!entry) return;
  entry->begin = nullptr;
  entry->taken = false;
}

}  // namespace

MappedFile map_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("file", "{} must be readable, but: {}", path, std::strerror(errno));
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    fail("file", "{} must be a file, but it is not", path);
  }
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) {
    ::close(fd);
    return {};
  }
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int why = errno;
  ::close(fd);
  if (memory == MAP_FAILED) fail("file", "{} must be readable, but: {}", path, std::strerror(why));
  auto* entry = enter(memory, size, path);
  const auto unmap = [size, entry](const void* p) {
    leave(entry);
    ::munmap(const_cast<void*>(p), size);
  };
  return {{memory, unmap}, {static_cast<const std::byte*>(memory), size}};
}

const char* find_mapped_file(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  for (const auto& entry : entries()) {
    const std::byte* begin = entry.begin;
    if (begin && at >= begin && at < begin + entry.size) return entry.path.data();
  }
  return nullptr;
}

}  // namespace perigee
