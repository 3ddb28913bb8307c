#include "shard/rules/rule.h"

#include <algorithm>

#include "base/error.h"
#include "graph/ops.h"
#include "shard/rules/families.h"

namespace perigee::shard {

Call::Call(const graph::Graph& graph, const graph::Node& node) : graph_(graph), node_(node) {
  for (size_t a = 0; a < node.args.size(); ++a) {
    const auto take = [&](graph::ValueId v) {
      if (!v.defined()) return;
      operands_.push_back(v);
      arguments_.push_back(static_cast<int>(a));
    };
    const auto& arg = node.args[a].second;
    if (const auto* v = std::get_if<graph::ValueId>(&arg)) {
      take(*v);
    } else if (const auto* list = std::get_if<std::vector<graph::ValueId>>(&arg)) {
      for (auto v : *list) take(v);
    }
  }
}

int Call::find(std::string_view argument) const {
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (node_.args[arguments_[i]].first == argument) return static_cast<int>(i);
  }
  return -1;
}

const std::string& Call::argument_of(int i) const { return node_.args[arguments_[i]].first; }

int Call::dim(std::string_view argument, int rank, int otherwise) const {
  const auto* arg = node_.find(argument);
  if (!arg || std::holds_alternative<std::monostate>(*arg)) return otherwise;
  const int64_t d = node_.get<int64_t>(argument, otherwise);
  return static_cast<int>(d < 0 ? d + rank : d);
}

std::vector<bool> Call::named_dims(std::string_view argument, int rank) const {
  const auto* arg = node_.find(argument);
  std::vector<int64_t> dims;
  if (arg) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(arg)) dims = *list;
    if (const auto* one = std::get_if<int64_t>(arg)) dims = {*one};
  }
  std::vector<bool> named(rank, dims.empty());
  for (auto d : dims) {
    const int64_t from_front = d < 0 ? d + rank : d;
    if (from_front >= 0 && from_front < rank) named[from_front] = true;
  }
  return named;
}

int Pattern::add(Role role, bool even) {
  dims.push_back({role, even});
  return static_cast<int>(dims.size()) - 1;
}

std::optional<mesh::Placement> Pattern::placed(DimCut cut, bool of_result, int tensor) const {
  for (const auto& part : inner) {
    if (part.dim == cut.dim && part.of_result == of_result && part.tensor == tensor) {
      return mesh::Placement::shard(part.tensor_dim, part.run, cut.zigzag);
    }
  }
  const auto& letters = (of_result ? results : operands)[tensor];
  const auto found = std::find(letters.begin(), letters.end(), cut.dim);
  if (found == letters.end()) return {};
  return mesh::Placement::shard(static_cast<int>(found - letters.begin()), cut.run, cut.zigzag);
}

std::optional<DimCut> Pattern::cut_of(const mesh::Placement& placement, bool of_result,
                                      int tensor) const {
  const auto& letters = (of_result ? results : operands)[tensor];
  const int dim = letters[placement.dim];
  if (placement.run == 0) {
    if (dim < 0 || (placement.zigzag && dims[dim].one_piece && !dims[dim].zigzag)) return {};
    return DimCut{dim, 0, placement.zigzag};
  }
  for (const auto& part : inner) {
    if (part.of_result == of_result && part.tensor == tensor && part.tensor_dim == placement.dim &&
        part.run == placement.run) {
      return DimCut{part.dim, 0, placement.zigzag};
    }
  }
  if (dim < 0 || dims[dim].even || dims[dim].one_piece) return {};
  return DimCut{dim, placement.run, placement.zigzag};
}

bool fits(const Pattern& pattern, const Call& call) {
  if (static_cast<int>(pattern.operands.size()) != call.operand_count()) return false;
  if (static_cast<int>(pattern.results.size()) != call.result_count()) return false;
  std::vector<int64_t> size(pattern.dims.size(), -1);
  const auto tensor_fits = [&](const std::vector<int>& letters, const std::vector<int64_t>& shape) {
    if (letters.size() != shape.size()) return false;
    for (size_t d = 0; d < shape.size(); ++d) {
      const int letter = letters[d];
      if (letter < 0) continue;
      if (std::count(letters.begin(), letters.end(), letter) != 1) return false;
      if (size[letter] < 0) size[letter] = shape[d];
      if (size[letter] != shape[d] && !pattern.dims[letter].even) return false;
    }
    return true;
  };
  for (int i = 0; i < call.operand_count(); ++i) {
    if (!tensor_fits(pattern.operands[i], call.shape(i))) return false;
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (call.has_result(r) && !tensor_fits(pattern.results[r], call.result_shape(r))) return false;
  }
  return true;
}

void Rules::add(std::string op, Rule rule) {
  rules_.insert_or_assign(std::move(op), std::move(rule));
}

void Rules::add_rule(std::string op, std::string_view text) {
  auto rule = parse_rule(op, text);
  add(std::move(op), std::move(rule));
}

const Rule* Rules::find(std::string_view op) const {
  const auto found = rules_.find(op);
  if (found != rules_.end()) return &found->second;
  static const Rule pointwise{pointwise_pattern};
  return graph::is_pointwise(op) ? &pointwise : nullptr;
}

const Rules& Rules::built_in() {
  static const Rules rules = [] {
    Rules all;
    for (auto add_family :
         {add_pointwise_rules, add_matmul_rules, add_transform_rules, add_view_rules,
          add_reduce_rules, add_norm_rules, add_batch_norm_rules, add_loss_rules,
          add_vocabulary_rules, add_attention_rules, add_expert_rules, add_convolution_rules,
          add_index_rules, add_spatial_rules, add_random_rules}) {
      add_family(all);
    }
    return all;
  }();
  return rules;
}

}  // namespace perigee::shard
