#include "exec/comm/collective_op.h"

#include <ATen/ATen.h>

#include <array>
#include <numeric>
#include <utility>

#include "base/fail.h"
#include "exec/ops/op.h"

namespace perigee::exec {
namespace {

using Kind = Collective::Kind;

constexpr std::array<std::pair<std::string_view, Kind>, 10> kKinds = {{
    {"comm::all_reduce", Kind::all_reduce},
    {"comm::all_gather", Kind::all_gather},
    {"comm::reduce_scatter", Kind::reduce_scatter},
    {"comm::all_to_all", Kind::all_to_all},
    {"comm::shift", Kind::all_to_all},
    {"comm::exchange", Kind::all_to_all},
    {"comm::broadcast", Kind::broadcast},
    {"comm::send", Kind::send},
    {"comm::receive", Kind::receive},
    {"comm::barrier", Kind::barrier},
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
    if (op.name == "comm::exchange") return t;  // RowCounts
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
       "collectives are all_reduce, all_gather, reduce_scatter, all_to_all, shift, exchange, "
       "broadcast, send, receive and barrier, but got {}",
       instruction.op);
}

Transfer RowCounts::of(const Transfer& buffers, int64_t index) const {
  const auto matrix = counts.cpu().contiguous();
  const auto ranks = matrix.size(0);
  const auto* rows = matrix.const_data_ptr<int64_t>();
  Transfer t = buffers;
  for (int64_t other = 0; other < ranks; ++other) {
    t.input_counts.push_back(rows[index * ranks + other] * width);
    t.output_counts.push_back(rows[other * ranks + index] * width);
  }
  if (back) std::swap(t.input_counts, t.output_counts);
  const auto part = [](at::Tensor& buffer, const std::vector<int64_t>& parts) {
    const auto elements = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    if (elements > buffer.numel()) {
      fail("exec", "exchanged rows must fit into {} elements, but need {}", buffer.numel(),
           elements);
    }
    buffer = buffer.narrow(0, 0, elements);
  };
  part(t.input, t.input_counts);
  part(t.output, t.output_counts);
  return t;
}

std::string axis_of(const compile::Instruction& instruction) {
  const Op op{.name = instruction.op, .args = instruction.args, .outputs = {}};
  return Arguments(op).text("axis");
}

}  // namespace perigee::exec
