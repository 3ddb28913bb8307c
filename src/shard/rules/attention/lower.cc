// Attention with queries sharded on their sequence, block by block. A block is a piece of the
// queries with a piece of the keys; the results of a query's blocks are merged by their logsumexp
// (Rabe and Staats 2021). Sharded keys pass from rank to rank while the current ones are attended
// to (ring attention, Liu et al. 2023; zigzag shards give every rank an equal part of a causal
// mask). A bias has the rows of its rank's queries; each block takes the columns of its keys. The
// document numbers of queries and keys are cut as these are.
#include <algorithm>
#include <limits>

#include "shard/rules/attention/blocks.h"
#include "shard/rules/emitter.h"
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

using graph::DType;
using graph::TensorType;
using graph::ValueId;
using mesh::Range;
using Block = AttentionBlock;
using Values = std::vector<ValueId>;

constexpr int64_t kSequence = 2;           // of [b, h, s, d] and [b, h, s]
constexpr int64_t kDocumentsSequence = 1;  // of document numbers [b, s]

// A part of a tensor's sequence, or an addend of it.
struct Part {
  Range range;
  ValueId value;
};

class Attention {
 public:
  explicit Attention(RuleLowering& lowering)
      : lowering_(lowering),
        call_(lowering.call),
        emit_(lowering),
        query_(call_.find("query")),
        key_(call_.find("key")),
        value_(call_.find("value")),
        bias_(call_.find("bias")),
        documents_(call_.find("key_documents")),
        causal_(call_.node().get<bool>("causal", false)),
        has_dropout_(call_.node().get<double>("p", 0.0) > 0),
        sum_type_(call_.operand_type(query_).dtype == DType::float64 ? DType::float64
                                                                     : DType::float32),
        queries_(lowering.operand_pieces(query_, kSequence)) {}

  Values run() {
    const auto ring = lowering_.axes_of(key_, kSequence);
    if (ring.empty() && bias_ >= 0) return with_bias();
    if (ring.empty() && (!causal_ || lowering_.axes_of(query_, kSequence).empty()) &&
        !(has_dropout_ && queries_.global.size() > 1)) {
      return lowering_.emit(with_mask(lowering_.local_args(), queries_.global[0].begin, 0));
    }
    const bool backward = call_.find("grad") >= 0;
    if (ring.empty()) {
      const Pieces keys({{0, call_.shape(key_)[kSequence]}});
      return backward ? backward_local(keys) : forward_local(keys);
    }
    const Ring keys(lowering_, key_, ring);
    return backward ? backward_ring(keys) : forward_ring(keys);
  }

 private:
  // The group of ranks that keys pass through.
  struct Ring {
    Ring(RuleLowering& lowering, int key, std::string axes) : axes(std::move(axes)) {
      const auto group = mesh::group_of(lowering.mesh, mesh::AxisSet::parse(this->axes),
                                        lowering.rank);
      own = std::find(group.begin(), group.end(), lowering.rank) - group.begin();
      for (auto rank : group) {
        pieces.emplace_back(mesh::local_pieces(lowering.call.shape(key),
                                               lowering.operand_placements[key], lowering.mesh,
                                               rank, kSequence));
      }
    }
    int64_t size() const { return std::ssize(pieces); }
    // The keys at this rank after `step` steps.
    const Pieces& at(int64_t step) const { return pieces[(own - step + size()) % size()]; }

    std::string axes;
    int64_t own = 0;
    std::vector<Pieces> pieces;  // of every rank's keys
  };

  // ---- blocks

  // Dropout draws by the element's index in the whole [b, h, s, t].
  Args with_mask(Args args, int64_t first_query, int64_t first_key) const {
    if (!has_dropout_) return args;
    auto whole = call_.shape(query_);
    whole[3] = call_.shape(key_)[kSequence];
    args.emplace_back("global", whole);
    args.emplace_back("begin", std::vector<int64_t>{lowering_.operand_range(query_, 0).begin,
                                                    lowering_.operand_range(query_, 1).begin,
                                                    first_query, first_key});
    return args;
  }

  // The parts of the queries with the same keys: the pieces, or all queries.
  std::vector<Range> units() const {
    if (causal_ || by_pieces()) return queries_.local;
    return {{0, queries_.length()}};
  }

  // Whether each block is one piece of queries and keys, because it needs their global offsets.
  bool by_pieces() const { return has_dropout_ || bias_ >= 0; }

  std::vector<Block> blocks(const Pieces& keys) const {
    return attention_blocks(queries_, keys, {.causal = causal_, .by_pieces = by_pieces()});
  }

  // Keys and all that belongs to them.
  struct Keys {
    ValueId keys, values, documents;
  };

