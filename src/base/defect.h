// Errors that are Perigee's own.
#pragma once

#include "base/fail.h"

namespace perigee {

// Throws an Error with Status::failed for a defect of Perigee, which no input may cause. The text
// names the violated condition; a request to report it follows.
template <class... Args>
[[noreturn]] void fail_defect(std::string_view area, fmt::format_string<Args...> format,
                              Args&&... args) {
  throw Error(Status::failed, area,
              fmt::format(format, std::forward<Args>(args)...) +
                  ": this is a defect of Perigee, not of the job; please report it with the job, "
                  "the strategy and what `perigee doctor` prints");
}

}  // namespace perigee
