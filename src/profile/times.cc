#include "profile/times.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace perigee::profile {
namespace {

using Json = nlohmann::json;

std::string content_of(cost::CollectiveKind kind, int64_t ranks) {
  return fmt::format("{} ranks={}", cost::name_of(kind), ranks);
}

// Returns the field, a finite number of at least 0, or nothing.
std::optional<double> number(const Json& json, const char* field) {
  const auto found = json.is_object() ? json.find(field) : json.end();
  if (found == json.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<double> TimeDatabase::op(const std::string& instance) {
  const auto [entry, added] = ops_.try_emplace(instance);
  if (added) {
    if (const auto text = database_.find({"time", device_, instance})) {
      entry->second = number(Json::parse(*text, nullptr, false), "seconds");
    }
  }
  return entry->second;
}

std::optional<double> TimeDatabase::collective(cost::CollectiveKind kind, int64_t ranks,
                                               double bytes) {
  const auto [entry, added] = lines_.try_emplace({kind, ranks});
  if (added) {
    if (const auto text = database_.find({"collective", device_, content_of(kind, ranks)})) {
      const auto json = Json::parse(*text, nullptr, false);
      const auto latency = number(json, "latency"), per_byte = number(json, "per_byte");
      if (latency && per_byte) entry->second = Line{*latency, *per_byte, 0};
    }
  }
  if (!entry->second) return std::nullopt;
  return entry->second->latency + bytes * entry->second->per_byte;
}

void TimeDatabase::forget() {
  ops_.clear();
  lines_.clear();
}

void TimeDatabase::put(const std::string& instance, const Measured& measured) {
  database_.put({"time", device_, instance}, Json{{"seconds", measured.seconds},
                                                  {"interval", measured.interval},
                                                  {"samples", measured.samples}}
                                                 .dump());
  ops_[instance] = measured.seconds;
}

void TimeDatabase::put(cost::CollectiveKind kind, int64_t ranks, const Line& line) {
  database_.put(
      {"collective", device_, content_of(kind, ranks)},
      Json{{"latency", line.latency}, {"per_byte", line.per_byte}, {"interval", line.interval}}
          .dump());
  lines_[{kind, ranks}] = line;
}

std::string export_json(Database& database) {
  auto entries = Json::array();
  for (const auto& [key, value] : database.all()) {
    const auto parsed = Json::parse(value, nullptr, false);
    if (parsed.is_discarded()) continue;
    entries.push_back(
        {{"kind", key.kind}, {"device", key.device}, {"content", key.content}, {"value", parsed}});
  }
  return Json{{"format", "perigee.profile/1"}, {"entries", entries}}.dump(1) + "\n";
}

int64_t import_json(Database& database, const std::string& text, const std::string& file) {
  const auto json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", Json()) != "perigee.profile/1" ||
      !json.value("entries", Json()).is_array()) {
    fail("profile", "{} must hold \"format\": \"perigee.profile/1\" and entries, but does not",
         file);
  }
  int64_t count = 0;
  for (const auto& entry : json["entries"]) {
    const auto text_of = [&](const char* field) -> std::string {
      if (entry.is_object() && entry.contains(field) && entry[field].is_string()) {
        return entry[field];
      }
      fail("profile", "{}: entries[{}].{} must be a string", file, count, field);
    };
    const Database::Key key{text_of("kind"), text_of("device"), text_of("content")};
    if (!entry.contains("value")) {
      fail("profile", "{}: entries[{}].value is missing", file, count);
    }
    const auto& value = entry["value"];
    const bool fits = key.kind == "time" ? number(value, "seconds").has_value()
                      : key.kind == "collective"
                          ? number(value, "latency") && number(value, "per_byte")
                          : key.kind == "trace";
    if (!fits) {
      fail("profile",
           "{}: entries[{}] must be a trace, or times that are finite and at least 0, but is a {} "
           "of {}",
           file, count, key.kind, value.dump().substr(0, 60));
    }
    database.put(key, value.dump());
    ++count;
  }
  return count;
}

}  // namespace perigee::profile
