#include "train/measure/block_names.h"

#include <algorithm>

namespace perigee::train {
namespace {

using compile::ValueName;
using compile::ValueRole;

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::string_view parent_of(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == path.npos ? std::string_view() : path.substr(0, dot);
}

// Returns the bucket or unit whose weights, gradients or states a value is.
std::string_view flat_of(const ValueName& value) {
  switch (value.role) {
    case ValueRole::flat_parameters:
    case ValueRole::whole_parameters:
    case ValueRole::gathered_parameters:
    case ValueRole::kept_parameters:
    case ValueRole::flat_gradients:
    case ValueRole::flat_states:
      return value.subject;
    default:
      return {};
  }
}

}  // namespace

std::string_view BlockNames::next(std::string_view name, std::string_view part) {
  size_t begin = part.empty() ? 0 : part.size() + 1;
  while (begin < name.size()) {
    const auto end = std::min(name.find('.', begin), name.size());
    if (is_number(name.substr(begin, end - begin))) return name.substr(0, end);
    begin = end + 1;
  }
  return {};
}

BlockNames::BlockNames(const std::vector<const compile::Program*>& programs) {
  for (const auto* program : programs) {
    for (const auto& section : program->sections) {
      for (const auto& instruction : section.instructions) {
        const std::string_view scope = instruction.scope;
        for (auto path = first(scope); !path.empty(); path = next(scope, path)) {
          rows_[std::string(parent_of(path))].emplace(path);
        }
      }
    }
  }
  std::erase_if(rows_, [](const auto& row) { return row.second.size() <= kShortRow; });
}

std::string_view BlockNames::of(std::string_view name) const {
  for (auto path = first(name); !path.empty(); path = next(name, path)) {
    const auto row = rows_.find(parent_of(path));
    if (row != rows_.end() && row->second.contains(path)) return path;
  }
  return {};
}

Flats::Flats(const compile::Program& program) {
  for (const auto& value : program.values) {
    const auto& base = value.view_of.defined() ? program.values[value.view_of.index] : value;
    const auto flat = flat_of(base.name);
    if (flat.empty() || base.name.role == ValueRole::flat_states) continue;
    auto& members = members_[std::string(flat)];
    if (flat_of(value.name) == flat) {
      sizes_[std::string(flat)].push_back(value.type.bytes());
    } else if (value.name.role == ValueRole::parameter || value.name.role == ValueRole::gradient) {
      members.insert(value.name.subject);
    }
  }
  for (auto& [flat, sizes] : sizes_) std::ranges::sort(sizes);
}

std::string_view Flats::of(const ValueName& value) const {
  const auto known = members_.find(flat_of(value));
  return known == members_.end() ? std::string_view() : std::string_view(known->first);
}

const std::set<std::string>& Flats::members(std::string_view flat) const {
  static const std::set<std::string> kNone;
  const auto known = members_.find(flat);
  return known == members_.end() ? kNone : known->second;
}

}  // namespace perigee::train