  Keys own_keys() const {
    return {lowering_.operands[key_], lowering_.operands[value_],
            documents_ < 0 ? ValueId{} : lowering_.operands[documents_]};
  }

  Args block_args(const Block& block, const Keys& from) {
    auto args = lowering_.local_args();
    for (auto& [name, arg] : args) {
      if (name == "causal") arg = block.causal;
      auto* v = std::get_if<ValueId>(&arg);
      if (!v || !v->defined()) continue;
      if (name == "bias") {
        *v = part_of_bias(*v, block);
        continue;
      }
      if (name == "key") *v = from.keys;
      if (name == "value") *v = from.values;
      if (name == "key_documents") *v = from.documents;
      const bool of_keys = name == "key" || name == "value" || name == "key_documents";
      const bool numbers = name == "documents" || name == "key_documents";
      *v = emit_.slice(*v, numbers ? kDocumentsSequence : kSequence,
                       of_keys ? block.keys : block.queries);
    }
    return with_mask(std::move(args), block.first_query, block.first_key);
  }

  // Dims that broadcast are unchanged.
  ValueId part_of_bias(ValueId bias, const Block& block) {
    const auto shape = emit_.type(bias).shape;
    const int64_t columns = std::ssize(shape) - 1, rows = columns - 1;
    const auto& whole = call_.shape(bias_);
    if (whole[rows] != 1) bias = emit_.slice(bias, rows, block.queries);
    if (whole[columns] != 1)
      bias = emit_.slice(bias, columns, {block.first_key, block.keys.length});
    return bias;
  }

  // ---- forward

  // The merged result of the blocks so far for a part of the queries.
  struct Sum {
    Range rows;
    ValueId output, logsumexp;
  };

  std::vector<Sum> no_sums() const {
    std::vector<Sum> sums;
    for (const auto& rows : units()) sums.push_back({rows, {}, {}});
    return sums;
  }

  void attend(std::vector<Sum>& sums, const Pieces& pieces, const Keys& keys) {
    for (const auto& block : blocks(pieces)) {
      auto output = lowering_.local_types()[0];
      output.shape[kSequence] = block.queries.length;
      TensorType logsumexp{sum_type_, {output.shape.begin(), output.shape.begin() + 3}};
      const auto made = lowering_.emit(call_.node().op, block_args(block, keys),
                                       std::vector{output, logsumexp});
      for (auto& sum : sums) {
        if (sum.rows.begin < block.queries.begin || sum.rows.end() > block.queries.end()) {
          continue;
        }
        const Range rows{sum.rows.begin - block.queries.begin, sum.rows.length};
        add(sum, emit_.slice(made[0], kSequence, rows), emit_.slice(made[1], kSequence, rows));
      }
    }
  }

  void add(Sum& sum, ValueId output, ValueId logsumexp) {
    if (sum.output.defined()) {
      const auto merged = lowering_.emit(
          "perigee::merge_attention",
          {{"self", sum.output},
           {"logsumexp", sum.logsumexp},
           {"other", output},
           {"other_logsumexp", logsumexp}},
          std::vector<TensorType>{{sum_type_, emit_.type(output).shape}, emit_.type(logsumexp)});
      output = merged[0];
      logsumexp = merged[1];
    }
    sum.output = output;
    sum.logsumexp = logsumexp;
  }

  Values results(const std::vector<Sum>& sums) {
    Values outputs, logsumexps;
    for (const auto& sum : sums) {
      outputs.push_back(emit_.cast(sum.output, call_.operand_type(query_).dtype));
      logsumexps.push_back(sum.logsumexp);
    }
    return {emit_.cat(outputs, kSequence), emit_.cat(logsumexps, kSequence)};
  }

  Values forward_local(const Pieces& keys) {
    auto sums = no_sums();
    attend(sums, keys, own_keys());
    return results(sums);
  }

  Values forward_ring(const Ring& ring) {
    auto sums = no_sums();
    auto current = in_transit();
    for (int64_t step = 0; step < ring.size(); ++step) {
      const auto next = step + 1 < ring.size() ? shifted(current, ring) : Transit{};
      attend(sums, ring.at(step), unpacked(current, ring.at(step)));
      if (step + 1 < ring.size()) current = next;
    }
    auto made = results(sums);
    made[0] = ordered_after(made[0], current);
    return made;
  }

  // ---- backward

  struct Gradients {
    std::vector<Part> queries, keys, values;
    std::vector<std::pair<Block, ValueId>> bias;
  };

