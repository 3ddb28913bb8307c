#include "simulate/classes.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "compile/draft/collective.h"

namespace perigee::simulate {
namespace {

// Numbers keys in order of their first use.
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

RankClasses rank_classes(const compile::Programs& programs, const mesh::Mesh& mesh,
                         const cost::Cluster& cluster) {
  const auto count = programs.ranks.size();
  RankClasses result;
  auto& classes = result.of;
  classes.resize(count);
  Numbers<std::pair<int32_t, std::string>> first;
  struct Group {
    compile::Stream stream;
    std::vector<int64_t> shape;                      // cost::shape_of
    std::vector<std::pair<size_t, size_t>> members;  // positions, and which of their streams
  };
  std::vector<Group> groups;
  std::vector<std::vector<int32_t>> groups_of(count);     // by position: indices into groups
  Numbers<std::pair<compile::Stream, int64_t>> by_first;  // groups of one stream share no rank
  for (size_t i = 0; i < count; ++i) {
    const auto rank = programs.ranks[i];
    classes[i] = first({programs.program[i], cluster.device(rank).name});
    const auto streams = programs.streams_of(i);
    for (size_t s = 1; s < streams.size(); ++s) {
      if (!streams[s].communicates()) continue;
      const auto ranks = compile::ranks_of(mesh, streams[s], rank);
      const auto group = static_cast<size_t>(by_first({streams[s], ranks.front()}));
      if (group == groups.size()) {
        groups.push_back({streams[s], cost::shape_of(cluster, ranks), {}});
      }
      groups_of[i].push_back(static_cast<int32_t>(group));
      groups[group].members.emplace_back(i, s);
    }
  }
  using Met = std::set<std::pair<int32_t, size_t>>;
  const auto met_in = [&](const Group& group) {
    Met met;
    for (const auto& [position, stream] : group.members) met.insert({classes[position], stream});
    return met;
  };
  for (size_t known = first.size();;) {
    Numbers<std::pair<Met, std::vector<int64_t>>> meetings;
    std::vector<int32_t> met;
    for (const auto& group : groups) met.push_back(meetings({met_in(group), group.shape}));
    Numbers<std::pair<int32_t, std::vector<int32_t>>> finer;
    std::vector<int32_t> refined(count);
    for (size_t i = 0; i < count; ++i) {
      std::vector<int32_t> sets;
      for (int32_t group : groups_of[i]) sets.push_back(met[group]);
      refined[i] = finer({classes[i], std::move(sets)});
    }
    classes = std::move(refined);
    if (finer.size() == known) break;
    known = finer.size();
  }
  std::map<Met, compile::Stream> named;
  for (const auto& group : groups) {
    if (!mesh.is_ragged() || group.stream.kind != compile::Stream::Kind::message) continue;
    result.messages[group.stream] = named.try_emplace(met_in(group), group.stream).first->second;
  }
  return result;
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

std::vector<std::map<compile::Stream, int64_t>> slowest_groups(
    const compile::Programs& programs, const mesh::Mesh& mesh, const cost::Cluster& cluster,
    const std::vector<int32_t>& classes) {
  constexpr double kBytes = 1 << 20;             // of the all-gather by which groups are compared
  std::map<std::vector<int64_t>, double> known;  // by shape
  std::map<std::pair<int32_t, compile::Stream>, double> longest;
  std::map<int64_t, int32_t> class_of;
  for (size_t i = 0; i < classes.size(); ++i) class_of[programs.ranks[i]] = classes[i];
  std::vector<std::map<compile::Stream, int64_t>> result;
  for (size_t i = 0; i < programs.ranks.size(); ++i) {
    const auto rank = programs.ranks[i];
    const auto& streams = programs.of(i).streams;
    if (static_cast<size_t>(classes[i]) >= result.size()) result.resize(classes[i] + 1);
    for (size_t s = 1; s < streams.size(); ++s) {
      if (!streams[s].communicates()) continue;
      const auto ranks = compile::ranks_of(mesh, streams[s], rank);
      if (ranks.front() != rank && class_of.at(ranks.front()) == classes[i]) continue;  // known
      const auto [time, added] = known.try_emplace(cost::shape_of(cluster, ranks));
      if (added) {
        time->second = cost::collective_seconds(cluster, cost::CollectiveKind::all_gather, kBytes,
                                                ranks);
      }
      const auto [most, first] = longest.try_emplace(std::pair(classes[i], streams[s]),
                                                     time->second);
      if (first || time->second <= most->second) continue;
      most->second = time->second;
      result[classes[i]][streams[s]] = rank;
    }
  }
  return result;
}

}  // namespace perigee::simulate
