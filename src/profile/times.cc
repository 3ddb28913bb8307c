#include "profile/times.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/fail.h"
#include "profile/traces.h"

namespace perigee::profile {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTogether = 64;  // most concurrent ranks whose times are used for fewer ranks
// The line through points extrapolates up to kExtrapolation times the bytes of the largest point,
// and down to 1/kExtrapolation of the smallest. It has no upper limit where the transfer of the
// largest point takes at least kTransferShare of the latency, no lower limit where the largest
// point has at least kSpan times the bytes of the smallest.
constexpr double kExtrapolation = 2, kTransferShare = 0.2, kSpan = 4;

std::string content_of(cost::CollectiveKind kind, int64_t ranks) {
  return fmt::format("{} ranks={}", cost::name_of(kind), ranks);
}

constexpr double kLargest = 1e18;  // upper limit of times and bytes

// Returns the field, a number of at least 0, or nothing.
std::optional<double> number(const Json& json, const char* field) {
  const auto found = json.is_object() ? json.find(field) : json.end();
  if (found == json.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return value >= 0 && value <= kLargest ? std::optional(value) : std::nullopt;
}

// Returns whether the line through the points (at least one) may be used for that many bytes.
bool line_applies(const Points& points, const Line& line, double bytes) {
  const double least = points.begin()->first, most = points.rbegin()->first;
  const bool up = bytes <= kExtrapolation * most ||
                  line.per_byte * most >= kTransferShare * line.latency;
  const bool down = kExtrapolation * bytes >= least || most >= kSpan * least;
  return up && down;
}

// Returns a point whose bytes differ by at most 5%, or nullptr.
const Measured* nearest(const Points& points, double bytes) {
  const auto above = points.lower_bound(bytes);
  if (above != points.end() && above->first <= 1.05 * bytes) return &above->second;
  if (above == points.begin()) return nullptr;
  const auto below = std::prev(above);
  return below->first >= bytes / 1.05 ? &below->second : nullptr;
}

}  // namespace

Database::Key TimeDatabase::key_of(const std::string& instance, int64_t together) const {
  return {"time", device_,
          together == 1 ? instance : fmt::format("{} together={}", instance, together)};
}

std::optional<double> TimeDatabase::look_up(const std::string& instance, int64_t together) {
  const auto text = database_.find(key_of(instance, together));
  return text ? number(Json::parse(*text, nullptr, false), "seconds") : std::nullopt;
}

std::optional<double> TimeDatabase::op(const std::string& instance) {
  const auto [entry, added] = ops_.try_emplace(instance);
  auto& seconds = entry->second;
  if (!added) return seconds;
  for (auto n = together_; n >= 1 && !seconds; n /= 2) seconds = look_up(instance, n);
  for (auto n = 2 * together_; n <= kMostTogether && !seconds; n *= 2) {
    seconds = look_up(instance, n);
  }
  return seconds;
}

bool TimeDatabase::knows(const std::string& instance) {
  return look_up(instance, together_).has_value();
}

const TimeDatabase::Collective& TimeDatabase::find(cost::CollectiveKind kind, int64_t ranks) {
  const auto [entry, added] = collectives_.try_emplace({kind, ranks});
  auto& [points, line] = entry->second;
  if (!added) return entry->second;
  const auto text = database_.find({"collective", device_, content_of(kind, ranks)});
  if (!text) return entry->second;
  const auto json = Json::parse(*text, nullptr, false);
  const auto latency = number(json, "latency"), per_byte = number(json, "per_byte");
  if (!latency || !per_byte) return entry->second;
  line = {*latency, *per_byte, number(json, "interval").value_or(0)};
  for (const auto& point : json.value("points", Json::array())) {
    const auto bytes = number(point, "bytes"), seconds = number(point, "seconds");
    if (bytes && seconds) points[*bytes] = {*seconds, number(point, "interval").value_or(0), 1};
  }
  return entry->second;
}

std::optional<double> TimeDatabase::collective(cost::CollectiveKind kind, int64_t ranks,
                                               double bytes) {
  const auto& [points, line] = find(kind, ranks);
  if (const auto* near = nearest(points, bytes)) return near->seconds;
  if (line == Line{} || (!points.empty() && !line_applies(points, line, bytes)))
    return std::nullopt;
  return line.latency + bytes * line.per_byte;
}

bool TimeDatabase::knows(cost::CollectiveKind kind, int64_t ranks, double bytes) {
  return nearest(find(kind, ranks).points, bytes) != nullptr;
}

void TimeDatabase::forget() {
  ops_.clear();
  collectives_.clear();
}

void TimeDatabase::put(const std::string& instance, const Measured& measured) {
  database_.put(key_of(instance, together_), Json{{"seconds", measured.seconds},
                                                  {"interval", measured.interval},
                                                  {"samples", measured.samples}}
                                                 .dump());
  ops_[instance] = measured.seconds;
}

void TimeDatabase::put(cost::CollectiveKind kind, int64_t ranks, const Points& points) {
  auto all = find(kind, ranks).points;
  for (const auto& [bytes, measured] : points) all[bytes] = measured;
  const auto line = fit(all);
  auto list = Json::array();
  for (const auto& [bytes, measured] : all) {
    list.push_back(
        {{"bytes", bytes}, {"seconds", measured.seconds}, {"interval", measured.interval}});
  }
  database_.put({"collective", device_, content_of(kind, ranks)}, Json{{"latency", line.latency},
                                                                       {"per_byte", line.per_byte},
                                                                       {"interval", line.interval},
                                                                       {"points", std::move(list)}}
                                                                      .dump());
  collectives_[{kind, ranks}] = {std::move(all), line};
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

namespace {

using Entries = std::vector<std::pair<Database::Key, std::string>>;

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
    const auto trace = parse_trace(value.dump());
    if (!trace || !*trace ||
        std::ranges::any_of((*trace)->allocations, [](auto b) { return b < 0; })) {
      fail("profile", "{} must be a trace: lists of bytes of at least 0, and of numbers, but is {}",
           place, value.dump().substr(0, 60));
    }
  } else {
    fail("profile", "{} must be of a time, a collective or a trace, but is of kind \"{}\"", place,
         key.kind);
  }
}

Entries read_export(const std::string& text, const std::string& file) {
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

}  // namespace

std::set<std::string> measured_devices(Database& database) {
  std::set<std::string> devices;
  for (const auto* kind : {"time", "collective"})
    for (auto& device : database.devices(kind)) devices.insert(std::move(device));
  return devices;
}

std::set<std::string> devices_of(const std::string& text, const std::string& file) {
  std::set<std::string> devices;
  for (const auto& [key, value] : read_export(text, file)) devices.insert(key.device);
  return devices;
}

int64_t import_json(Database& database, const std::string& text, const std::string& file) {
  const auto entries = read_export(text, file);
  for (const auto& [key, value] : entries) database.put(key, value);
  return std::ssize(entries);
}

}  // namespace perigee::profile
