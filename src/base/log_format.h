// Logging of formatted messages. Not for headers that applications include: fmt's headers must not
// meet the fmt that LibTorch ships.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace perigee::log {

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace perigee::log
