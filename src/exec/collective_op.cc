#include "exec/collective_op.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "exec/op.h"

namespace perigee::exec {
namespace {

using Kind = Collective::Kind;

constexpr std::array<std::pair<std::string_view, Kind>, 7> kKinds = {{
    {"comm::all_reduce", Kind::all_reduce},
    {"comm::all_gather", Kind::all_gather},
    {"comm::reduce_scatter", Kind::reduce_scatter},
    {"comm::all_to_all", Kind::all_to_all},
    {"comm::broadcast", Kind::broadcast},
    {"comm::send", Kind::send},
    {"comm::receive", Kind::receive},
}};

mesh::Reduce reduce_of(const std::string& name) {
  if (name == "sum") return mesh::Reduce::sum;
  if (name == "avg") return mesh::Reduce::average;
  if (name == "max") return mesh::Reduce::max;
  if (name == "min") return mesh::Reduce::min;
  fail("exec", "reductions are sum, avg, max and min, but got \"{}\"", name);
}

}  // namespace

Transfer transfer_of(const compile::Instruction& instruction) {
  const Op op{.name = instruction.op, .args = instruction.args, .outputs = {}};
  const Arguments arguments(op);
  for (const auto& [name, kind] : kKinds) {
    if (name != instruction.op) continue;
    Transfer t{.kind = kind};
    t.reduce = reduce_of(arguments.text("op", "sum"));
    const bool exchanges = kind == Kind::all_to_all;
    if (kind == Kind::reduce_scatter || exchanges) {
      t.input_counts = arguments.integers(exchanges ? "sent" : "counts");
    }
    if (kind == Kind::all_gather || exchanges) {
      t.output_counts = arguments.integers(exchanges ? "received" : "counts");
    }
    t.peer = arguments.integer(kind == Kind::broadcast ? "root" : "peer", 0);
    return t;
  }
  fail("exec",
       "collectives are all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send and "
       "receive, "
       "but got {}",
       instruction.op);
}

std::string axis_of(const compile::Instruction& instruction) {
  const Op op{.name = instruction.op, .args = instruction.args, .outputs = {}};
  return Arguments(op).text("axis");
}

}  // namespace perigee::exec
