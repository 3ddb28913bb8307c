// Golden files: the expected text lies in a file beside the test. PERIGEE_UPDATE=1 rewrites it.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace perigee::test {

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns "" when the file at `path` (relative to the repository) holds `text`, else the first line
// that differs.
inline std::string golden_difference(const std::string& path, const std::string& text) {
  if (std::getenv("PERIGEE_UPDATE")) {
    std::ofstream(path, std::ios::binary) << text;
    return "";
  }
  std::istringstream expected(read_text(path)), actual(text);
  std::string want, got;
  for (int line = 1;; ++line) {
    const bool more_wanted = static_cast<bool>(std::getline(expected, want));
    const bool more_got = static_cast<bool>(std::getline(actual, got));
    if (!more_wanted && !more_got) return "";
    if (more_wanted != more_got || want != got) {
      return path + ":" + std::to_string(line) + ": expected \"" + (more_wanted ? want : "(end)") +
             "\", but got \"" + (more_got ? got : "(end)") + "\"";
    }
  }
}

}  // namespace perigee::test
