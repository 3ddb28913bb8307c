#include "plan/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace perigee::plan {
namespace {

using nlohmann::json;

// The values of a plan's file by path.
using Values = std::map<std::string, std::string>;

bool is_text(const json& value) {
  if (value.is_string()) return true;
  return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), is_text);
}

// Returns "a + b" for a region of several scopes.
std::string joined(const json& value) {
  if (value.is_string()) return value;
  std::string text;
  for (const auto& item : value) text += (text.empty() ? "" : " + ") + joined(item);
  return text;
}

// `by_member`: a list of texts is one value for each of them, without their order.
void flatten(const json& value, const std::string& path, bool by_member, Values& values) {
  const auto below = [&](const std::string& name) {
    return path.empty() ? name : path + "." + name;
  };
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) flatten(item, below(key), by_member, values);
  } else if (by_member && value.is_array() && is_text(value)) {
    for (const auto& item : value) values[below(joined(item))] = "true";
  } else if (value.is_array() && !value.empty() && value.front().is_object()) {
    for (size_t i = 0; i < value.size(); ++i) {
      flatten(value[i], below(std::to_string(i)), by_member, values);
    }
  } else if (!value.is_array() || !value.empty()) {
    values[path] = value.dump();
  }
}

// Lists whose members have names become objects by name; a second "all" is "all (2)".
json by_name(const json& list, const char* name, const char* value) {
  auto object = json::object();
  for (auto item : list) {
    const auto own = item.at(name).get<std::string>();
    auto key = own;
    for (int number = 2; object.contains(key); ++number) key = fmt::format("{} ({})", own, number);
    if (value) {
      object[key] = item.at(value);
    } else {
      item.erase(name);
      object[key] = std::move(item);
    }
  }
  return object;
}

Values values_of(const Plan& plan) {
  auto document = json::parse(print(plan));
  document["mesh"]["axes"] = by_name(document["mesh"]["axes"], "name", "size");
  if (document.contains("units")) document["units"] = by_name(document["units"], "name", nullptr);
  if (document["recompute"].contains("keep_in")) {
    for (auto& kept : document["recompute"]["keep_in"]) {
      if (kept.empty()) kept = json::array({"nothing"});
    }
  }
  auto& prediction = document["prediction"];
  for (const char* key : {"peak_bytes", "host_bytes"}) {
    if (!prediction.contains(key) || prediction[key].empty()) continue;
    prediction[key] = *std::max_element(prediction[key].begin(), prediction[key].end());
  }
  auto decisions = json::array();
  for (const auto& decision : plan.decisions) {
    decisions.push_back(decision.by + ": " + decision.sentence);
  }
  document["decisions"] = std::move(decisions);
  Values values;
  flatten(document, "", /*by_member=*/true, values);
  return values;
}

// Returns the plan's values with lists in their order, for plans that differ in nothing else.
Values ordered_values_of(const Plan& plan) {
  Values values;
  flatten(json::parse(print(plan)), "", /*by_member=*/false, values);
  return values;
}

std::string order_of(const std::vector<mesh::Axis>& axes) {
  std::string names;
  for (const auto& axis : axes) names += (names.empty() ? "" : ",") + axis.name;
  return json(names).dump();
}

// Returns the path with "*" in place of components that are numbers.
std::string pattern_of(const std::string& path) {
  std::string pattern;
  for (size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    const auto part = path.substr(begin, end - begin);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) {
      return std::isdigit(c);
    });
    pattern += (begin > 0 ? "." : "") + (number ? "*" : part);
    begin = end + 1;
  }
  return pattern;
}

// Returns the path's rank in the order of differences: predicted costs, then the plan itself,
// then decisions.
int weight_of(const std::string& path) {
  const char* const order[] = {"prediction.step_seconds",
                               "prediction.peak_bytes",
                               "prediction.",
                               "mesh.",
                               "pipeline.",
                               "microbatches",
                               "placements."};
  if (path.starts_with("decisions.")) return static_cast<int>(std::size(order)) + 1;
  const auto found = std::find_if(std::begin(order), std::end(order),
                                  [&](const char* begin) { return path.starts_with(begin); });
  return static_cast<int>(found - std::begin(order));
}

std::vector<Difference> compare(const Values& first, const Values& second) {
  std::map<std::string, std::pair<std::string, std::string>> changed;
  for (const auto& [path, value] : first) changed[path].first = value;
  for (const auto& [path, value] : second) changed[path].second = value;
  std::vector<Difference> list;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> known;
  for (const auto& [path, values] : changed) {
    const auto& [from, to] = values;
    if (from == to) continue;
    // Numbers in sentences are not block numbers.
    const bool sentence = path.starts_with("decisions.");
    const auto pattern = sentence ? path : pattern_of(path);
    const auto [found, added] = known.try_emplace({pattern, from, to}, list.size());
    if (added) {
      list.push_back({path, from, to});
    } else {
      auto& one = list[found->second];
      one.path = pattern;
      ++one.count;
    }
  }
  std::ranges::stable_sort(list, {}, [](const Difference& one) { return weight_of(one.path); });
  return list;
}

}  // namespace

std::vector<Difference> difference(const Plan& a, const Plan& b) {
  auto first = values_of(a), second = values_of(b);
  const auto &from = a.mesh.axes, &to = b.mesh.axes;
  if (std::ranges::is_permutation(from, to, {}, &mesh::Axis::name, &mesh::Axis::name)) {
    first["mesh.axes"] = order_of(from);
    second["mesh.axes"] = order_of(to);
  }
  auto list = compare(first, second);
  if (list.empty() && a != b) list = compare(ordered_values_of(a), ordered_values_of(b));
  return list;
}

std::string to_text(const std::vector<Difference>& list, const std::string& a,
                    const std::string& b) {
  if (list.empty()) return fmt::format("{} and {} are the same plan\n", a, b);
  auto text = fmt::format("from {} to {}:\n", a, b);
  for (const auto& one : list) {
    const auto times = one.count > 1 ? fmt::format(" ({} times)", one.count) : "";
    if (one.from.empty() || one.to.empty()) {
      const auto& value = one.from.empty() ? one.to : one.from;
      text += fmt::format("  {} {}{}{}\n", one.from.empty() ? '+' : '-', one.path,
                          value == "true" ? "" : " = " + value, times);
    } else {
      text += fmt::format("  {}: {} -> {}{}\n", one.path, one.from, one.to, times);
    }
  }
  return text;
}

std::string to_json(const std::vector<Difference>& list) {
  auto document = json{{"format", "perigee.difference/1"}, {"differences", json::array()}};
  const auto value = [](const std::string& text) {
    return text.empty() ? json() : json::parse(text);
  };
  for (const auto& one : list) {
    document["differences"].push_back({{"path", one.path},
                                       {"from", value(one.from)},
                                       {"to", value(one.to)},
                                       {"count", one.count}});
  }
  return document.dump(1) + "\n";
}

}  // namespace perigee::plan
