// Layer norm, whose statistics are float32 for half types, and whose weights may have another type
// than its rows, on every device. And norms of sums.
#include <ATen/ATen.h>

#include <array>
#include <optional>

#include "base/fail.h"
#include "exec/reference/ops.h"
#include "exec/tensor.h"

namespace perigee::exec {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

bool is_half(const Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}

// The types that LibTorch's kernels get. Beside rows of a half type, those of the CPU keep statistics
// in float32 only if weights are float32; those of a GPU take no weights of another type, so that
// rows beside such weights are float32, too.
struct Types {
  at::ScalarType rows, weights;

  Types(const Tensor& x, Operands in, int weight, int bias)
      : rows(x.scalar_type()), weights(x.scalar_type()) {
    const auto differs = [&](int vector) {
      return vector >= 0 && in[vector].scalar_type() != x.scalar_type();
    };
    if (!is_half(x)) return;
    if (x.is_cpu() || differs(weight) || differs(bias)) weights = at::kFloat;
    if (!x.is_cpu()) rows = weights;
  }

  // Returns a weight or bias. For an op without it, returns a tensor of `otherwise` or, where rows
  // have the weights' type, none.
  Tensor weight(Operands in, int position, const std::vector<int64_t>& shape, double otherwise,
                const Tensor& x) const {
    if (position >= 0) return in[position].to(weights);
    if (rows == weights) return {};
    return at::full(shape, otherwise, x.options().dtype(weights));
  }
};

// aten::native_layer_norm of a tensor that is given apart from the other operands.
class Forward {
 public:
  // `first`: the result that is the output; the statistics follow.
  Forward(const Arguments& a, size_t first)
      : weight_(a.optional_operand("weight")),
        bias_(a.optional_operand("bias")),
        shape_(a.integers("normalized_shape")),
        eps_(a.number("eps")),
        first_(first) {
    if (a.wanted(first)) type_ = scalar_type(a.type(first).dtype);
    for (size_t i = 0; i < types_.size(); ++i) {
      if (a.wanted(first + 1 + i)) types_[i] = scalar_type(a.type(first + 1 + i).dtype);
    }
  }

  void operator()(const Tensor& x, Operands in, Results out) const {
    const Types types(x, in, weight_, bias_);
    auto [y, mean, rstd] = at::native_layer_norm(x.to(types.rows), shape_,
                                                 types.weight(in, weight_, shape_, 1, x),
                                                 types.weight(in, bias_, shape_, 0, x), eps_);
    y = y.to(x.scalar_type());
    out[first_] = y.to(type_.value_or(y.scalar_type()));
    if (types_[0]) out[first_ + 1] = mean.to(*types_[0]);
    if (types_[1]) out[first_ + 2] = rstd.to(*types_[1]);
  }

 private:
  int weight_, bias_;
  std::vector<int64_t> shape_;
  double eps_;
  size_t first_;
  std::optional<at::ScalarType> type_;                  // of the output, where it is needed
  std::array<std::optional<at::ScalarType>, 2> types_;  // of mean and rstd, where they are needed
};

// The results of a norm's gradient in a lower precision, where they are needed: the gradient of x, and
// the sum of its rows.
class Rounded {
 public:
  // `first`: the first of these results.
  Rounded(const Arguments& a, size_t first) : first_(first), sum_(a.wanted(first + 1)) {
    if (a.wanted(first)) type_ = scalar_type(a.type(first).dtype);
  }
  void operator()(Results out) const {
    if (!type_) return;
    const auto low = out[first_] = out[0].to(*type_, false, /*copy=*/true);
    if (sum_) out[first_ + 1] = at::sum_to(low, at::IntArrayRef{low.size(-1)});
  }

 private:
  size_t first_;
  bool sum_;
  std::optional<at::ScalarType> type_;
};

// self + other in self's type.
Tensor sum_of(const Tensor& self, const Tensor& other) {
  return at::add(self, other).to(self.scalar_type());
}

}  // namespace

Kernel layer_norm(const Arguments& a) {
  return [norm = Forward(a, 0), self = a.operand("input")](Operands in, Results out, const Draw&) {
    norm(in[self], in, out);
  };
}

Kernel add_layer_norm(const Arguments& a) {
  return [norm = Forward(a, 1), self = a.operand("self"), other = a.operand("other")](
             Operands in, Results out, const Draw&) {
    out[0] = sum_of(in[self], in[other]);
    norm(out[0], in, out);
  };
}

Kernel layer_norm_backward(const Arguments& a) {
  const auto* found = a.find("output_mask");
  const auto* masks = found ? std::get_if<std::vector<bool>>(found) : nullptr;
  if (!masks || masks->size() != 3) fail("exec", "{} needs an output_mask of three", a.name());
  return [grad = a.operand("grad_out"), self = a.operand("input"), mean = a.operand("mean"),
          rstd = a.operand("rstd"), weight = a.optional_operand("weight"),
          bias = a.optional_operand("bias"), shape = a.integers("normalized_shape"),
          other = a.optional_operand("other"), rounded = Rounded(a, 3),
          mask = std::array<bool, 3>{(*masks)[0], (*masks)[1], (*masks)[2]}](
             Operands in, Results out, const Draw&) {
    const auto& x = in[self];
    const Types types(x, in, weight, bias);
    // The kernels read statistics of float32 for half types.
    const auto statistics = [&](int position) {
      return is_half(x) ? in[position].to(at::kFloat) : in[position];
    };
    const auto wanted = [&](int i, int position) { return mask[i] && position >= 0; };
    auto results = at::native_layer_norm_backward(
        in[grad].to(types.rows), x.to(types.rows), shape, statistics(mean), statistics(rstd),
        types.weight(in, weight, shape, 1, x), types.weight(in, bias, shape, 0, x),
        {mask[0], wanted(1, weight), wanted(2, bias)});
    if (mask[0]) out[0] = std::get<0>(results).to(x.scalar_type());
    if (mask[0] && other >= 0) out[0] = sum_of(out[0], in[other]);
    if (wanted(1, weight)) out[1] = std::get<1>(results).to(in[weight].scalar_type());
    if (wanted(2, bias)) out[2] = std::get<2>(results).to(in[bias].scalar_type());
    rounded(out);
  };
}

Kernel add_rms_norm(const Arguments& a) {
  // The op without its addition: operands (sum, weight?).
  Op op{"perigee::rms_norm", {{"self", graph::ValueId{0}}}, {}};
  const int weight = a.optional_operand("weight");
  if (weight >= 0) op.args.emplace_back("weight", graph::ValueId{1});
  op.args.emplace_back("eps", a.number("eps"));
  op.outputs.assign(a.op().outputs.begin() + 1, a.op().outputs.end());
  return [self = a.operand("self"), other = a.operand("other"), weight, norm = reference_op(op)](
             Operands in, Results out, const Draw& draw) {
    out[0] = sum_of(in[self], in[other]);
    std::vector<Tensor> operands = {out[0]};
    if (weight >= 0) operands.push_back(in[weight]);
    norm(operands, out.subspan(1), draw);
  };
}

Kernel rms_norm_backward_add(const Arguments& a) {
  Op op = a.op();
  op.name = "perigee::rms_norm_backward";
  op.outputs.resize(std::min<size_t>(op.outputs.size(), 2));
  return [other = a.operand("other"), rounded = Rounded(a, 2), norm = reference_op(op)](
             Operands in, Results out, const Draw& draw) {
    norm(in, out.first(std::min<size_t>(out.size(), 2)), draw);
    out[0] = sum_of(out[0], in[other]);
    rounded(out);
  };
}

}  // namespace perigee::exec
