#include "simulate/memory_kinds.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace perigee::simulate {
namespace {

using compile::Binding;
using compile::Frame;
using compile::Program;
using graph::Phase;
using graph::ValueId;

enum Kind { kParameters, kGradients, kStates, kBuffers, kSaved, kWorking, kCommunication, kOther };

// Disjoint ranges of one frame; a range belongs to the first that adds it.
class Coverage {
 public:
  explicit Coverage(int64_t bytes) : bytes_(bytes) {}

  // Returns the bytes of the range that were not covered before.
  int64_t add(int64_t begin, int64_t length) {
    int64_t end = std::min(begin + length, bytes_), added = 0;
    begin = std::max<int64_t>(begin, 0);
    auto next = covered_.upper_bound(begin);
    if (next != covered_.begin() && std::prev(next)->second > begin)
      begin = std::prev(next)->second;
    while (begin < end) {
      const auto stop = next == covered_.end() ? end : std::min(end, next->first);
      if (stop > begin) {
        added += stop - begin;
        covered_[begin] = stop;
      }
      if (next == covered_.end() || next->first >= end) break;
      begin = next->second;
      ++next;
    }
    return added;
  }

 private:
  int64_t bytes_;
  std::map<int64_t, int64_t> covered_;  // begin: end; no two overlap
};

// Values that forward ops make and backward ops read, without views.
std::set<int32_t> saved_values(const Program& program) {
  const auto root = [&](ValueId v) {
    const auto base = program.values[v.index].view_of;
    return (base.defined() ? base : v).index;
  };
  std::set<int32_t> made, saved;
  for (const auto& section : program.sections) {
    if (section.role.kind == compile::SectionKind::step) break;
    for (const auto& instruction : section.instructions) {
      const graph::Node node{.op = instruction.op, .args = instruction.args};
      if (instruction.phase == Phase::backward) {
        node.each_operand([&](ValueId v) {
          if (made.contains(root(v))) saved.insert(root(v));
        });
      } else {
        for (auto v : instruction.outputs) {
          if (v.defined()) made.insert(root(v));
        }
      }
    }
  }
  return saved;
}

}  // namespace

const std::vector<std::string>& memory_kinds() {
  static const std::vector<std::string> names{
      "parameters",        "gradients",      "optimizer state", "buffers",
      "saved activations", "working memory", "communication",   "other"};
  return names;
}

std::vector<MemoryKind> memory_by_kind(const Program& program) {
  std::vector<MemoryKind> kinds;
  for (const auto& name : memory_kinds()) kinds.push_back({name, 0});
  std::vector<Coverage> frames;
  for (const auto& frame : program.frames) frames.emplace_back(frame.bytes);
  const auto counted = [&](int32_t frame) {
    return frame >= 0 && !program.frames[frame].borrowed && !program.frames[frame].host;
  };
  // A rank's share of a frame of one copy.
  const auto copies = [&](int32_t frame) {
    const auto& of = program.frames[frame];
    return static_cast<double>(of.copies) / static_cast<double>(of.holders);
  };
  std::vector<double> left;
  for (const auto& frame : program.frames) left.push_back(static_cast<double>(frame.bytes));
  const auto give = [&](ValueId v, Kind kind) {
    const auto& value = program.values[v.index];
    const auto frame = value.place.frame;
    if (!counted(frame)) return;
    const auto bytes = static_cast<double>(
        frames[frame].add(value.place.offset, value.type.bytes()));
    left[frame] -= bytes;
    kinds[kind].bytes += bytes * copies(frame);
  };
  for (const auto& binding : program.bindings) {
    switch (binding.kind) {
      case Binding::Kind::parameter:
        give(binding.value, kParameters);
        break;
      case Binding::Kind::state:
        give(binding.value, kStates);
        break;
      case Binding::Kind::buffer:
        give(binding.value, kBuffers);
        break;
      default:
        break;
    }
  }
  for (size_t v = 0; v < program.values.size(); ++v) {
    const ValueId value{static_cast<int32_t>(v)};
    const auto role = program.values[v].name.role;
    if (role == compile::ValueRole::whole_parameters || role == compile::ValueRole::kept_parameters)
      give(value, kParameters);
    if (role == compile::ValueRole::gradient) give(value, kGradients);
  }
  for (const auto v : saved_values(program)) {
    const auto frame = program.values[v].place.frame;
    if (frame < 0 || program.frames[frame].kind == Frame::Kind::persistent) continue;
    give({v}, kSaved);
  }
  for (size_t f = 0; f < program.frames.size(); ++f) {
    const auto& frame = program.frames[f];
    if (!counted(static_cast<int32_t>(f))) continue;
    const auto kind = frame.kind == Frame::Kind::persistent      ? kOther
                      : frame.name.ends_with(".received")        ? kCommunication
                      : frame.kind == Frame::Kind::communication ? kCommunication
                      : frame.kind == Frame::Kind::microbatch    ? kSaved
                                                                 : kWorking;
    kinds[kind].bytes += left[f] * copies(static_cast<int32_t>(f));
  }
  return kinds;
}

}  // namespace perigee::simulate
