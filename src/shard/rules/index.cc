// Indexing: an index refers to the whole tensor, so the indexed dim is not sharded. Other dims are
// free to be sharded.
#include <algorithm>

#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

using graph::ValueId;

// self, index (and src) have one rank. The result is shaped like `index` for gather, like self
// for scatter.
std::optional<Pattern> gather(const Call& call) {
  const int index = call.find("index");
  const int rank = call.rank(0);
  if (index != 1 || rank == 0 || call.rank(1) != rank) return {};
  auto pattern = whole_pattern(call);
  const int at = call.dim("dim", rank, 0);
  for (int d = 0; d < rank; ++d) {
    // Elements along the index's dim are independent; in other dims positions must correspond.
    if (d != at && call.shape(0)[d] != call.shape(1)[d]) continue;
    const int letter = pattern.add();
    pattern.operands[1][d] = pattern.results[0][d] = letter;
    if (d != at) pattern.operands[0][d] = letter;
  }
  pattern.linear = {{0}};
  return pattern;
}

// self and the operand that is added to it or replaces its elements: jointly linear.
std::vector<int> self_and(const Call& call, std::string_view other) {
  const int i = call.find(other);
  return i < 0 ? std::vector<int>{} : std::vector<int>{0, i};
}

std::optional<Pattern> scatter(const Call& call) {
  const int rank = call.rank(0);
  if (call.find("index") != 1 || rank == 0 || call.rank(1) != rank) return {};
  if (const auto* reduce = call.node().find("reduce")) {
    if (!std::holds_alternative<std::monostate>(*reduce)) return {};
  }
  auto pattern = whole_pattern(call);
  const int at = call.dim("dim", rank, 0);
  for (int d = 0; d < rank; ++d) {
    bool same = d != at;
    for (int i = 1; i < call.operand_count(); ++i) {
      same &= call.rank(i) == rank && call.shape(i)[d] == call.shape(0)[d];
    }
    if (!same) continue;
    const int letter = pattern.add();
    for (auto& operand : pattern.operands) operand[d] = letter;
    pattern.results[0][d] = letter;
  }
  if (auto group = self_and(call, "src"); !group.empty()) pattern.linear = {group};
  return pattern;
}

std::optional<Pattern> index_select(const Call& call) {
  const int rank = call.rank(0);
  if (call.find("index") != 1 || rank == 0 || call.rank(1) != 1) return {};
  auto pattern = whole_pattern(call);
  const int at = call.dim("dim", rank, 0);
  for (int d = 0; d < rank; ++d) {
    const int letter = pattern.add();
    pattern.results[0][d] = letter;
    (d == at ? pattern.operands[1][0] : pattern.operands[0][d]) = letter;
  }
  pattern.linear = {{0}};
  return pattern;
}

// index_add adds the source to self at the indexed positions; with the positions sharded self is
// added once.
std::optional<Pattern> index_add(const Call& call) {
  const int rank = call.rank(0);
  const int source = call.find("source");
  if (call.find("index") != 1 || source != 2 || rank == 0 || call.rank(1) != 1) return {};
  auto pattern = whole_pattern(call);
  const int at = call.dim("dim", rank, 0);
  for (int d = 0; d < rank; ++d) {
    const int letter = pattern.add(d == at ? Role::sum : Role::free);
    pattern.operands[source][d] = letter;
    if (d == at) {
      pattern.operands[1][0] = letter;
    } else {
      pattern.operands[0][d] = pattern.results[0][d] = letter;
    }
  }
  pattern.addends = {0};
  pattern.linear = {{0, source}};
  return pattern;
}

// The dims of an advanced index's result: dims of self without an index, and the broadcast dims
// of the indices, which replace the first indexed dim, or come first if the indexed dims are
// not adjacent.
struct AdvancedIndex {
  std::vector<bool> indexed;  // per dim of self
  std::vector<int> operands;  // operand numbers of the indices
  int broadcast = 0;          // dims of the indices together
  int before = 0;             // dims of self before them in the result
};

std::optional<AdvancedIndex> advanced_index(const Call& call) {
  const auto* arg = call.node().find("indices");
  const auto* list = arg ? std::get_if<std::vector<ValueId>>(arg) : nullptr;
  if (!list) return {};
  AdvancedIndex index;
  index.indexed.assign(call.rank(0), false);
  int first = -1, last = -1, operand = 1;
  for (size_t d = 0; d < list->size(); ++d) {
    if (!(*list)[d].defined()) continue;
    if (static_cast<int>(d) >= call.rank(0)) return {};
    const auto dtype = call.graph().type((*list)[d]).dtype;
    if (dtype == graph::DType::boolean || dtype == graph::DType::uint8) return {};
    index.indexed[d] = true;
    if (first < 0) first = static_cast<int>(d);
    last = static_cast<int>(d);
    index.broadcast = std::max(index.broadcast, call.rank(operand));
    index.operands.push_back(operand++);
  }
  if (first < 0) return {};
  const bool neighbours = last - first + 1 == static_cast<int>(index.operands.size());
  index.before = neighbours ? first : 0;
  return index;
}

