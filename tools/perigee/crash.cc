#include "crash.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace perigee::command {
namespace {

constexpr int kMostFrames = 64, kMostSeconds = 5;
std::array<char, 64> name{};  // of the process
size_t name_size = 0;

void write_text(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

// The thread may hold the loader's lock, which naming the frames needs: the alarm then ends
// the process.
void write_stack(int signal) {
  ::alarm(kMostSeconds);
  std::array<char, 160> line;
  const auto end = fmt::format_to_n(line.data(), line.size(),
                                    "perigee: {} has crashed with signal {}; its stack:\n",
                                    std::string_view(name.data(), name_size), signal);
  write_text({line.data(), std::min(end.size, line.size())});
  void* frames[kMostFrames];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, kMostFrames), STDERR_FILENO);
  ::raise(signal);  // SA_RESETHAND: the default now
}

}  // namespace

void report_crashes(const std::string& who) {
  name_size = std::min(who.size(), name.size());
  std::copy_n(who.begin(), name_size, name.begin());
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // loads its library before a signal
  struct sigaction action {};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESETHAND | SA_NODEFER;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace perigee::command
