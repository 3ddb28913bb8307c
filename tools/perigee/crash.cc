#include "crash.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <new>
#include <string_view>
#include <system_error>

#include "base/files/find_mapped_file.h"
#include "launch/limits.h"
#include "launch/round.h"

namespace perigee::command {
namespace {

constexpr int kMostFrames = 64, kMostSeconds = 5;
std::array<char, 64> name{};  // of the process, with a colon and a blank
size_t name_size = 0;

void write_text(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Allocates nothing.
template <class... Args>
void write_line(fmt::format_string<Args...> format, Args&&... args) {
  std::array<char, 1024> line;
  const auto end = fmt::format_to_n(line.data(), line.size(), format, std::forward<Args>(args)...);
  write_text({line.data(), std::min(end.size, line.size())});
}

std::string_view who() { return {name.data(), name_size}; }

// Ends the process with a sentence, which a rank's launcher shows.
template <class... Args>
[[noreturn]] void end(fmt::format_string<Args...> format, Args&&... args) {
  std::array<char, 1024> text;
  const auto size =
      fmt::format_to_n(text.data(), text.size(), format, std::forward<Args>(args)...).size;
  const std::string_view sentence(text.data(), std::min(size, text.size()));
  if (!report_failure(sentence)) write_line("perigee: {}\n", sentence);
  ::_exit(1);
}

[[noreturn]] void end_out_of_memory() { end("{}{}", who(), kOutOfMemory); }

// Of errors that no thread catches: those of the system are no program errors.
[[noreturn]] void end_uncaught() {
  if (std::current_exception()) {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      end_out_of_memory();
    } catch (const std::system_error& error) {
      end("{}{} {}{}", who(), kNoThread, error.what(), limit_reached(error.what()));
    } catch (const std::exception& error) {
      // A thread of a library that accepts connections.
      const auto limit = limit_reached(error.what());
      if (!limit.empty()) end("{}[system] {}{}", who(), error.what(), limit);
      write_line("perigee: {}[internal] an error is not handled: {}\n", who(), error.what());
    } catch (...) {
    }
  }
  std::abort();
}

// Libraries abort where an allocation fails, mimalloc's operator new among them.
bool lacks_memory() {
  constexpr size_t kBytes = 64 << 20;
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);
  if (memory == MAP_FAILED) return true;
  ::munmap(memory, kBytes);
  return false;
}

// The thread may hold the loader's lock, which naming the frames needs: then the alarm ends the
// process after kMostSeconds.
void handle(int signal, siginfo_t* info, void*) {
  if (const char* file = signal == SIGBUS ? find_mapped_file(info->si_addr) : nullptr) {
    end("{}[file] {} must keep its size while it is read, but it has become shorter, or its disk "
        "does not answer",
        who(), file);
  }
  if (signal == SIGABRT && lacks_memory()) end_out_of_memory();
  ::alarm(kMostSeconds);
  const auto subject = who().empty() ? "the process" : who().substr(0, name_size - 2);
  write_line("perigee: {} has crashed with signal {}; its stack:\n", subject, signal);
  void* frames[kMostFrames];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, kMostFrames), STDERR_FILENO);
  ::raise(signal);  // SA_RESETHAND: the default now
}

void handle_signals(std::initializer_list<int> signals) {
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_RESETHAND | SA_NODEFER | SA_SIGINFO;
  for (const int signal : signals) ::sigaction(signal, &action, nullptr);
}

}  // namespace

void report_exhaustion(const std::string& who) {
  const auto text = who.empty() ? "" : who + ": ";
  name_size = std::min(text.size(), name.size());
  std::copy_n(text.begin(), name_size, name.begin());
  std::set_new_handler(end_out_of_memory);
  std::set_terminate(end_uncaught);
  handle_signals({SIGABRT});
}

void report_crashes(const std::string& who) {
  report_exhaustion(who);
  void* frame = nullptr;
  ::backtrace(&frame, 1);     // loads its library before a signal
  find_mapped_file(nullptr);  // makes its table
  handle_signals({SIGSEGV, SIGBUS, SIGFPE, SIGILL});
}

}  // namespace perigee::command
