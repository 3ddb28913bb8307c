#include "view/run_format.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/fail.h"

namespace perigee::view {

void require_run_format(const std::string& folder) {
  std::ifstream file(std::filesystem::path(folder) / "memory.json", std::ios::binary);
  if (!file) return;
  const auto memory = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!memory.is_object() || !memory.contains("format")) return;
  const auto& format = memory["format"];
  if (format.is_string() && format.get<std::string>() == kRunFormat) return;
  fail("run",
       "{} must be a run in the format {}, but its memory.json states {}: the Perigee that wrote "
       "it, or a later one, reads it",
       folder, kRunFormat, format.dump());
}

}  // namespace perigee::view