// Returns the letters of self[indices]; also sets those of self and the indices.
std::vector<int> indexed_letters(const Call& call, const AdvancedIndex& index, Pattern& pattern,
                                 Role role_of_index, bool self_has_result_dims) {
  std::vector<int64_t> sizes(index.broadcast, 1);
  for (int i : index.operands) {
    for (int d = 0; d < call.rank(i); ++d) {
      auto& size = sizes[index.broadcast - call.rank(i) + d];
      size = std::max(size, call.shape(i)[d]);
    }
  }
  std::vector<int> of_index;
  for (int d = 0; d < index.broadcast; ++d) of_index.push_back(pattern.add(role_of_index));
  for (int i : index.operands) {
    for (int d = 0; d < call.rank(i); ++d) {
      const int at = index.broadcast - call.rank(i) + d;
      if (call.shape(i)[d] == sizes[at]) pattern.operands[i][d] = of_index[at];
    }
  }
  std::vector<int> letters;
  for (int d = 0; d < call.rank(0); ++d) {
    if (index.indexed[d]) continue;
    const int letter = pattern.add();
    pattern.operands[0][d] = letter;
    if (self_has_result_dims) pattern.results[0][d] = letter;
    letters.push_back(letter);
  }
  letters.insert(letters.begin() + index.before, of_index.begin(), of_index.end());
  return letters;
}

std::optional<Pattern> index(const Call& call) {
  const auto index = advanced_index(call);
  if (!index) return {};
  auto pattern = whole_pattern(call);
  pattern.results[0] = indexed_letters(call, *index, pattern, Role::free, false);
  pattern.linear = {{0}};
  return pattern;
}

std::optional<Pattern> index_put(const Call& call) {
  const auto index = advanced_index(call);
  const int values = call.find("values");
  if (!index || values < 0) return {};
  auto pattern = whole_pattern(call);
  const bool accumulate = call.node().get<bool>("accumulate", false);
  auto letters = indexed_letters(call, *index, pattern, Role::sum, true);
  if (!accumulate) {
    // Two positions may coincide: which value wins depends on the whole index.
    for (auto& operand : index->operands) {
      for (auto& letter : pattern.operands[operand]) letter = -1;
    }
    for (int d = 0; d < index->broadcast; ++d) letters[index->before + d] = -1;
  }
  // Values broadcast to the indexed shape, aligned at the right.
  std::vector<int64_t> shape;
  for (size_t d = 0; d < letters.size(); ++d) {
    int64_t size = -1;
    for (int i = 0; i < call.operand_count() && letters[d] >= 0; ++i) {
      for (int k = 0; k < call.rank(i); ++k) {
        if (pattern.operands[i][k] == letters[d]) size = call.shape(i)[k];
      }
    }
    shape.push_back(size);
  }
  const int offset = static_cast<int>(letters.size()) - call.rank(values);
  if (offset < 0) return {};
  for (int d = 0; d < call.rank(values); ++d) {
    const bool full = call.shape(values)[d] == shape[offset + d];
    pattern.operands[values][d] = full ? letters[offset + d] : -1;
  }
  if (accumulate) {
    // A value broadcast over a sharded index is added on every shard, which is right: each shard
    // has its own positions.
    pattern.addends = {0};
  }
  pattern.linear = {{0, values}};
  return pattern;
}

}  // namespace

void add_index_rules(Rules& rules) {
  add_text_rules(rules, {
                            {"aten::one_hot", "t* -> t* 1; num_classes"},
                        });
  rules.add("aten::gather", {gather});
  for (const char* op : {"aten::scatter.src", "aten::scatter.value", "aten::scatter_add"}) {
    rules.add(op, {scatter});
  }
  rules.add("aten::index_select", {index_select});
  rules.add("aten::index_add", {index_add});
  rules.add("aten::index.Tensor", {index});
  for (const char* op : {"aten::index_put", "aten::_unsafe_index_put"}) rules.add(op, {index_put});
  rules.add("aten::_unsafe_index.Tensor", {index});
}

}  // namespace perigee::shard