  void attend_backward(Gradients& into, const Pieces& pieces, const Keys& keys) {
    for (const auto& block : blocks(pieces)) {
      const auto args = block_args(block, keys);
      std::vector<TensorType> types;
      for (int i : {query_, key_, value_}) {
        auto type = lowering_.type(lowering_.operands[i]);
        type.shape[kSequence] = (i == query_ ? block.queries : block.keys).length;
        types.push_back(std::move(type));
      }
      const bool of_bias = call_.result_count() > 3 && call_.has_result(3);
      for (const auto& [name, arg] : args) {
        if (of_bias && name == "bias") types.push_back(emit_.type(std::get<ValueId>(arg)));
      }
      const auto made = lowering_.emit(call_.node().op, args, types);
      if (of_bias) into.bias.emplace_back(block, made[3]);
      into.queries.push_back({block.queries, emit_.cast(made[0], sum_type_)});
      into.keys.push_back({block.keys, emit_.cast(made[1], sum_type_)});
      into.values.push_back({block.keys, emit_.cast(made[2], sum_type_)});
    }
  }

  // The sum of parts over a whole sequence; 0 if there are none.
  ValueId sum_of(const std::vector<Part>& parts, TensorType type) {
    const int64_t length = type.shape[kSequence];
    std::vector<int64_t> ends = {length};
    for (const auto& part : parts) {
      ends.insert(ends.end(), {part.range.begin, part.range.end()});
    }
    std::sort(ends.begin(), ends.end());
    Values pieces;
    int64_t begin = 0;
    for (auto end : ends) {
      if (end == begin) continue;
      ValueId sum;
      for (const auto& part : parts) {
        if (part.range.begin > begin || part.range.end() < end) continue;
        const auto v = emit_.slice(part.value, kSequence, {begin - part.range.begin, end - begin});
        sum = sum.defined() ? emit_.binary("aten::add.Tensor", sum, v) : v;
      }
      type.shape[kSequence] = end - begin;
      pieces.push_back(sum.defined() ? sum : emit_.full(0.0, type));
      begin = end;
    }
    return emit_.cat(pieces, kSequence);
  }

  // The gradient of a bias, undefined if it is not wanted: for each piece of the queries its
  // blocks' gradients, and 0 for keys that they do not see.
  ValueId bias_gradient(std::vector<std::pair<Block, ValueId>> parts) {
    if (parts.empty()) return {};
    std::sort(parts.begin(), parts.end(),
              [](const auto& a, const auto& b) { return a.first.first_key < b.first.first_key; });
    auto type = lowering_.type(lowering_.operands[bias_]);
    const int64_t columns = std::ssize(type.shape) - 1, rows = columns - 1;
    Values all;
    for (const auto& piece : queries_.local) {
      type.shape[rows] = piece.length;
      Values row;
      int64_t begin = 0;
      const auto fill = [&](int64_t end) {
        type.shape[columns] = end - begin;
        if (end > begin) row.push_back(emit_.full(0.0, type));
      };
      for (const auto& [block, value] : parts) {
        if (block.queries != piece) continue;
        fill(block.first_key);
        row.push_back(value);
        begin = block.first_key + block.keys.length;
      }
      fill(call_.shape(key_)[kSequence]);
      all.push_back(emit_.cat(row, columns));
    }
    return emit_.cat(all, rows);
  }

  TensorType sum_type(int operand) const {
    return {sum_type_, lowering_.type(lowering_.operands[operand]).shape};
  }

  Values finish(ValueId d_query, ValueId d_key, ValueId d_value, ValueId d_bias = {}) {
    Values made;
    int operand[] = {query_, key_, value_};
    for (auto v : {d_query, d_key, d_value}) {
      made.push_back(emit_.cast(v, call_.operand_type(operand[made.size()]).dtype));
    }
    made.push_back(d_bias);
    made.resize(call_.result_count());
    return made;
  }

  Values backward_local(const Pieces& keys) {
    Gradients parts;
    attend_backward(parts, keys, own_keys());
    return finish(sum_of(parts.queries, sum_type(query_)), sum_of(parts.keys, sum_type(key_)),
                  sum_of(parts.values, sum_type(value_)));
  }

  // Gradients of keys follow one step after them, and a last step returns them to their owner.
  Values backward_ring(const Ring& ring) {
    Gradients parts;
    auto current = in_transit();
    ValueId gradients;
    for (int64_t step = 0; step < ring.size(); ++step) {
      const auto next = step + 1 < ring.size() ? shifted(current, ring) : Transit{};
      Gradients own;
      attend_backward(own, ring.at(step), unpacked(current, ring.at(step)));
      parts.queries.insert(parts.queries.end(), own.queries.begin(), own.queries.end());
      parts.bias.insert(parts.bias.end(), own.bias.begin(), own.bias.end());
      auto key_type = sum_type(key_), value_type = sum_type(value_);
      key_type.shape[kSequence] = value_type.shape[kSequence] = ring.at(step).length();
      if (!own.keys.empty() || !gradients.defined()) {
        const auto mine = packed(sum_of(own.keys, key_type), sum_of(own.values, value_type));
        gradients = gradients.defined() ? emit_.binary("aten::add.Tensor", gradients, mine) : mine;
      }
      gradients = shifted(gradients, ring);
      if (step + 1 < ring.size()) current = next;
    }
    const auto [d_key, d_value, none] = unpacked({gradients, {}}, ring.at(0));
    return finish(ordered_after(sum_of(parts.queries, sum_type(query_)), current), d_key, d_value,
                  bias_gradient(std::move(parts.bias)));
  }

