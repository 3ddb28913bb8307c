#include "secret.h"

#include <cstdlib>

#include "base/fail.h"
#include "base/files/file.h"

namespace perigee::command {

std::string given_secret(const std::string& file, const SecretSource& source) {
  if (file.empty()) {
    const char* value = std::getenv(source.environment);
    return value ? value : "";
  }
  auto text = perigee::read_file(file, "launch");
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) {
    fail("launch", "{} must name a file with a secret, but {} is empty", source.option, file);
  }
  return text;
}

}  // namespace perigee::command
