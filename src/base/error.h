// The one exception type of Perigee and the way messages are written.
#pragma once

#include <exception>
#include <span>
#include <string>
#include <string_view>

namespace perigee {

// Why a job ended, as the command's exit status (runtime/command_line.md).
enum class Status { done = 0, failed = 1, invalid = 2, infeasible = 3 };

// An error a user can act on. The text is `[area] rule, but got value`; it names what the
// user can change.
class Error : public std::exception {
 public:
  Error(Status status, std::string_view area, std::string_view text);
  const char* what() const noexcept override { return text_.c_str(); }
  Status status() const noexcept { return status_; }

 private:
  Status status_;
  std::string text_;
};

// Returns the candidate nearest to `name` by edit distance, or "" where none is near enough to be a
// likely typing error.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

// Returns ", did you mean X?" for the nearest candidate, or "" where there is none.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace perigee
