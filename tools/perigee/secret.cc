#include "secret.h"

#include <cstdlib>

#include "base/fail.h"
#include "base/files/file.h"

namespace perigee::command {

std::string given_secret(const std::string& file) {
  if (file.empty()) {
    const char* value = std::getenv("PERIGEE_SECRET");
    return value ? value : "";
  }
  auto text = read_file(file, "launch");
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) {
    fail("launch", "--secret-file must name a file with the job's secret, but {} is empty", file);
  }
  return text;
}

}  // namespace perigee::command
