// Lines of the log that a process writes once, however often their reason is met.
#pragma once

#include <string_view>

#include "base/log.h"

namespace perigee::log {

// Writes the text unless this process has written the same text by this function before.
void once(Level level, std::string_view text);

}  // namespace perigee::log
