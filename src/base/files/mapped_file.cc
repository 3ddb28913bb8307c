#include "base/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fail.h"

namespace perigee {

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
  return {{memory, [size](const void* p) { ::munmap(const_cast<void*>(p), size); }},
          {static_cast<const std::byte*>(memory), size}};
}

}  // namespace perigee