  // ---- keys and values in transit: flattened and concatenated; their document numbers beside them

  struct Transit {
    ValueId packed, documents;
  };

  Transit in_transit() {
    const auto own = own_keys();
    return {packed(own.keys, own.values), own.documents};
  }

  ValueId packed(ValueId keys, ValueId values) { return emit_.cat({flat(keys), flat(values)}, 0); }
  ValueId flat(ValueId v) { return emit_.reshape(v, {emit_.type(v).numel()}); }

  Keys unpacked(const Transit& transit, const Pieces& pieces) {
    const auto both = transit.packed;
    auto key = lowering_.type(lowering_.operands[key_]).shape;
    auto value = lowering_.type(lowering_.operands[value_]).shape;
    key[kSequence] = value[kSequence] = pieces.length();
    const int64_t elements = TensorType{DType::float32, key}.numel();
    const auto take = [&](Range range, std::vector<int64_t> shape) {
      return emit_.reshape(emit_.slice(both, 0, range), std::move(shape));
    };
    return {take({0, elements}, key), take({elements, emit_.type(both).numel() - elements}, value),
            transit.documents};
  }

  // Orders `v` after `other`: all ranks take part in every step, also those that see no key of the
  // last one.
  ValueId ordered_after(ValueId v, const Transit& other) {
    for (const auto part : {other.packed, other.documents}) {
      if (!part.defined()) continue;
      v = lowering_.emit("perigee::reshape", {{"self", v}, {"part", part}}, emit_.type(v));
    }
    return v;
  }

  Transit shifted(const Transit& transit, const Ring& ring) {
    const auto& documents = transit.documents;
    return {shifted(transit.packed, ring),
            documents.defined() ? shifted(documents, ring) : documents};
  }
  ValueId shifted(ValueId v, const Ring& ring) {
    return lowering_.emit("comm::shift", {{"self", v}, {"axis", ring.axes}}, emit_.type(v));
  }

  // ---- bias

  Values with_bias() {
    const auto& rows = queries_.global[0];
    auto args = with_mask(lowering_.local_args(), rows.begin, 0);
    if (causal_ && !lowering_.axes_of(query_, kSequence).empty()) {
      for (auto& [name, arg] : args) {
        if (name == "bias") arg = causal_bias(rows);
        if (name == "causal") arg = false;
      }
    }
    return lowering_.emit(std::move(args));
  }

  // The bias plus -inf where a key follows its query in the whole sequence.
  ValueId causal_bias(Range rows) {
    const TensorType type{call_.operand_type(query_).dtype,
                          {rows.length, call_.shape(key_)[kSequence]}};
    const auto mask = lowering_.emit(
        "aten::triu",
        {{"self", emit_.full(-std::numeric_limits<double>::infinity(), type)},
         {"diagonal", rows.begin + 1}},
        type);
    const auto bias = lowering_.operands[bias_];
    if (emit_.type(bias).dtype != DType::boolean) {
      return emit_.binary("aten::add.Tensor", emit_.cast(bias, type.dtype), mask);
    }
    // A boolean bias masks where it is false.
    const auto none = emit_.full(-std::numeric_limits<double>::infinity(), {type.dtype, {}});
    auto shape = emit_.type(bias).shape;  // broadcasts to [b, h, s, t]
    while (shape.size() < 2) shape.insert(shape.begin(), 1);
    std::copy(type.shape.begin(), type.shape.end(), shape.end() - 2);
    return lowering_.emit("aten::where.self",
                          {{"condition", bias}, {"self", mask}, {"other", none}},
                          {type.dtype, std::move(shape)});
  }

  RuleLowering& lowering_;
  const Call& call_;
  Emitter emit_;
  const int query_, key_, value_, bias_;
  const int documents_;  // of keys
  const bool causal_, has_dropout_;
  const DType sum_type_;  // of sums over blocks and of logsumexp
  const Pieces queries_;
};

}  // namespace

Values lower_attention(RuleLowering& lowering) { return Attention(lowering).run(); }

}  // namespace perigee::shard
