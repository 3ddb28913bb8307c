#include "base/log_once.h"

#include <mutex>
#include <set>
#include <string>

namespace perigee::log {

void once(Level level, std::string_view text) {
  // Never destroyed: threads may log while the process ends.
  static std::mutex mutex;
  static auto* written = new std::set<std::string, std::less<>>;
  {
    std::lock_guard lock(mutex);
    if (!written->emplace(text).second) return;
  }
  write(level, text);
}

}  // namespace perigee::log
