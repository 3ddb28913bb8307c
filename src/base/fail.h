// Throwing Error with a formatted text. Not for headers that applications include: fmt's headers
// must not meet the fmt that LibTorch ships.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/error.h"

namespace perigee {

// Throws an Error with Status::invalid: the command, job, strategy, model or file is wrong.
template <class... Args>
[[noreturn]] void fail(std::string_view area, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Status::invalid, area, fmt::format(format, std::forward<Args>(args)...));
}

// Throws an Error with Status::failed: something broke while the job ran.
template <class... Args>
[[noreturn]] void fail_run(std::string_view area, fmt::format_string<Args...> format,
                           Args&&... args) {
  throw Error(Status::failed, area, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace perigee
