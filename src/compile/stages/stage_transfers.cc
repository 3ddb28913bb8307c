#include "compile/stages/stage_transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "compile/graph/autocast.h"
#include "compile/stages/shared_gradients.h"
#include "plan/pipeline.h"
#include "schedule/of_plan.h"

namespace perigee::compile {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;
using mesh::Range;
using plan::kEveryPart;

namespace {

class Marking {
 public:
  Marking(const Graph& graph, const plan::Plan& plan, StageTransfers& transfers)
      : graph_(graph),
        result_(graph),
        transfers_(transfers),
        stages_(stage_of_parts(plan)),
        parts_(plan::parts_of(graph, plan.pipeline)),
        sums_(find_shared_gradients(graph, parts_, stages_).sums),
        goes_to_(graph.values.size()),
        moved_(graph.nodes.size(), -1) {}

  Graph run() {
    find_users();
    result_.nodes.clear();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node node = graph_.nodes[n];
      const int part = parts_[n];
      if (node.forward_node >= 0) node.forward_node = moved_[node.forward_node];
      if (!sums_[n]) {
        node.each_operand([&](ValueId& v) {
          const auto found = arrived_.find({v.index, part});
          if (found != arrived_.end()) v = found->second;
        });
      }
      moved_[n] = append(result_, std::move(node));
      for (const auto v : graph_.nodes[n].outputs) {
        if (v.defined() && !goes_to_[v.index].empty()) mark(v, n);
      }
    }
    return std::move(result_);
  }

 private:
  void find_users() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const int part = parts_[n];
      if (part == kEveryPart || sums_[n]) continue;
      graph_.nodes[n].each_operand([&](ValueId v) {
        const auto producer = graph_.values[v.index].producer;
        if (producer < 0 || parts_[producer] == kEveryPart || parts_[producer] == part) return;
        transfers_.edges.emplace(parts_[producer], part);
        if (stages_[parts_[producer]] != stages_[part]) goes_to_[v.index].insert(part);
      });
    }
  }

  void mark(ValueId v, size_t producer) {
    const auto& maker = graph_.nodes[producer];
    for (const int user : goes_to_[v.index]) {
      StageTransfer transfer{.type = graph_.type(v), .maker = parts_[producer], .user = user};
      transfer.from = stages_[transfer.maker];
      transfer.to = stages_[user];
      transfer.result = result_.add_value(transfer.type);
      transfer.what = maker.op + " " + maker.scope;
      // The op that redistributes the value for the transfer has its maker's scope and part.
      Node node{.op = plan::kCross,
                .args = {{"self", v},
                         {"from_part", int64_t{transfer.maker}},
                         {"to_part", int64_t{user}},
                         {"crossing", static_cast<int64_t>(transfers_.list.size())}},
                .outputs = {transfer.result},
                .scope = maker.scope,
                .phase = maker.phase};
      if (maker.forward_node >= 0) node.forward_node = moved_[maker.forward_node];
      append(result_, std::move(node));
      arrived_[{v.index, user}] = transfer.result;
      transfers_.list.push_back(std::move(transfer));
    }
  }

  const Graph& graph_;
  Graph result_;
  StageTransfers& transfers_;
  const std::vector<int> stages_;                       // by part
  const std::vector<int> parts_;                        // by node
  const std::vector<bool> sums_;                        // by node
  std::vector<std::set<int>> goes_to_;                  // by value: parts of other stages
  std::vector<NodeId> moved_;                           // by node
  std::map<std::pair<int32_t, int>, ValueId> arrived_;  // by value and part
};

bool is_empty(const std::vector<Range>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(), [](const Range& r) { return r.length == 0; });
}

std::vector<Range> intersect(const std::vector<Range>& a, const std::vector<Range>& b) {
  std::vector<Range> result;
  for (size_t d = 0; d < a.size(); ++d) {
    const auto begin = std::max(a[d].begin, b[d].begin);
    const auto end = std::min(a[d].begin + a[d].length, b[d].begin + b[d].length);
    result.push_back({begin, std::max<int64_t>(0, end - begin)});
  }
  return result;
}

}  // namespace

