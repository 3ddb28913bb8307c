#include "exec/comm/agreement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/version.h"

namespace perigee::exec {
namespace {

using Json = nlohmann::json;

constexpr size_t kShown = 3;

std::string shown(const std::map<std::string, std::string>& values, const std::string& name) {
  const auto found = values.find(name);
  return found == values.end() ? "not set" : found->second;
}

}  // namespace

std::string print_settings(const Settings& settings) {
  return Json{{"version", kVersion}, {"settings", settings}}.dump();
}

std::string settings_difference(const std::string& text_of_rank_0, const std::string& who,
                                const Settings& settings) {
  std::string version;
  Settings theirs;
  try {
    const auto parsed = Json::parse(text_of_rank_0);
    version = parsed.at("version").get<std::string>();
    theirs = parsed.at("settings").get<Settings>();
  } catch (const Json::exception&) {
    return "rank 0's settings are not readable: another program uses the rendezvous port";
  }
  if (version != kVersion) {
    return fmt::format("all hosts must run one version of perigee, but rank 0 has {} and {} has {}",
                       version, who, kVersion);
  }
  const std::map<std::string, std::string> first(theirs.begin(), theirs.end()),
      own(settings.begin(), settings.end());
  std::set<std::string> names;
  for (const auto& [name, value] : first) names.insert(name);
  for (const auto& [name, value] : own) names.insert(name);
  std::vector<std::string> lines;
  for (const auto& name : names) {
    const auto a = shown(first, name), b = shown(own, name);
    if (a != b) lines.push_back(fmt::format("{} is {} on rank 0 and {} on {}", name, a, b, who));
  }
  if (lines.empty()) return "";
  const auto more = lines.size() - std::min(lines.size(), kShown);
  lines.resize(std::min(lines.size(), kShown));
  return fmt::format(
      "all hosts must train one job, but {}{}: start every host with the same job and options",
      fmt::join(lines, "; "), more > 0 ? fmt::format("; {} more differ", more) : "");
}

}  // namespace perigee::exec
