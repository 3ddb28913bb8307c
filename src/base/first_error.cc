#include "base/first_error.h"

#include <fmt/format.h>

#include <string>

namespace perigee {

void FirstError::raise(std::string_view entry, std::string_view table) const {
  if (!first_) return;
  if (more_ == 0) throw *first_;
  const std::string text = first_->what();  // "[area] rule"
  const auto end = text.find("] ");
  throw Error(first_->status(), text.substr(1, end - 1),
              fmt::format("{} (and {} more {}{} of {} {} wrong)", text.substr(end + 2), more_,
                          entry, more_ == 1 ? "" : "s", table, more_ == 1 ? "is" : "are"));
}

}  // namespace perigee