Graph mark_transfers(const Graph& graph, const plan::Plan& plan, StageTransfers& transfers) {
  return Marking(graph, plan, transfers).run();
}

void place_ends(StageTransfers& transfers, const StageTransfers& own, const Graph& marked,
                const shard::Sharding& sharding, int64_t stage) {
  const bool same = std::equal(transfers.list.begin(), transfers.list.end(), own.list.begin(),
                               own.list.end(), [](const StageTransfer& a, const StageTransfer& b) {
                                 return a.what == b.what && a.type == b.type &&
                                        a.maker == b.maker && a.user == b.user;
                               });
  if (!same) {
    fail("compile",
         "stages of unequal submeshes must agree on the values between them, but stages 0 and {} "
         "have different ones: make the submeshes equal",
         stage);
  }
  for (size_t k = 0; k < own.list.size(); ++k) {
    auto& transfer = transfers.list[k];
    const auto result = own.list[k].result;
    const auto node = marked.values[result.index].producer;
    if (transfer.from == stage) transfer.sent = sharding.operands[node].front();
    if (transfer.to == stage) transfer.received = sharding.values[result.index];
  }
}

namespace {

std::vector<TransferPiece> pieces_of(const StageTransfer& transfer, const mesh::Mesh& mesh) {
  const auto by_begin = [](const std::vector<Range>& a, const std::vector<Range>& b) {
    return std::lexicographical_compare(
        a.begin(), a.end(), b.begin(), b.end(),
        [](const Range& x, const Range& y) { return x.begin < y.begin; });
  };
  std::map<std::vector<Range>, std::vector<int64_t>, decltype(by_begin)> holders(by_begin);
  const auto& shape = transfer.type.shape;
  const auto from = mesh::of_stage(mesh, transfer.from), to = mesh::of_stage(mesh, transfer.to);
  for (const auto rank : mesh::ranks_of_stage(mesh, transfer.from)) {
    auto box = mesh::local_ranges(shape, transfer.sent, from, rank);
    if (!is_empty(box)) holders[std::move(box)].push_back(rank);
  }
  std::vector<TransferPiece> pieces;
  const auto receivers = mesh::ranks_of_stage(mesh, transfer.to);
  for (size_t j = 0; j < receivers.size(); ++j) {
    const auto wanted = mesh::local_ranges(shape, transfer.received, to, receivers[j]);
    for (const auto& [box, ranks] : holders) {
      auto common = intersect(box, wanted);
      if (is_empty(common)) continue;
      pieces.push_back({ranks[j % ranks.size()], receivers[j], std::move(common)});
    }
  }
  return pieces;
}

// Returns each rank's position in its stage.
std::map<int64_t, int64_t> places_of(const mesh::Mesh& mesh) {
  std::map<int64_t, int64_t> places;
  for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
    int64_t place = 0;
    for (const auto rank : mesh::ranks_of_stage(mesh, stage)) places[rank] = place++;
  }
  return places;
}

Stream channel_of(const StageTransfer& transfer, const mesh::Mesh& mesh, int64_t from_place,
                  int64_t to_place) {
  return Stream::message(mesh.axes.back().name, {transfer.from, from_place, transfer.maker},
                         {transfer.to, to_place, transfer.user});
}

}  // namespace

void find_pieces(StageTransfers& transfers) {
  const auto places = places_of(transfers.mesh);
  for (auto& transfer : transfers.list) {
    transfer.pieces = pieces_of(transfer, transfers.mesh);
    for (auto& piece : transfer.pieces) {
      piece.stream = channel_of(transfer, transfers.mesh, places.at(piece.from),
                                places.at(piece.to));
    }
  }
}

