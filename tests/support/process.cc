// Gives each test process, and the commands that it runs, a cache folder of its own: the planner's
// choices depend on measured times in the cache. Ranks compute with one thread unless a job says
// otherwise: the numbers of several depend on the machine, and several tests run at once. At its
// end a process leaves out LibTorch's destructors, which take 0.1 s, but not the search for leaks.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

// Of the address sanitizer, in programs that have it: exits with an error where memory has leaked.
extern "C" [[gnu::weak]] void __lsan_do_leak_check();

namespace {

class Process {
 public:
  Process() {
    ::on_exit([](int status, void* process) { static_cast<Process*>(process)->end(status); }, this);
    auto folder = (std::filesystem::temp_directory_path() / "perigee-tests-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) return;
    folder_ = folder;
    ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
    ::setenv("OMP_NUM_THREADS", "1", 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

 private:
  // Runs after the destructors of what tests have made, and before those of libraries.
  [[noreturn]] void end(int status) {
    std::error_code ignored;
    // The parent of a forked test removes the folder.
    if (::getpid() == owner_) std::filesystem::remove_all(folder_, ignored);
    std::fflush(nullptr);
    if (__lsan_do_leak_check) __lsan_do_leak_check();
    std::_Exit(status);
  }

  const pid_t owner_ = ::getpid();
  std::filesystem::path folder_;
};

// Never destroyed: end() runs after the destructors of static objects.
Process& process = *new Process;

}  // namespace
