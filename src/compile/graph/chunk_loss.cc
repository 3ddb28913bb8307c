#include "compile/graph/chunk_loss.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "compile/graph/autocast.h"
#include "graph/ops.h"
#include "shard/rules/rule.h"

namespace perigee::compile {
namespace {

using graph::Arg;
using graph::DType;
using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::Output;
using graph::Phase;
using graph::TensorType;
using graph::ValueId;

// The dims of a node's operands, in each_operand order, and results that are the product's rows; -1:
// it has no such dim.
struct Rows {
  std::vector<int> operands, results;
  std::string why_not;  // "": the node can be computed by chunks of rows
};

class ChunkLoss {
 public:
  ChunkLoss(const Graph& graph, int64_t chunks)
      : graph_(graph),
        result_(graph),
        dims_(graph.values.size(), -1),
        wide_(graph.values.size()),
        summed_(graph.values.size()),
        rows_(graph.nodes.size()),
        chunked_(graph.nodes.size()),
        left_out_(graph.nodes.size()),
        moved_(graph.nodes.size(), -1),
        chunks_(chunks),
        trains_(std::any_of(graph.outputs.begin(), graph.outputs.end(), [](const auto& output) {
          return output.kind == Output::Kind::gradient && output.value.defined();
        })) {
    result_.nodes.clear();
  }

  Graph run() && {
    find_product();
    if (product_ < 0) return not_chunked("no product makes its logits");
    find_rows();
    find_chunked();
    const auto before = needed_before();
    if (const auto why = why_not(before); !why.empty()) return not_chunked(why);
    chunks_ = std::min(chunks_, graph_.type(node(product_).outputs[0]).shape[0]);
    if (chunks_ <= 1) return graph_;
    const auto after = needs_chunks();
    for (NodeId n = 0; n < product_; ++n) copy(n, false);
    for (auto n : before) copy(n, false);
    make_chunks();
    for (size_t n = static_cast<size_t>(product_); n < graph_.nodes.size(); ++n) {
      if (!chunked_[n] && !left_out_[n] && moved_[n] < 0) copy(static_cast<NodeId>(n), after[n]);
    }
    for (auto& output : result_.outputs) {
      const auto found = renamed_.find(output.value.index);
      if (found != renamed_.end()) output.value = found->second;
    }
    return graph::eliminate_dead_code(std::move(result_));
  }

 private:
  const Node& node(NodeId n) const { return graph_.nodes[n]; }

  Graph not_chunked(const std::string& why) const {
    if (!trains_) return graph_;
    fail("chunked_loss", "the loss must be computed row by row from a matrix product, but {}", why);
  }

  static std::string where(const Node& node) {
    return fmt::format("{} in scope \"{}\"", node.op, node.scope);
  }

  // Walks from the loss back to the first products on each path, and takes the largest, of equal
  // ones the last.
  void find_product() {
    std::vector<bool> seen(graph_.values.size());
    std::vector<ValueId> open;
    for (const auto& output : graph_.outputs) {
      if (output.kind == Output::Kind::loss && output.value.defined()) open.push_back(output.value);
    }
    std::pair<int64_t, NodeId> most{0, -1};
    while (!open.empty()) {
      const auto v = open.back();
      open.pop_back();
      const auto n = graph_.values[v.index].producer;
      if (seen[v.index] || n < 0) continue;
      seen[v.index] = true;
      if (graph::is_product(node(n).op)) {
        const bool plain = node(n).op == "aten::mm" || node(n).op == "aten::addmm";
        if (plain) most = std::max(most, {graph_.type(v).numel(), n});
      } else {
        node(n).each_operand([&](ValueId operand) { open.push_back(operand); });
      }
    }
    product_ = most.second;
  }

