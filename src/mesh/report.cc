#include "mesh/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace perigee::mesh {
namespace {

struct Entry {
  std::string key;
  std::vector<std::string> groups;  // "[0,1]"
};

std::vector<Entry> entries(const Mesh& mesh, std::span<const std::string> extra) {
  std::vector<std::string> keys;
  for (const auto& axis : mesh.axes) keys.push_back(axis.name);
  if (mesh.is_ragged()) keys.pop_back();
  for (const auto& key : extra) {
    if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  }
  std::vector<Entry> out;
  for (const auto& key : keys) {
    Entry entry{key, {}};
    for (const auto& group : groups(mesh, AxisSet::parse(key))) {
      entry.groups.push_back(fmt::format("[{}]", fmt::join(group, ",")));
    }
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

std::string sizes_of_stage(const Mesh& mesh, int64_t stage) {
  std::string text;
  const auto own = of_stage(mesh, stage);
  for (size_t a = 0; a + 1 < own.axes.size(); ++a) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", own.axes[a].name, own.axes[a].size);
  }
  return text;
}

std::string to_text(const Mesh& mesh, std::span<const std::string> extra) {
  std::string out = "mesh";
  if (!mesh.is_ragged()) {
    for (const auto& axis : mesh.axes) out += fmt::format(" {}={}", axis.name, axis.size);
  }
  for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
    out += fmt::format("{} {}", stage == 0 ? "" : " |", sizes_of_stage(mesh, stage));
  }
  out += fmt::format(", {} rank{}\n", mesh.size(), mesh.size() == 1 ? "" : "s");
  auto list = entries(mesh, extra);
  if (mesh.is_ragged()) {
    auto& stages = list.emplace_back(Entry{mesh.axes.back().name + " positions", {}});
    for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
      stages.groups.push_back(fmt::format("[{}]", fmt::join(ranks_of_stage(mesh, stage), ",")));
    }
  }
  size_t width = 0;
  for (const auto& entry : list) width = std::max(width, entry.key.size());
  for (const auto& entry : list) {
    out += fmt::format("{:<{}}  {}\n", entry.key, width, fmt::join(entry.groups, " "));
  }
  return out;
}

// Names of axes hold no character that JSON escapes.
std::string to_json(const Mesh& mesh, std::span<const std::string> extra) {
  std::vector<std::string> axes, lines;
  for (const auto& axis : mesh.axes)
    axes.push_back(fmt::format("[\"{}\",{}]", axis.name, axis.size));
  for (const auto& entry : entries(mesh, extra)) {
    lines.push_back(fmt::format("  \"{}\": [{}]", entry.key, fmt::join(entry.groups, ",")));
  }
  std::vector<std::string> submeshes;
  for (const auto& sizes : mesh.stages) {
    submeshes.push_back(fmt::format("[{}]", fmt::join(sizes, ",")));
  }
  return fmt::format(
      "{{ \"format\": \"perigee.mesh/1\", \"axes\": [{}], {}\"groups\": {{\n{}\n}} }}\n",
      fmt::join(axes, ","),
      submeshes.empty() ? "" : fmt::format("\"submeshes\": [{}], ", fmt::join(submeshes, ",")),
      fmt::join(lines, ",\n"));
}

}  // namespace perigee::mesh
