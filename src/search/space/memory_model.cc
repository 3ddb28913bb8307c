#include "search/space/memory_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "simulate/memory_kinds.h"

namespace perigee::search {
namespace {

using compile::Binding;
using compile::Frame;
using compile::Program;

// Returns the bytes of the weights that the rank steps: its part of units with sharded states.
double stepped_bytes(const Program& program, const plan::Plan& plan) {
  std::map<std::string, int64_t> parts;
  for (const auto& unit : plan.units) {
    if (unit.level >= 3) continue;  // its parameters are bound as the rank has them
    int64_t ranks = 1;
    for (const auto& axis : unit.axes) ranks *= plan.mesh.size_of(axis);
    for (const auto& name : unit.parameters) parts[name] = ranks;
  }
  double bytes = 0;
  for (const auto& binding : program.bindings) {
    if (binding.kind != Binding::Kind::parameter || !binding.value.defined()) continue;
    const auto found = parts.find(binding.name);
    bytes += static_cast<double>(program.values[binding.value.index].type.bytes()) /
             static_cast<double>(found == parts.end() ? 1 : found->second);
  }
  return bytes;
}

double bytes_of_kind(const std::vector<simulate::MemoryKind>& kinds, std::string_view name) {
  for (const auto& kind : kinds) {
    if (kind.name == name) return kind.bytes;
  }
  return 0;
}

}  // namespace

double largest_buffers(const Program& program) {
  // By place, which several values have in turn.
  std::map<std::pair<int32_t, int64_t>, double> largest;
  for (const auto& value : program.values) {
    const auto frame = value.place.frame;
    if (frame < 0 || value.view_of.defined()) continue;
    const auto kind = program.frames[frame].kind;
    if (kind == Frame::Kind::persistent || program.frames[frame].host) continue;
    auto& bytes = largest[{frame, value.place.offset}];
    bytes = std::max(bytes, static_cast<double>(value.type.bytes()));
  }
  std::array<double, 2> most{};
  for (const auto& [place, bytes] : largest) {
    most[1] = std::max(most[1], bytes);
    if (most[1] > most[0]) std::swap(most[0], most[1]);
  }
  return most[0] + most[1];
}

double peak_bytes(const MemoryModel& model, const Program& program, const plan::Plan& plan,
                  double own) {
  if (model == MemoryModel()) return own;
  double peak = own;
  const auto kinds = simulate::memory_by_kind(program);
  const double weights = stepped_bytes(program, plan);
  double states = bytes_of_kind(kinds, "optimizer state");
  if (model.optimizer_resident) {
    peak += *model.optimizer_resident * weights - states;
    states = *model.optimizer_resident * weights;
  }
  if (model.optimizer_transient) {
    double resident = states;
    for (const auto* kind : {"parameters", "gradients", "buffers"}) {
      resident += bytes_of_kind(kinds, kind);
    }
    peak = std::max(peak, resident + *model.optimizer_transient * weights);
  }
  return peak + model.reserve.value_or(0) * largest_buffers(program);
}

double peak_bytes(const MemoryModel& model, const compile::Programs& programs,
                  const plan::Plan& plan, const plan::Prediction& own) {
  double most = 0;
  for (size_t i = 0; i < own.peak_bytes.size(); ++i) {
    most = std::max(
        most, peak_bytes(model, programs.of(i), plan, static_cast<double>(own.peak_bytes[i])));
  }
  return most;
}

}  // namespace perigee::search