  // Finds the rows of all values that the product makes, and which of them have its classes too.
  void find_rows() {
    for (size_t n = static_cast<size_t>(product_); n < graph_.nodes.size(); ++n) {
      const auto& reader = graph_.nodes[n];
      const bool first = static_cast<NodeId>(n) == product_;
      bool has_rows = first;
      bool wide = first;
      reader.each_operand([&](ValueId v) {
        has_rows = has_rows || dims_[v.index] >= 0;
        wide = wide || wide_[v.index];
      });
      if (!has_rows) continue;
      rows_[n] = first ? rows_of_product() : rows_of(reader);
      if (!rows_[n]->why_not.empty()) continue;
      for (size_t r = 0; r < reader.outputs.size(); ++r) {
        const auto v = reader.outputs[r];
        if (!v.defined()) continue;
        dims_[v.index] = rows_[n]->results[r];
        summed_[v.index] = dims_[v.index] < 0;
        // A product with the gradient of the logits sums over classes or rows.
        const auto& shape = graph_.type(v).shape;
        wide_[v.index] = wide && dims_[v.index] >= 0 && shape.size() == 2 &&
                         shape[1 - dims_[v.index]] > 1 && (first || !graph::is_product(reader.op));
      }
    }
  }

  Rows rows_of_product() const {
    const auto& product = node(product_);
    Rows rows{.operands = {0, -1}, .results = {0}, .why_not = ""};
    if (product.op == "aten::addmm") rows.operands.insert(rows.operands.begin(), -1);
    if (product.op == "aten::addmm" &&
        graph_.type(product.get<ValueId>("self", {})).shape.size() != 1) {
      rows.why_not = "the product adds a matrix";
    }
    return rows;
  }

  // Returns how rows belong together by the op's sharding rule.
  Rows rows_of(const Node& reader) const {
    Rows rows;
    const auto cannot = [&](const char* why) {
      if (reader.op.starts_with("perigee::fp8")) {
        rows.why_not = fmt::format(
            "fp8 scales the factors of the product in scope \"{}\" by several rows: leave "
            "chunked_loss out, or name the layers of fp8 without it (match = {{\"blocks.*\"}})",
            reader.scope);
        return rows;
      }
      rows.why_not = fmt::format("{} {}", where(reader), why);
      return rows;
    };
    if (reader.op == "comm::all_reduce" || reader.op == "comm::all_gather") {
      const int at = dims_[reader.only_operand().index];
      if (reader.op == "comm::all_gather" && reader.get<int64_t>("dim", 0) == at) {
        return cannot("combines rows");
      }
      rows.operands = rows.results = {at};
      return rows;
    }
    const shard::Call call(graph_, reader);
    const auto* rule = shard::Rules::built_in().find(reader.op);
    const auto pattern = rule ? rule->pattern(call) : std::nullopt;
    if (!pattern || graph::is_random(reader.op)) return cannot("has no rule for its rows");
    int row = -1;  // dim of the pattern
    for (int i = 0; i < call.operand_count(); ++i) {
      const int at = dims_[call.operand(i).index];
      if (at < 0) continue;
      const int found = pattern->operands[i][at];
      if (found < 0 || (row >= 0 && row != found)) return cannot("combines rows");
      row = found;
    }
    const auto& dim = pattern->dims[row];
    if (dim.one_piece || dim.role == shard::Role::agreed) return cannot("combines rows");
    const auto sized_by_rows = [&](const shard::SizeArgument& size) {
      const auto& tensor = (size.of_result ? pattern->results : pattern->operands)[size.tensor];
      return size.dim < 0 || tensor[size.dim] == row;
    };
    if (dim.even || std::any_of(pattern->sizes.begin(), pattern->sizes.end(), sized_by_rows)) {
      return cannot(
          "changes the shape of the rows, as where tokens are sharded over several axes: leave "
          "chunked_loss out, or one of sequence_parallel, context_parallel and tensor_parallel's "
          "sequence");
    }
    const auto place = [&](const std::vector<int>& dims) {
      const auto found = std::find(dims.begin(), dims.end(), row);
      return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
    };
    for (const auto& dims : pattern->operands) rows.operands.push_back(place(dims));
    for (int r = 0; r < call.result_count(); ++r) {
      rows.results.push_back(place(pattern->results[r]));
      const bool lacks = call.has_result(r) && rows.results.back() < 0;
      // A sum of rows is the sum of its chunks' where the op is the same for each and adds nothing.
      const bool sums = dim.role == shard::Role::sum && !rule->lower && pattern->addends.empty();
      if (lacks && !sums) return cannot("combines rows");
    }
    return rows;
  }

