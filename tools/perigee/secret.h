// Secrets that the user gives: of a job over several hosts, of a server.
#pragma once

#include <string>

namespace perigee::command {

// Where a secret comes from.
struct SecretSource {
  const char* option;       // "--secret-file"
  const char* environment;  // "PERIGEE_SECRET"
};
constexpr SecretSource kJobSecret = {"--secret-file", "PERIGEE_SECRET"};
constexpr SecretSource kServerToken = {"--token-file", "PERIGEE_TOKEN"};

// Returns the content of `file`, the option's value, without the line's end; where it is "", the
// environment's variable, else "". Throws Error where the file holds nothing.
std::string given_secret(const std::string& file, const SecretSource& source);

}  // namespace perigee::command