std::map<int64_t, RankMessages> messages_of(const StageTransfers& transfers) {
  std::map<int64_t, RankMessages> messages;
  std::vector<mesh::Mesh> views;
  for (int64_t stage = 0; stage < std::ssize(transfers.mesh.stages); ++stage) {
    views.push_back(mesh::of_stage(transfers.mesh, stage));
  }
  const auto add = [&](size_t index, const TransferPiece& piece, bool sends) {
    const auto& transfer = transfers.list[index];
    const auto rank = sends ? piece.from : piece.to;
    const auto own = mesh::local_ranges(
        transfer.type.shape, sends ? transfer.sent : transfer.received,
        views[static_cast<size_t>(sends ? transfer.from : transfer.to)], rank);
    auto& [streams, text] = messages[rank];
    const auto known = std::find(streams.begin(), streams.end(), piece.stream);
    text += fmt::format(" {}{}.{}", sends ? 's' : 'r', index, known - streams.begin());
    if (known == streams.end()) streams.push_back(piece.stream);
    for (size_t d = 0; d < own.size(); ++d) {
      text += fmt::format(":{}+{}", piece.ranges[d].begin - own[d].begin, piece.ranges[d].length);
    }
  };
  for (size_t index = 0; index < transfers.list.size(); ++index) {
    for (const auto& piece : transfers.list[index].pieces) {
      add(index, piece, true);
      add(index, piece, false);
    }
  }
  return messages;
}

namespace {

using Boxes = std::vector<std::pair<std::vector<Range>, ValueId>>;

// Joins boxes that partition a box, dim by dim. `boxes` are sorted by their first elements.
ValueId put_together(const Boxes& boxes, size_t dim, const Graph& graph, const AppendNode& append) {
  if (boxes.size() == 1) return boxes.front().second;
  std::vector<ValueId> joined;
  for (auto first = boxes.begin(); first != boxes.end();) {
    const auto next = std::find_if(
        first, boxes.end(), [&](const auto& box) { return box.first[dim] != first->first[dim]; });
    joined.push_back(put_together({first, next}, dim + 1, graph, append));
    first = next;
  }
  if (joined.size() == 1) return joined.front();
  auto type = graph.type(joined.front());
  type.shape[dim] = 0;
  for (const auto v : joined) type.shape[dim] += graph.type(v).shape[dim];
  return append("aten::cat", {{"tensors", joined}, {"dim", static_cast<int64_t>(dim)}}, {type});
}

}  // namespace

void send_pieces(const StageTransfer& transfer, const mesh::Mesh& mesh, int64_t rank, ValueId value,
                 const Graph& graph, const AppendNode& append) {
  const auto own = mesh::local_ranges(transfer.type.shape, transfer.sent, mesh, rank);
  bool sends = false;
  for (const auto& piece : transfer.pieces) {
    if (piece.from != rank) continue;
    sends = true;
    ValueId part = value;
    for (size_t d = 0; d < own.size(); ++d) {
      if (piece.ranges[d] == own[d]) continue;
      auto type = graph.type(part);
      type.shape[d] = piece.ranges[d].length;
      const auto start = piece.ranges[d].begin - own[d].begin;
      part = append("aten::slice.Tensor",
                    {{"self", part},
                     {"dim", static_cast<int64_t>(d)},
                     {"start", start},
                     {"end", start + type.shape[d]}},
                    {type});
    }
    append("comm::send", {{"self", part}, {"axis", piece.stream.name()}, {"peer", int64_t{1}}}, {});
  }
  // Other ranks of its stage depend on the collectives that make the value.
  if (!sends) append(plan::kCross, {{"self", value}}, {});
}

ValueId receive_pieces(const StageTransfer& transfer, int64_t rank, const graph::TensorType& type,
                       const Graph& graph, const AppendNode& append) {
  Boxes boxes;
  for (const auto& piece : transfer.pieces) {
    if (piece.to != rank) continue;
    auto box = type;
    for (size_t d = 0; d < box.shape.size(); ++d) box.shape[d] = piece.ranges[d].length;
    boxes.emplace_back(
        piece.ranges,
        append("comm::receive", {{"axis", piece.stream.name()}, {"peer", int64_t{0}}}, {box}));
  }
  return boxes.empty() ? append("perigee::full", {{"value", 0.0}}, {type})
                       : put_together(boxes, 0, graph, append);
}

}  // namespace perigee::compile
