#include "profile/export.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/fail.h"
#include "base/text/depth.h"
#include "profile/trace_text.h"

namespace perigee::profile {
namespace {

using Json = nlohmann::json;

constexpr double kLargest = 1e18;  // upper limit of times and bytes

// A field of an object in an export.
struct Field {
  std::string name;
  bool required = false;
  bool number = true;  // of at least 0, finite
};

// Throws Error where the value has an unknown field, lacks one, or has an invalid number. `what`:
// the kind of object, `place`: its path.
void check_fields(const Json& value, const std::vector<Field>& fields, const std::string& what,
                  const std::string& place) {
  if (!value.is_object()) {
    fail("profile", "{} must be an object, as {} is, but is {}", place, what,
         value.dump().substr(0, 60));
  }
  std::vector<std::string> names;
  for (const auto& field : fields) names.push_back(field.name);
  for (const auto& [key, unused] : value.items()) {
    if (std::ranges::count(names, key) > 0) continue;
    fail("profile", "{}.{} is unknown: {} has {}{}", place, key, what, fmt::join(names, ", "),
         did_you_mean(key, names));
  }
  for (const auto& [name, required, is_number] : fields) {
    if (!value.contains(name)) {
      if (required) fail("profile", "{} needs {}, but {} has none", place, name, what);
    } else if (is_number && !number(value, name.c_str())) {
      fail("profile", "{}.{} must be a finite number (up to 1e18) of at least 0, but is {}", place,
           name, value[name].dump().substr(0, 60));
    }
  }
}

// Throws Error where the value does not suit the key's kind.
void check_value(const Database::Key& key, const Json& value, const std::string& place) {
  const auto what = fmt::format("a {} ({})", key.kind, key.content.substr(0, 60));
  if (key.kind == "time") {
    check_fields(value, {{"seconds", true}, {"interval"}, {"samples"}}, what, place);
  } else if (key.kind == "collective") {
    check_fields(value,
                 {{"latency", true}, {"per_byte", true}, {"interval"}, {"points", false, false}},
                 what, place);
    const auto points = value.value("points", Json::array());
    if (!points.is_array()) fail("profile", "{}.points must be a list", place);
    for (size_t i = 0; i < points.size(); ++i) {
      check_fields(points[i], {{"bytes", true}, {"seconds", true}, {"interval"}},
                   "a point of " + what, fmt::format("{}.points[{}]", place, i));
    }
  } else if (key.kind == "trace") {
    if (value.is_null()) return;
    check_fields(value,
                 {{"allocations", true, false},
                  {"freed_before", true, false},
                  {"output_allocation", true, false},
                  {"output_strides", true, false},
                  {"complete", false, false},
                  {"worker_bytes", false, false}},
                 what, place);
    if (!parse_trace(value.dump())) {
      fail("profile", "{} must be a trace: lists of bytes of at least 0, and of numbers, but is {}",
           place, value.dump().substr(0, 60));
    }
  } else {
    fail("profile", "{} must be of a time, a collective or a trace, but is of kind \"{}\"", place,
         key.kind);
  }
}

}  // namespace

std::optional<double> number(const Json& json, const char* field) {
  const auto found = json.is_object() ? json.find(field) : json.end();
  if (found == json.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return value >= 0 && value <= kLargest ? std::optional(value) : std::nullopt;
}

Entries read_export(const std::string& text, const std::string& file) {
  check_json_depth(text, "profile", file);
  const auto json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", Json()) != "perigee.profile/1" ||
      !json.value("entries", Json()).is_array()) {
    fail("profile", "{} must hold \"format\": \"perigee.profile/1\" and entries, but does not",
         file);
  }
  check_fields(json, {{"format", true, false}, {"entries", true, false}}, "an export", file);
  Entries entries;
  for (const auto& entry : json["entries"]) {
    const auto place = fmt::format("{}: entries[{}]", file, entries.size());
    check_fields(entry,
                 {{"kind", true, false},
                  {"device", true, false},
                  {"content", true, false},
                  {"value", true, false}},
                 "an entry", place);
    const auto text_of = [&](const char* field) -> std::string {
      if (entry[field].is_string()) return entry[field];
      fail("profile", "{}.{} must be a string", place, field);
    };
    Database::Key key{text_of("kind"), text_of("device"), text_of("content")};
    check_value(key, entry["value"], place + ".value");
    entries.emplace_back(std::move(key), entry["value"].dump());
  }
  return entries;
}

}  // namespace perigee::profile
