// Collectives of a graph, over any dim of a tensor in any layout, become collectives over flat
// buffers with copies before and after them.
#include <algorithm>

#include "compile/draft/collective.h"
#include "compile/draft/copy_parts.h"
#include "compile/draft/layout.h"
#include "compile/draft/lower.h"

namespace perigee::compile {

using graph::Node;
using graph::TensorType;

namespace {

// Returns the elements of one index of the dim.
int64_t slice_elements(const std::vector<int64_t>& shape, int64_t dim) {
  int64_t n = 1;
  for (int64_t d = 0; d < std::ssize(shape); ++d) {
    if (d != dim) n *= shape[d];
  }
  return n;
}

std::vector<int64_t> counts_of(const std::vector<int64_t>& shape, int64_t dim, int64_t ranks) {
  auto counts = part_lengths(shape[dim], ranks);
  for (auto& count : counts) count *= slice_elements(shape, dim);
  return counts;
}

int64_t size_of(const TensorType& type) { return static_cast<int64_t>(graph::size_of(type.dtype)); }

}  // namespace

void Lowering::run_collective(const Node& node, std::vector<DraftInstruction>& out) {
  const auto stream = Stream::parse(node.get<std::string>("axis", ""));
  const int64_t ranks = stream.kind == Stream::Kind::message ? 2
                        : stream.kind == Stream::Kind::group ? mesh::group_size(mesh_, stream.axes)
                                                             : 1;
  DraftInstruction draft;
  draft.move = Move::early;
  auto& instruction = draft.instruction;
  instruction.kind = Instruction::Kind::collective;
  instruction.op = node.op;
  instruction.args = node.args;
  instruction.scope = node.scope;
  instruction.phase = node.phase;
  instruction.traced = true;
  instruction.stream = draft_.number_of(stream);
  instruction.event = draft_.program.events++;
  Home home{Home::Kind::communication, instruction.stream};

  const bool gathers = node.op == "comm::all_gather", scatters = node.op == "comm::reduce_scatter",
             exchanges = node.op == "comm::all_to_all";
  // The dim whose parts are sent, and the dim whose parts are received.
  const int64_t out_dim = scatters    ? node.get<int64_t>("dim", 0)
                          : exchanges ? node.get<int64_t>("split_dim", 0)
                                      : -1;
  const int64_t in_dim = gathers     ? node.get<int64_t>("dim", 0)
                         : exchanges ? node.get<int64_t>("cat_dim", 0)
                                     : -1;
  // Bytes on the largest rank of the group, the first: uneven parts are the longest at the front.
  const auto most = [&](const TensorType& type, int64_t dim, int64_t whole) {
    return dim < 0 ? int64_t{0}
                   : part_lengths(whole, ranks).front() * slice_elements(type.shape, dim) *
                         size_of(type);
  };
  const auto copy_all = [&](ValueId whole, int64_t dim, ValueId flat, bool to_flat) {
    const Instruction like{.scope = node.scope, .phase = node.phase};
    const auto parts = ranges_of(part_lengths(draft_.value(whole).type.shape[dim], ranks));
    const auto first = std::ssize(out);
    copy_parts(draft_, whole, dim, parts, flat, to_flat, like, out);
    for (auto i = first; i < std::ssize(out); ++i) out[i].move = to_flat ? Move::early : Move::late;
  };
  const auto result = node.outputs.empty() ? graph::ValueId{} : node.outputs[0];
  const TensorType to = result.defined() ? graph_.type(result) : TensorType{};
  TensorType from;
  for (auto& [name, arg] : instruction.args) {
    auto* v = std::get_if<graph::ValueId>(&arg);
    if (!v || !v->defined()) continue;
    const ValueId source = operand(node, *v);
    const ProgramValue given = draft_.value(source);
    if (name == "counts") {  // comm::exchange: read when it starts
      *v = source;
      continue;
    }
    ValueId value = source;
    from = given.type;
    home.bytes = gathers || exchanges ? most(from, in_dim, to.shape[in_dim]) : 0;
    const bool packs = out_dim >= 0 && !is_outermost(from.shape, out_dim);
    if (packs) {
      value = draft_.add({from.dtype, {from.numel()}}, given.name + " packed", home);
      copy_all(source, out_dim, value, /*to_flat=*/true);
    } else if (!is_contiguous(from.shape, given.strides)) {
      value = draft_.add(from, given.name + " contiguous", home);
      auto copy = in_place("perigee::copy_", {{"self", value}, {"source", source}}, {value});
      copy.move = Move::early;
      copy.instruction.scope = node.scope;
      copy.instruction.phase = node.phase;
      out.push_back(std::move(copy));
    } else if (auto& place = draft_.home(value); place.kind == Home::Kind::scratch) {
      place = home;
    }
    *v = value;
  }

  std::vector<int64_t> counts;
  if (out_dim >= 0) {
    counts = counts_of(from.shape, out_dim, ranks);
    instruction.args.emplace_back(exchanges ? "sent" : "counts", counts);
  }
  if (in_dim >= 0) {
    instruction.args.emplace_back(exchanges ? "received" : "counts",
                                  counts_of(to.shape, in_dim, ranks));
  }
  if (node.op == "comm::shift") {
    const int64_t rank = draft_.program.rank;
    const auto group = mesh::group_of(mesh_, stream.axes, rank);
    const int64_t index = std::find(group.begin(), group.end(), rank) - group.begin();
    std::vector<int64_t> sent(ranks), received(ranks);
    sent[(index + 1) % ranks] = received[(index + ranks - 1) % ranks] = from.numel();
    instruction.args.emplace_back("sent", sent);
    instruction.args.emplace_back("received", received);
  }
  home.bytes = out_dim >= 0 ? most(to, out_dim, from.shape[out_dim]) : 0;
  ValueId made, unpacked;
  if (result.defined()) {
    const auto& name = names_[result.index];
    if (in_dim >= 0 && !is_outermost(to.shape, in_dim)) {
      made = draft_.add({to.dtype, {to.numel()}}, name + " parts", home);
      unpacked = draft_.add(to, name);
    } else {
      made = draft_.add(to, name, home);
    }
    set(result, unpacked.defined() ? unpacked : made);
    instruction.outputs.push_back(made);
  }
  if (const int64_t elements = workspace_elements(node.op, counts); elements > 0) {
    home.bytes = 0;
    instruction.outputs.push_back(
        draft_.add({from.dtype, {elements}}, names_[result.index] + " workspace", home));
  }
  draft.output_allocation.assign(instruction.outputs.size(), -1);
  out.push_back(std::move(draft));
  if (unpacked.defined()) copy_all(unpacked, in_dim, made, /*to_flat=*/false);
}

}  // namespace perigee::compile
