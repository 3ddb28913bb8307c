// Logging. The library only reports to the sink that its host sets; without one, messages are
// dropped. Free of torch and of spdlog's headers, so that any translation unit may include it.
#pragma once

#include <string>
#include <string_view>

namespace perigee::log {

enum class Level { debug, info, warn, error };

// Receives every message at or above the level. Called from any thread, one call at a time.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(Level level, std::string_view text) = 0;
  // Shows a line that stays below all messages until the next one replaces it; "" removes it.
  // Returns false where there is no terminal for it.
  virtual bool progress(std::string_view) { return false; }
};

// Sets the process's sink (not owned; nullptr drops messages), and its lowest level where one is
// given (at first: info).
void set_sink(Sink* sink);
void set_sink(Sink* sink, Level lowest);

// Returns a sink that writes plain lines to standard error and, with a path, to that file too,
// which then starts with the lines written by earlier such sinks. `prefix` begins every line
// ("rank 2"). It shows
// progress where standard error is a terminal. Throws Error when the file cannot be opened.
Sink* standard_sink(std::string_view prefix = "", const std::string& path = "");

void write(Level level, std::string_view text);

// Shows progress (Sink::progress). Returns false where there is no terminal for it, so that the
// caller may log instead.
bool progress(std::string_view text);

}  // namespace perigee::log
