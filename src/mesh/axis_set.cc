#include "mesh/axis_set.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "mesh/mesh.h"

namespace perigee::mesh {
namespace {

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

AxisSet::AxisSet(std::vector<std::string> names) : names_(std::move(names)) {
  for (auto name = names_.begin(); name != names_.end(); ++name) {
    if (std::find(names_.begin(), name, *name) == name) continue;
    fail("mesh", "a group names an axis once, but got \"{}\" twice", *name);
  }
}

AxisSet AxisSet::parse(std::string_view text) {
  std::vector<std::string> names;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    if (end == begin) fail("mesh", "axes are written like data,context, but got \"{}\"", text);
    names.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return AxisSet(std::move(names));
}

std::string AxisSet::text() const {
  std::string text;
  for (const auto& name : names_) {
    if (!text.empty()) text += ',';
    text += name;
  }
  return text;
}

bool AxisSet::contains(std::string_view axis) const {
  return std::find(names_.begin(), names_.end(), axis) != names_.end();
}

void AxisSet::insert(std::string_view axis) {
  if (!contains(axis)) names_.emplace_back(axis);
}

void AxisSet::erase(std::string_view axis) { std::erase(names_, axis); }

AxisSet AxisSet::without(const AxisSet& other) const {
  AxisSet result;
  for (const auto& name : names_) {
    if (!other.contains(name)) result.names_.push_back(name);
  }
  return result;
}

AxisSet AxisSet::intersection(const AxisSet& other) const {
  AxisSet result;
  for (const auto& name : names_) {
    if (other.contains(name)) result.names_.push_back(name);
  }
  return result;
}

AxisSet AxisSet::joined(const AxisSet& other, const Mesh& mesh) const {
  AxisSet result;
  for (const auto& axis : mesh.axes) {
    if (contains(axis.name) || other.contains(axis.name)) result.names_.push_back(axis.name);
  }
  return result;
}

bool AxisSet::operator==(const AxisSet& other) const {
  return size() == other.size() &&
         std::all_of(begin(), end(), [&](const std::string& axis) { return other.contains(axis); });
}

std::strong_ordering AxisSet::operator<=>(const AxisSet& other) const {
  return sorted(names_) <=> sorted(other.names_);
}

}  // namespace perigee::mesh