  // Finds the nodes that are computed by chunks: those that read or make logits, or anything by rows
  // and classes, and what else the product makes that these need.
  void find_chunked() {
    std::vector<bool> needed(graph_.values.size());
    for (size_t n = graph_.nodes.size(); n-- > static_cast<size_t>(product_);) {
      if (!rows_[n]) continue;
      const auto& reader = graph_.nodes[n];
      bool wide = false;
      const auto look = [&](ValueId v) { wide = wide || wide_[v.index]; };
      reader.each_operand(look);
      for (auto v : reader.outputs) {
        if (!v.defined()) continue;
        look(v);
        wide = wide || needed[v.index];
      }
      chunked_[n] = wide;
      if (wide) reader.each_operand([&](ValueId v) { needed[v.index] = true; });
    }
  }

  // Returns why the nodes cannot be computed by chunks, or "".
  std::string why_not(const std::vector<NodeId>& before) const {
    const auto after = needs_chunks();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!chunked_[n]) continue;
      if (!rows_[n]->why_not.empty()) return rows_[n]->why_not;
      std::string why;
      graph_.nodes[n].each_operand([&](ValueId v) {
        if (summed_[v.index]) {
          why = fmt::format("{} reads a sum over all rows", where(graph_.nodes[n]));
        }
      });
      if (!why.empty()) return why;
    }
    for (auto n : before) {
      if (after[n]) return fmt::format("the gradient depends on the loss by {}", where(node(n)));
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& reader = graph_.nodes[n];
      if (after[n] && !chunked_[n] && reader.phase == Phase::forward &&
          graph::is_product(reader.op)) {
        return fmt::format("{} follows it", where(reader));
      }
    }
    for (const auto& output : graph_.outputs) {
      if (output.value.defined() && wide_[output.value.index]) {
        return fmt::format("the model returns its logits, as \"{}\"", output.name);
      }
    }
    return "";
  }

  // Returns the other nodes after the product that the chunks need, in their order.
  std::vector<NodeId> needed_before() const {
    std::vector<bool> needed(graph_.nodes.size());
    std::vector<NodeId> nodes;
    for (size_t n = graph_.nodes.size(); n-- > static_cast<size_t>(product_);) {
      if (!chunked_[n] && !needed[n]) continue;
      if (!chunked_[n]) nodes.push_back(static_cast<NodeId>(n));
      graph_.nodes[n].each_operand([&](ValueId v) {
        const auto producer = graph_.values[v.index].producer;
        if (producer >= 0) needed[producer] = true;
      });
    }
    std::reverse(nodes.begin(), nodes.end());
    return nodes;
  }

  // Returns, by node, whether it needs a result of the chunks.
  std::vector<bool> needs_chunks() const {
    std::vector<bool> needs(graph_.nodes.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      graph_.nodes[n].each_operand([&](ValueId v) {
        const auto from = graph_.values[v.index].producer;
        if (from >= 0 && (chunked_[from] || needs[from])) needs[n] = true;
      });
    }
    return needs;
  }

  // Copies a node. `late`: it moves to the backward pass.
  void copy(NodeId n, bool late) {
    Node copied = node(n);
    copied.each_operand([&](ValueId& v) {
      if (const auto found = renamed_.find(v.index); found != renamed_.end()) v = found->second;
    });
    if (auto& forward = copied.forward_node; forward >= 0) {
      forward = chunked_[forward] ? first_ : moved_[forward];
    }
    if (late && trains_ && copied.phase == Phase::forward) {
      copied.phase = Phase::backward;
      copied.forward_node = first_;
    }
    moved_[n] = append(result_, std::move(copied));
  }

