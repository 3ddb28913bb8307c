#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>

#include "base/fail.h"
#include "base/terminal/terminal.h"

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

// Lines that were written while no file was open.
struct Early {
  std::mutex mutex;
  std::vector<std::string> lines;
};

Early& early() {
  static auto* early = new Early;
  return *early;
}

// Lines of information carry no level: they are the program's normal output.
class StandardSink : public Sink {
 public:
  StandardSink(std::string_view prefix, spdlog::sink_ptr file)
      : terminal_("perigee", std::make_shared<spdlog::sinks::stderr_sink_mt>()),
        file_("perigee"),
        prefix_(prefix) {
    if (!prefix_.empty()) prefix_ += ": ";
    if (file) file_.sinks().push_back(std::move(file));
    for (auto* logger : {&terminal_, &file_}) {
      logger->set_level(spdlog::level::trace);
      logger->set_pattern("%v");
      logger->flush_on(spdlog::level::trace);
    }
    // A full disk is not an error of the log: files that the run needs will report it.
    file_.set_error_handler([](const std::string&) {});
    if (!has_file()) return;
    std::lock_guard lock(early().mutex);
    for (const auto& line : early().lines) file_.info("{}", line);
    early().lines.clear();
  }

  void write(Level level, std::string_view text) override {
    const char* word = level == Level::warn ? "warning: " : level == Level::error ? "error: " : "";
    const auto line = fmt::format("{}{}{}", prefix_, word, text);
    if (!shown_.empty()) show("");
    if (style_.colours && *word) {
      terminal_.log(to_spdlog(level), "{}{}{}{}{}", prefix_, level == Level::warn ? kYellow : kRed,
                    word, kPlain, text);
    } else {
      terminal_.log(to_spdlog(level), "{}", line);
    }
    if (!shown_.empty()) show(shown_);
    if (has_file()) return file_.log(to_spdlog(level), "{}", line);
    std::lock_guard lock(early().mutex);
    if (early().lines.size() < 1000) early().lines.push_back(line);
  }

  bool progress(std::string_view text) override {
    if (!style_.moves) return false;
    if (!text.empty() || !shown_.empty()) show(text);
    shown_ = text;
    return true;
  }

 private:
  // Replaces the terminal's last line, cut to its width so that it stays one line.
  static void show(std::string_view text) {
    const auto line = first_columns(text, columns_of_standard_error() - 1);
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
    std::fflush(stderr);
  }

  bool has_file() const { return !file_.sinks().empty(); }

  spdlog::logger terminal_, file_;
  std::string prefix_;
  std::string shown_;  // the line of progress
  Terminal style_ = Terminal::of_standard_error();
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
  spdlog::sink_ptr file;
  if (!path.empty()) {
    try {
      file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    } catch (const spdlog::spdlog_ex& e) {
      fail("log", "the log file must be writable, but got \"{}\" ({})", path, e.what());
    }
  }
  std::lock_guard lock(mutex);
  return made->emplace_back(std::make_unique<StandardSink>(prefix, std::move(file))).get();
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
