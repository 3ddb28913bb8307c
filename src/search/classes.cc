#include "search/classes.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "compile/collective.h"

namespace perigee::search {
namespace {

// Numbers keys in the order in which they come.
template <class Key>
class Numbers {
 public:
  int32_t operator()(const Key& key) {
    return numbers_.try_emplace(key, static_cast<int32_t>(numbers_.size())).first->second;
  }
  size_t size() const { return numbers_.size(); }

 private:
  std::map<Key, int32_t> numbers_;
};

}  // namespace

std::vector<int32_t> classes_of(const compile::Programs& programs, const mesh::Mesh& mesh,
                                const cost::Cluster& cluster) {
  const auto count = programs.ranks.size();
  std::vector<int32_t> classes(count);
  std::map<int64_t, size_t> position;
  for (size_t i = 0; i < count; ++i) position[programs.ranks[i]] = i;
  Numbers<std::pair<int32_t, std::string>> first;
  std::vector<std::vector<size_t>> groups;             // positions
  std::vector<std::vector<int32_t>> groups_of(count);  // by position: indices into groups
  Numbers<std::pair<std::string, int64_t>> by_first;   // groups of one stream share no rank
  for (size_t i = 0; i < count; ++i) {
    const auto rank = programs.ranks[i];
    classes[i] = first({programs.program[i], cluster.device(rank).name});
    const auto& streams = programs.of(i).streams;
    for (size_t s = 1; s < streams.size(); ++s) {
      if (streams[s] == compile::kToHost || streams[s] == compile::kFromHost) continue;
      const auto ranks = compile::ranks_of(mesh, streams[s], rank);
      const auto group = by_first({streams[s], ranks.front()});
      groups_of[i].push_back(group);
      if (static_cast<size_t>(group) < groups.size()) continue;
      auto& members = groups.emplace_back();
      for (int64_t other : ranks) members.push_back(position.at(other));
    }
  }
  for (size_t known = first.size();;) {
    std::vector<std::set<int32_t>> met;
    for (const auto& group : groups) {
      auto& set = met.emplace_back();
      for (size_t other : group) set.insert(classes[other]);
    }
    Numbers<std::pair<int32_t, std::vector<std::set<int32_t>>>> finer;
    std::vector<int32_t> refined(count);
    for (size_t i = 0; i < count; ++i) {
      std::vector<std::set<int32_t>> sets;
      for (int32_t group : groups_of[i]) sets.push_back(met[group]);
      refined[i] = finer({classes[i], std::move(sets)});
    }
    classes = std::move(refined);
    if (finer.size() == known) return classes;
    known = finer.size();
  }
}

std::vector<int32_t> stages_of(const compile::Programs& programs, const mesh::Mesh& mesh,
                               const std::string& axis, const cost::Cluster& cluster) {
  const int place = axis.empty() ? -1 : mesh.find(axis);
  Numbers<std::pair<int64_t, std::string>> stages;
  std::vector<int32_t> result;
  for (const auto rank : programs.ranks) {
    const auto stage = place < 0 ? 0 : mesh::coordinates(mesh, rank)[static_cast<size_t>(place)];
    result.push_back(stages({stage, cluster.device(rank).name}));
  }
  return result;
}

}  // namespace perigee::search