  // Appends a node of the chunks.
  void append_late(Node made) {
    made.phase = trains_ ? Phase::backward : Phase::forward;
    made.forward_node = trains_ ? first_ : -1;
    append(result_, std::move(made));
  }

  ValueId emit(std::string op, std::vector<std::pair<std::string, Arg>> args, TensorType type,
               const Node& like) {
    const ValueId made = result_.add_value(std::move(type));
    append_late(
        {.op = std::move(op), .args = std::move(args), .outputs = {made}, .scope = like.scope});
    return made;
  }

  void make_chunks() {
    const auto& product = node(product_);
    const auto rows = graph_.type(product.outputs[0]).shape[0];
    // The forward pass ends at this view of the product's input, to whose part of a pipeline the
    // chunks belong.
    const auto input = product.get<ValueId>(product.op == "aten::mm" ? "self" : "mat1", {});
    const ValueId view = result_.add_value(graph_.type(input));
    first_ = append(result_, {.op = "perigee::reshape",
                              .args = {{"self", input}},
                              .outputs = {view},
                              .scope = product.scope});
    std::map<int32_t, std::vector<ValueId>> parts;  // by value that the chunked nodes make
    for (int64_t k = 0; k < chunks_; ++k) {
      const int64_t begin = rows * k / chunks_, end = rows * (k + 1) / chunks_;
      std::map<std::pair<int32_t, int>, ValueId> slices;  // by value and dim
      for (size_t n = 0; n < graph_.nodes.size(); ++n) {
        if (chunked_[n]) make_part(static_cast<NodeId>(n), input, view, begin, end, slices, parts);
      }
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!chunked_[n]) continue;
      for (auto v : graph_.nodes[n].outputs) {
        if (v.defined()) join(v, parts[v.index], graph_.nodes[n]);
      }
    }
  }

  // Emits a node for rows [begin, end).
  void make_part(NodeId n, ValueId input, ValueId view, int64_t begin, int64_t end,
                 std::map<std::pair<int32_t, int>, ValueId>& slices,
                 std::map<int32_t, std::vector<ValueId>>& parts) {
    Node part = node(n);
    size_t i = 0;
    part.each_operand([&](ValueId& v) {
      const int dim = rows_[n]->operands[i++];
      const auto producer = graph_.values[v.index].producer;
      if (producer >= 0 && chunked_[producer]) {
        v = parts.at(v.index).back();
      } else if (dim >= 0) {
        auto& slice = slices[{v.index, dim}];
        if (!slice.defined()) slice = rows_of(v == input ? view : v, dim, begin, end, node(n));
        v = slice;
      }
    });
    for (size_t r = 0; r < part.outputs.size(); ++r) {
      const ValueId whole = part.outputs[r];
      if (!whole.defined()) continue;
      auto type = graph_.type(whole);
      if (const int dim = rows_[n]->results[r]; dim >= 0) type.shape[dim] = end - begin;
      part.outputs[r] = result_.add_value(std::move(type));
      parts[whole.index].push_back(part.outputs[r]);
    }
    append_late(std::move(part));
    // Summands are widened at once, so that each is added before the next one is computed.
    for (auto whole : node(n).outputs) {
      if (!whole.defined() || !summed_[whole.index] || !graph::is_half(graph_.type(whole).dtype))
        continue;
      auto& summand = parts.at(whole.index).back();
      summand = emit("perigee::cast", {{"self", summand}},
                     {DType::float32, graph_.type(whole).shape}, node(n));
    }
  }

  ValueId rows_of(ValueId v, int64_t dim, int64_t begin, int64_t end, const Node& like) {
    auto type = result_.type(v);
    type.shape[dim] = end - begin;
    std::vector<std::pair<std::string, Arg>> args = {{"self", v}};
    if (dim != 0) args.emplace_back("dim", dim);
    args.emplace_back("start", begin);
    args.emplace_back("end", end);
    return emit("aten::slice.Tensor", std::move(args), std::move(type), like);
  }

  // Makes a value of its parts: their rows, or their sum. Dead code is removed later.
  void join(ValueId whole, std::vector<ValueId> parts, const Node& like) {
    if (const int64_t dim = dims_[whole.index]; dim >= 0) {
      Node made{.op = "aten::cat",
                .args = {{"tensors", std::move(parts)}},
                .outputs = {whole},
                .scope = like.scope};
      if (dim != 0) made.args.emplace_back("dim", dim);
      return append_late(std::move(made));
    }
    add_up(whole, parts, like);
  }

  // Makes a value the sum of its parts, of which those of 16 bits are widened.
  void add_up(ValueId whole, const std::vector<ValueId>& parts, const Node& like) {
    auto type = graph_.type(whole);
    const bool low = graph::is_half(type.dtype);
    if (low) type.dtype = DType::float32;
    const bool renamed = low && read_as_float32(whole);
    ValueId sum = parts[0];
    for (size_t k = 1; k < parts.size(); ++k) {
      Node made{.op = "aten::add.Tensor",
                .args = {{"self", sum}, {"other", parts[k]}},
                .outputs = {whole},
                .scope = like.scope};
      if (low || k + 1 < parts.size()) made.outputs = {result_.add_value(type)};
      sum = made.outputs[0];
      append_late(std::move(made));
    }
    if (renamed) {
      rename(whole, sum);
    } else if (low) {
      append_late({.op = "perigee::cast",
                   .args = {{"self", sum}},
                   .outputs = {whole},
                   .scope = like.scope});
    }
  }

  static bool widens(const Graph& graph, const Node& reader) {
    return (reader.op == "perigee::cast" || reader.op == "aten::add.Tensor") &&
           graph.type(reader.outputs[0]).dtype == DType::float32;
  }

  // Returns whether all who read the value of 16 bits cast it to float32, or add it to float32.
  bool read_as_float32(ValueId v) const {
    bool wide = std::none_of(graph_.outputs.begin(), graph_.outputs.end(),
                             [&](const Output& output) { return output.value == v; });
    for (const auto& reader : graph_.nodes) {
      reader.each_operand([&](ValueId read) {
        if (read == v) wide = wide && widens(graph_, reader);
      });
    }
    return wide;
  }

  // Makes the readers of a value of 16 bits read `wide` in its place, which is not cast any more.
  void rename(ValueId v, ValueId wide) {
    renamed_[v.index] = wide;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& reader = graph_.nodes[n];
      if (reader.op != "perigee::cast" || reader.only_operand() != v) continue;
      renamed_[reader.outputs[0].index] = wide;
      left_out_[n] = true;
    }
  }

  const Graph& graph_;
  Graph result_;
  std::vector<int> dims_;                  // by value: the dim that is the product's rows, or -1
  std::vector<bool> wide_;                 // by value: it has rows and classes
  std::vector<bool> summed_;               // by value: a sum over rows
  std::vector<std::optional<Rows>> rows_;  // by node: of those that read the product's rows
  std::vector<bool> chunked_;              // by node: computed by chunks
  std::vector<bool> left_out_;             // by node: a cast that is not needed any more
  std::map<int32_t, ValueId> renamed_;     // by value of 16 bits: the float32 one that is read
  std::vector<NodeId> moved_;              // by node: its place in the result, or -1
  int64_t chunks_;
  bool trains_;
  NodeId product_ = -1;
  NodeId first_ = -1;  // of the result: the view of the product's input
};

}  // namespace

Graph chunk_loss(const Graph& graph, int64_t chunks) { return ChunkLoss(graph, chunks).run(); }

}  // namespace perigee::compile
