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
  for (const auto& key : extra) {
    if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  }
  std::vector<Entry> out;
  for (const auto& key : keys) {
    Entry entry{key, {}};
    for (const auto& group : groups(mesh, split_axes(key))) {
      entry.groups.push_back(fmt::format("[{}]", fmt::join(group, ",")));
    }
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

std::string to_text(const Mesh& mesh, std::span<const std::string> extra) {
  std::string out = "mesh";
  for (const auto& axis : mesh.axes) out += fmt::format(" {}={}", axis.name, axis.size);
  out += fmt::format(", {} rank{}\n", mesh.size(), mesh.size() == 1 ? "" : "s");
  const auto list = entries(mesh, extra);
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
  return fmt::format(
      "{{ \"format\": \"perigee.mesh/1\", \"axes\": [{}], \"groups\": {{\n{}\n}} }}\n",
      fmt::join(axes, ","), fmt::join(lines, ",\n"));
}

}  // namespace perigee::mesh
