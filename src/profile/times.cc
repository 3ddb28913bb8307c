#include "profile/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "profile/export.h"

namespace perigee::profile {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTogether = 64;  // most concurrent ranks whose times are used for fewer ranks
// The line through points extrapolates up to kExtrapolation times the bytes of the largest point,
// and down to 1/kExtrapolation of the smallest. It has no upper limit where the transfer of the
// largest point takes at least kTransferShare of the latency, no lower limit where the largest
// point has at least kSpan times the bytes of the smallest.
constexpr double kExtrapolation = 2, kTransferShare = 0.2, kSpan = 4;

// Returns "all_reduce ranks=4 network/2": of four ranks on hosts of which each has two.
std::string content_of(const cost::ExchangeKind& kind) {
  auto text = fmt::format("{} ranks={} {}", cost::name_of(kind.kind), kind.ranks, kind.level);
  for (const auto ranks : kind.inside) text += fmt::format("/{}", ranks);
  return text;
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

Database::Key TimeDatabase::key_of(const cost::ExchangeKind& kind) const {
  const auto content = content_of(kind);
  return {"collective", device_, carrier_.empty() ? content : content + " over " + carrier_};
}

const TimeDatabase::Collective& TimeDatabase::find(const cost::ExchangeKind& kind) {
  const auto [entry, added] = collectives_.try_emplace(kind);
  auto& [points, line] = entry->second;
  if (!added) return entry->second;
  const auto text = database_.find(key_of(kind));
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

std::optional<double> TimeDatabase::collective(const cost::ExchangeKind& kind, double bytes) {
  const auto& [points, line] = find(kind);
  if (const auto* near = nearest(points, bytes)) return near->seconds;
  if (line == Line{} || (!points.empty() && !line_applies(points, line, bytes)))
    return std::nullopt;
  return line.latency + bytes * line.per_byte;
}

bool TimeDatabase::knows(const cost::ExchangeKind& kind, double bytes) {
  return nearest(find(kind).points, bytes) != nullptr;
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

void TimeDatabase::put(const cost::ExchangeKind& kind, const Points& points) {
  auto all = find(kind).points;
  for (const auto& [bytes, measured] : points) all[bytes] = measured;
  const auto line = fit(all);
  auto list = Json::array();
  for (const auto& [bytes, measured] : all) {
    list.push_back(
        {{"bytes", bytes}, {"seconds", measured.seconds}, {"interval", measured.interval}});
  }
  database_.put(key_of(kind), Json{{"latency", line.latency},
                                   {"per_byte", line.per_byte},
                                   {"interval", line.interval},
                                   {"points", std::move(list)}}
                                  .dump());
  collectives_[kind] = {std::move(all), line};
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
