// Reductions. Over a sharded dim a sum is Partial(sum), amax Partial(max); statistics that cannot
// be combined keep their reduced dims whole.
#include "base/error.h"
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

// Pattern of an op that reduces `reduced` dims of operand 0; `whole` ones may not be sharded,
// others have `role`.
std::optional<Pattern> reduced_pattern(const Call& call, const std::vector<bool>& reduced,
                                       bool whole, Role role) {
  auto pattern = whole_pattern(call);
  const int rank = call.rank(0);
  for (int d = 0; d < rank; ++d) {
    if (!reduced[d]) {
      pattern.operands[0][d] = pattern.add();
    } else if (!whole) {
      pattern.operands[0][d] = pattern.add(role);
    }
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (!call.has_result(r)) continue;
    std::vector<int> kept;
    const bool keepdim = call.result_rank(r) == rank;
    for (int d = 0; d < rank; ++d) {
      if (!reduced[d]) kept.push_back(pattern.operands[0][d]);
      if (reduced[d] && keepdim) kept.push_back(-1);
    }
    if (static_cast<int>(kept.size()) != call.result_rank(r)) return {};
    pattern.results[r] = kept;
  }
  return pattern;
}

template <Role role>
std::optional<Pattern> combining(const Call& call) {
  return reduced_pattern(call, call.named_dims("dim", call.rank(0)), false, role);
}

std::optional<Pattern> sum(const Call& call) {
  auto pattern = combining<Role::sum>(call);
  if (pattern && graph::is_floating(call.operand_type(0).dtype)) pattern->linear = {{0}};
  return pattern;
}

// A mean over a sharded dim is the local sum over the global count.
std::vector<graph::ValueId> lower_mean(RuleLowering& lowering) {
  const auto& call = lowering.call;
  const auto reduced = call.named_dims("dim", call.rank(0));
  bool sharded = false;
  double count = 1;
  for (int d = 0; d < call.rank(0); ++d) {
    if (!reduced[d]) continue;
    sharded |= !lowering.axes_of(0, d).empty();
    count *= static_cast<double>(call.shape(0)[d]);
  }
  auto args = lowering.local_args();
  if (!sharded) return lowering.emit(std::move(args));
  const auto type = lowering.local_types()[0];
  const bool all = call.node().op == "aten::mean";
  // A sum in 16 bits may be too large for its type, or lose small terms, where the mean does not.
  auto wide = type;
  if (graph::size_of(type.dtype) < 4) {
    wide.dtype = graph::DType::float32;
    std::erase_if(args, [](const auto& arg) { return arg.first == "dtype"; });
    args.emplace_back("dtype", wide.dtype);
  }
  const auto total = lowering.emit(all ? "aten::sum" : "aten::sum.dim_IntList", args, wide);
  const auto mean = lowering.emit("aten::div.Scalar", {{"self", total}, {"other", count}}, wide);
  return {wide == type ? mean : lowering.emit("perigee::cast", {{"self", mean}}, type)};
}

// The reduced dims must be whole: shards' results cannot be combined, or depend on positions.
std::optional<Pattern> whole_reduced(const Call& call) {
  return reduced_pattern(call, call.named_dims("dim", call.rank(0)), true, Role::free);
}

// Same shape, computed along a dim: softmax, cumsum, sort.
std::optional<Pattern> along(const Call& call) {
  if (call.rank(0) == 0) return whole_pattern(call);
  std::vector<bool> whole(call.rank(0), false);
  whole[call.dim("dim", call.rank(0), call.rank(0) - 1)] = true;
  // topk and kthvalue change the dim's size; the others correspond.
  auto pattern = whole_pattern(call);
  for (int d = 0; d < call.rank(0); ++d) {
    if (!whole[d]) pattern.operands[0][d] = pattern.add();
  }
  for (int i = 1; i < call.operand_count(); ++i) {
    if (call.shape(i) != call.shape(0)) return {};
    pattern.operands[i] = pattern.operands[0];
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (!call.has_result(r)) continue;
    if (call.result_rank(r) != call.rank(0)) return {};
    pattern.results[r] = pattern.operands[0];
  }
  return pattern;
}

std::optional<Pattern> along_linear(const Call& call) {
  auto pattern = along(call);
  if (pattern) pattern->linear = {{0}};
  return pattern;
}

// Forms with a single dim: an int that defaults to the last dim or the flattened tensor.
std::optional<Pattern> along_dropped(const Call& call) {
  std::vector<bool> reduced(call.rank(0), !call.node().find("dim"));
  if (call.rank(0) > 0 && call.node().find("dim")) {
    reduced[call.dim("dim", call.rank(0), call.rank(0) - 1)] = true;
  }
  return reduced_pattern(call, reduced, true, Role::free);
}

// kthvalue, median.dim and mode, whose dim is -1 when left out.
std::optional<Pattern> along_last_dropped(const Call& call) {
  std::vector<bool> reduced(call.rank(0), false);
  if (call.rank(0) > 0) reduced[call.dim("dim", call.rank(0), call.rank(0) - 1)] = true;
  return reduced_pattern(call, reduced, true, Role::free);
}

}  // namespace

void add_reduce_rules(Rules& rules) {
  for (const char* op : {"aten::sum", "aten::sum.dim_IntList"}) rules.add(op, {sum});
  for (const char* op : {"aten::mean", "aten::mean.dim"}) rules.add(op, {sum, lower_mean});
  for (const char* op : {"aten::count_nonzero", "aten::count_nonzero.dim_IntList"}) {
    rules.add(op, {combining<Role::sum>});
  }
  for (const char* op : {"aten::amax", "aten::max"}) rules.add(op, {combining<Role::max>});
  rules.add("perigee::fp8_amax_rows", {combining<Role::max>});
  rules.add("perigee::fp8_amax", {[](const Call& call) {
              const bool own = call.result_rank(0) > 0;
              if (!own) return combining<Role::max>(call);
              auto pattern = whole_pattern(call);
              for (int& dim : pattern.operands[0]) dim = pattern.add(Role::max);
              pattern.own_results = {0};
              return std::optional(pattern);
            }});
  for (const char* op : {"aten::amin", "aten::min"}) rules.add(op, {combining<Role::min>});
  for (const char* op :
       {"aten::var.correction", "aten::std.correction", "aten::var_mean.correction",
        "aten::std_mean.correction", "aten::logsumexp", "aten::norm.Scalar",
        "aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype", "aten::linalg_vector_norm",
        "aten::prod", "aten::all", "aten::any", "aten::all.dims", "aten::any.dims",
        "aten::nansum"}) {
    rules.add(op, {whole_reduced});
  }
  for (const char* op : {"aten::max.dim", "aten::min.dim", "aten::prod.dim_int", "aten::all.dim",
                         "aten::any.dim", "aten::argmax", "aten::argmin"}) {
    rules.add(op, {along_dropped});
  }
  for (const char* op :
       {"aten::median.dim", "aten::nanmedian.dim", "aten::kthvalue", "aten::mode"}) {
    rules.add(op, {along_last_dropped});
  }
  for (const char* op : {"aten::cumprod", "aten::logcumsumexp", "aten::cummax", "aten::cummin",
                         "aten::sort", "aten::sort.stable", "aten::argsort", "aten::topk",
                         "aten::_softmax", "aten::_log_softmax"}) {
    rules.add(op, {along});
  }
  for (const char* op :
       {"aten::cumsum", "aten::_softmax_backward_data", "aten::_log_softmax_backward_data"}) {
    rules.add(op, {along_linear});
  }
}

}  // namespace perigee::shard
