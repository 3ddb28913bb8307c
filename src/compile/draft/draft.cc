#include "compile/draft/draft.h"

#include <algorithm>

#include "compile/draft/layout.h"

namespace perigee::compile {

int overwritten_operands(std::string_view op) {
  const bool first = op == "perigee::copy_" || op == "perigee::mm_" ||
                     op == "perigee::adafactor_sums_" || op == "perigee::adafactor_moments_" ||
                     op == "perigee::muon_update_";
  return op == "perigee::orthogonalize_" ? 2 : first ? 1 : 0;
}

ValueId Draft::add(graph::TensorType type, ValueName name, Home home,
                   std::vector<int64_t> strides) {
  ProgramValue value;
  value.strides = strides.size() == type.shape.size() ? std::move(strides)
                                                      : contiguous_strides(type.shape);
  value.type = std::move(type);
  value.name = std::move(name);
  program.values.push_back(std::move(value));
  homes.push_back(home);
  view_offset.push_back(0);
  return {static_cast<int32_t>(program.values.size()) - 1};
}

ValueId Draft::add_view(ValueId of, int64_t offset, graph::TensorType type,
                        std::vector<int64_t> strides, ValueName name) {
  const ValueId base = root(of);
  const int64_t total = view_offset[of.index] + offset;
  const ValueId v = add(std::move(type), std::move(name), {}, std::move(strides));
  value(v).view_of = base;
  view_offset[v.index] = total;
  return v;
}

std::pair<int64_t, int64_t> Draft::bytes_of(ValueId v) const {
  const auto& type = value(v).type;
  const int64_t begin = view_offset[v.index];
  return {begin, begin + extent(type.shape, value(v).strides) *
                             static_cast<int64_t>(graph::size_of(type.dtype))};
}

bool Draft::is_plain(ValueId v) const {
  const auto& shown = value(v);
  return view_offset[v.index] == 0 && is_contiguous(shown.type.shape, shown.strides) &&
         shown.type.numel() == value(root(v)).type.numel();
}

int32_t Draft::number_of(const Stream& stream) {
  auto& streams = program.streams;
  const auto found = std::find(streams.begin(), streams.end(), stream);
  if (found == streams.end()) {
    streams.push_back(stream);
    return static_cast<int32_t>(streams.size()) - 1;
  }
  return static_cast<int32_t>(found - streams.begin());
}

DraftInstruction in_place(std::string op, std::vector<std::pair<std::string, graph::Arg>> args,
                          std::vector<ValueId> outputs) {
  DraftInstruction draft;
  draft.instruction.op = std::move(op);
  draft.instruction.args = std::move(args);
  draft.instruction.outputs = std::move(outputs);
  draft.instruction.in_place = true;
  draft.instruction.traced = true;
  draft.output_allocation.assign(draft.instruction.outputs.size(), -1);
  return draft;
}

DraftInstruction plain(const Draft& draft, std::string op,
                       std::vector<std::pair<std::string, graph::Arg>> args,
                       std::vector<ValueId> outputs) {
  DraftInstruction result = in_place(std::move(op), std::move(args), std::move(outputs));
  result.instruction.in_place = false;
  for (size_t k = 0; k < result.instruction.outputs.size(); ++k) {
    const ValueId v = result.instruction.outputs[k];
    result.instruction.allocations.push_back({draft.value(v).type.bytes(), {}});
    result.output_allocation[k] = static_cast<int32_t>(k);
  }
  return result;
}

DraftInstruction wait_for(int32_t event) {
  DraftInstruction wait;
  wait.instruction.kind = Instruction::Kind::wait;
  wait.instruction.event = event;
  wait.instruction.traced = true;
  return wait;
}

DraftInstruction copy_bytes(Draft& draft, ValueId from, ValueId to, bool to_host) {
  // The values as flat bytes.
  const auto bytes = [&](ValueId v) {
    const auto [begin, end] = draft.bytes_of(v);
    return draft.add_view(v, 0, {graph::DType::uint8, {end - begin}}, {1}, draft.value(v).name);
  };
  const ValueId source = bytes(from), target = bytes(to);
  DraftInstruction result = in_place(std::string(to_host ? kStore : kFetch), {{"self", source}},
                                     {target});
  result.instruction.in_place = false;
  result.instruction.kind = Instruction::Kind::collective;
  result.instruction.stream = draft.number_of(to_host ? Stream::to_host() : Stream::from_host());
  result.instruction.event = draft.program.events++;
  return result;
}

DraftInstruction all_reduce(Draft& draft, ValueId self, const Stream& stream,
                            std::string reduce_op) {
  DraftInstruction result = in_place(
      "comm::all_reduce", {{"self", self}, {"axis", stream.name()}, {"op", std::move(reduce_op)}},
      {self});
  result.instruction.kind = Instruction::Kind::collective;
  result.instruction.stream = draft.number_of(stream);
  result.instruction.event = draft.program.events++;
  return result;
}

std::vector<int> count_reads(const Draft& draft) {
  std::vector<int> reads(draft.program.values.size());
  for (const auto& section : draft.sections) {
    for (const auto& part : section.instructions) {
      each_operand(part.instruction, [&](ValueId v) { ++reads[draft.root(v).index]; });
    }
  }
  return reads;
}

}  // namespace perigee::compile
