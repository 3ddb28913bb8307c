// The first of several mistakes, and how many more there are.
#pragma once

#include <optional>
#include <string_view>

#include "base/error.h"

namespace perigee {

// Collects the errors of a table's entries, in the order in which they are checked.
class FirstError {
 public:
  // Runs the check of one entry.
  template <class Check>
  void check(Check check) {
    try {
      check();
    } catch (const Error& error) {
      if (first_) ++more_;
      if (!first_) first_ = error;
    }
  }
  explicit operator bool() const { return first_.has_value(); }

  // Throws the first error, if there is one, with the number of the others: "... (and 2 more keys
  // of [train] are wrong)" where `entry` is "key" and `table` "[train]".
  void raise(std::string_view entry, std::string_view table) const;

 private:
  std::optional<Error> first_;
  int more_ = 0;
};

}  // namespace perigee
