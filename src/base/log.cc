#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>

#include "base/error.h"

namespace perigee::log {
namespace {

struct State {
  std::mutex mutex;
  Sink* sink = nullptr;
  std::atomic<Level> lowest{Level::info};
  std::atomic<bool> active{false};
};

// Never destroyed: threads may log while the process ends.
State& state() {
  static auto* state = new State;
  return *state;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      break;
  }
  return spdlog::level::err;
}

// Lines of information carry no level: they are the program's normal output.
class StandardSink : public Sink {
 public:
  StandardSink(std::string_view prefix, std::vector<spdlog::sink_ptr> sinks)
      : logger_("perigee", sinks.begin(), sinks.end()), prefix_(prefix) {
    if (!prefix_.empty()) prefix_ += ": ";
    logger_.set_level(spdlog::level::trace);
    logger_.set_pattern("%v");
    logger_.flush_on(spdlog::level::trace);
  }

  void write(Level level, std::string_view text) override {
    const char* word = level == Level::warn ? "warning: " : level == Level::error ? "error: " : "";
    if (!shown_.empty()) show("");
    logger_.log(to_spdlog(level), "{}{}{}", prefix_, word, text);
    if (!shown_.empty()) show(shown_);
  }

  bool progress(std::string_view text) override {
    if (!is_terminal_) return false;
    if (!text.empty() || !shown_.empty()) show(text);
    shown_ = text;
    return true;
  }

 private:
  // Replaces the terminal's last line, cut to its width so that it stays one line.
  static void show(std::string_view text) {
    winsize size{};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
      text = text.substr(0, size.ws_col - 1);
    }
    std::fprintf(stderr, "\r\x1b[K%.*s", static_cast<int>(text.size()), text.data());
    std::fflush(stderr);
  }

  spdlog::logger logger_;
  std::string prefix_;
  std::string shown_;  // the line of progress
  bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
};

}  // namespace

void set_sink(Sink* sink) {
  auto& s = state();
  std::lock_guard lock(s.mutex);
  s.sink = sink;
  s.active = sink != nullptr;
}

void set_sink(Sink* sink, Level lowest) {
  state().lowest = lowest;
  set_sink(sink);
}

Sink* standard_sink(std::string_view prefix, const std::string& path) {
  static std::mutex mutex;
  static auto* made = new std::vector<std::unique_ptr<StandardSink>>;
  std::vector<spdlog::sink_ptr> sinks{std::make_shared<spdlog::sinks::stderr_sink_mt>()};
  if (!path.empty()) {
    try {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
    } catch (const spdlog::spdlog_ex& e) {
      fail("log", "the log file must be writable, but got \"{}\" ({})", path, e.what());
    }
  }
  std::lock_guard lock(mutex);
  return made->emplace_back(std::make_unique<StandardSink>(prefix, std::move(sinks))).get();
}

void write(Level level, std::string_view text) {
  auto& s = state();
  if (!s.active || level < s.lowest) return;
  std::lock_guard lock(s.mutex);
  if (s.sink) s.sink->write(level, text);
}

bool progress(std::string_view text) {
  auto& s = state();
  if (!s.active) return false;
  std::lock_guard lock(s.mutex);
  return s.sink && s.sink->progress(text);
}

}  // namespace perigee::log
