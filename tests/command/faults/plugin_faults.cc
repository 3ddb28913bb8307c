// A library that a test preloads: it counts the calls of functions of the system, and lets one of
// them fail.
//
// FAULT_FILE is a file of Counters, shared by all processes of the job; calls are counted by name
// and by role: the launcher (without RANK in its environment), rank 0, and the other ranks. The
// call number FAULT_AT (from 1) of FAULT_CALL in the role FAULT_ROLE (0 to 2) fails with the error
// FAULT_ERRNO; with FAULT_LASTING all later ones, too. Without FAULT_CALL calls are only counted.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/command/faults/faults.h"

namespace {

using perigee::test::Counters;
using perigee::test::kFaultCalls;
using perigee::test::kRoles;

struct Setting {
  Counters* counters = nullptr;
  int call = -1, role = 0, error = 0;
  int64_t at = 0;
  bool lasting = false;
};

// Before this library's initialiser ran, calls are neither counted nor refused.
Setting setting;

int64_t number(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : 0;
}

__attribute__((constructor)) void initialise() {
  const char* file = std::getenv("FAULT_FILE");
  if (!file) return;
  const int fd = ::open(file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* mapped = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (mapped == MAP_FAILED) return;
  const char* call = std::getenv("FAULT_CALL");
  for (size_t k = 0; call && k < kFaultCalls.size(); ++k) {
    if (kFaultCalls[k] == std::string_view(call)) setting.call = static_cast<int>(k);
  }
  setting.role = static_cast<int>(number("FAULT_ROLE"));
  setting.at = number("FAULT_AT");
  setting.error = static_cast<int>(number("FAULT_ERRNO"));
  setting.lasting = number("FAULT_LASTING") != 0;
  setting.counters = static_cast<Counters*>(mapped);
}

// Returns the index of a call's name, at compile time.
consteval size_t index_of(std::string_view call) {
  for (size_t k = 0; k < kFaultCalls.size(); ++k) {
    if (kFaultCalls[k] == call) return k;
  }
  throw "unknown call";
}

// Counts a call. Returns whether it has to fail, with errno set.
bool fails(size_t call) {
  if (!setting.counters) return false;
  const char* rank = std::getenv("RANK");
  const int role = !rank ? 0 : std::strcmp(rank, "0") == 0 ? 1 : 2;
  const int64_t count = 1 + __atomic_fetch_add(&setting.counters->calls[role][call], 1,
                                               __ATOMIC_RELAXED);
  if (static_cast<int>(call) != setting.call || role != setting.role) return false;
  if (setting.lasting ? count < setting.at : count != setting.at) return false;
  errno = setting.error;
  return true;
}

template <class Function>
Function real(const char* name, Function) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// A function with fixed arguments: its result where it fails, its name, parameters and arguments.
#define PERIGEE_FAULT(result, failed, name, parameters, arguments, ...) \
  extern "C" result name parameters __VA_ARGS__ {                       \
    static const auto next = real(#name, &name);                        \
    constexpr size_t call = index_of(#name);                            \
    if (fails(call)) return failed;                                     \
    return next arguments;                                              \
  }

PERIGEE_FAULT(ssize_t, -1, write, (int fd, const void* data, size_t size), (fd, data, size))
PERIGEE_FAULT(ssize_t, -1, pwrite, (int fd, const void* data, size_t size, off_t at),
              (fd, data, size, at))
PERIGEE_FAULT(ssize_t, -1, writev, (int fd, const iovec* parts, int count), (fd, parts, count))
PERIGEE_FAULT(ssize_t, -1, read, (int fd, void* data, size_t size), (fd, data, size))
PERIGEE_FAULT(int, -1, fsync, (int fd), (fd))
PERIGEE_FAULT(int, -1, rename, (const char* from, const char* to), (from, to), noexcept)
PERIGEE_FAULT(int, -1, mkdir, (const char* path, mode_t mode), (path, mode), noexcept)
PERIGEE_FAULT(int, -1, unlink, (const char* path), (path), noexcept)
PERIGEE_FAULT(void*, MAP_FAILED, mmap,
              (void* address, size_t size, int protection, int flags, int fd, off_t offset),
              (address, size, protection, flags, fd, offset), noexcept)
PERIGEE_FAULT(int, -1, socket, (int domain, int type, int protocol), (domain, type, protocol),
              noexcept)
PERIGEE_FAULT(int, -1, connect, (int fd, const sockaddr* address, socklen_t size),
              (fd, address, size))
PERIGEE_FAULT(int, -1, accept4, (int fd, sockaddr* address, socklen_t* size, int flags),
              (fd, address, size, flags))
PERIGEE_FAULT(int, -1, signalfd, (int fd, const sigset_t* mask, int flags), (fd, mask, flags),
              noexcept)
PERIGEE_FAULT(int, -1, pipe2, (int* ends, int flags), (ends, flags), noexcept)
PERIGEE_FAULT(pid_t, -1, fork, (), (), noexcept)
PERIGEE_FAULT(int, EAGAIN, pthread_create,
              (pthread_t * thread, const pthread_attr_t* attributes, void* (*start)(void*),
               void* argument),
              (thread, attributes, start, argument), noexcept)

// open and openat have a third argument where they may create a file.
extern "C" int open(const char* path, int flags, ...) {
  static const auto next = real("open", &open);
  va_list list;
  va_start(list, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
  va_end(list);
  if (fails(index_of("open"))) return -1;
  return next(path, flags, mode);
}

extern "C" int openat(int folder, const char* path, int flags, ...) {
  static const auto next = real("openat", &openat);
  va_list list;
  va_start(list, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
  va_end(list);
  if (fails(index_of("openat"))) return -1;
  return next(folder, path, flags, mode);
}

// The libraries' allocations: the command's own heap serves what they ask for.
void* operator new(size_t size) {
  static const auto next = real("_Znwm", static_cast<void* (*)(size_t)>(&operator new));
  if (fails(index_of("new"))) {
    // As in the standard library's: the handler decides, which may end the process. In libstdc++ 12
    // a copy of a std::variant of vectors that throws is undefined.
    if (const auto handler = std::get_new_handler()) handler();
    throw std::bad_alloc();
  }
  return next(size);
}
