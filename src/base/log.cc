#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
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
    logger_.log(to_spdlog(level), "{}{}{}", prefix_, word, text);
  }

 private:
  spdlog::logger logger_;
  std::string prefix_;
};

}  // namespace

void set_sink(Sink* sink, Level lowest) {
  auto& s = state();
  std::lock_guard lock(s.mutex);
  s.sink = sink;
  s.lowest = lowest;
  s.active = sink != nullptr;
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

}  // namespace perigee::log
