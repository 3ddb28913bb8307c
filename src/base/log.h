// Logging. The library only reports to the sink that its host sets; without one, messages are
// dropped. Free of torch and of spdlog's headers, so that any translation unit may include it.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace perigee::log {

enum class Level { debug, info, warn, error };

// Receives every message at or above the level. Called from any thread, one call at a time.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(Level level, std::string_view text) = 0;
};

// Sets the process's sink (not owned; nullptr drops messages) and its lowest level.
void set_sink(Sink* sink, Level lowest = Level::info);

// Returns a spdlog sink that writes plain lines to standard error and, with a path, to that file
// too. `prefix` stands before every line ("rank 2"). Throws Error when the file cannot be opened.
Sink* standard_sink(std::string_view prefix = "", const std::string& path = "");

void write(Level level, std::string_view text);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace perigee::log
