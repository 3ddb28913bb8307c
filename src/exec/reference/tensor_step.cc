// adafactor and muon on boxes of parameters (graph/ops.h), composed of ATen ops, on any device.
// Elements are computed in float64, as in the CPU's kernels. The device itself tests whether the
// scale is NaN (then nothing changes), so that the host does not wait for it.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "exec/ops/step_number.h"
#include "exec/reference/ops.h"

namespace perigee::exec {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;
using Shape = std::vector<int64_t>;

constexpr double kLeastScale = 1e-3;  // lower limit of a parameter's root mean square (adafactor)

// Returns the box of `whole` with these sizes and first indices.
Tensor box_of(Tensor whole, const int64_t* begin, at::IntArrayRef sizes) {
  for (int64_t d = 0; d < whole.dim(); ++d) whole = whole.narrow(d, begin[d], sizes[d]);
  return whole;
}

void set_unless(const Tensor& skip, const Tensor& target, const Tensor& value) {
  target.copy_(at::where(skip, target.to(at::kDouble), value));
}

// The learning rate times the weight decay.
Tensor decayed(Operands in, const StepNumber& decay, const Tensor& rate) {
  return decay.position() < 0 ? rate * decay.attribute() : rate * in[decay.position()];
}

// A parameter of `shape`, whose last two dims are factored, in boxes.
struct Boxes {
  explicit Boxes(const Arguments& a)
      : gradients(a.operands("gradients")),
        begins(a.integers("begins")),
        shape(a.integers("shape")),
        factored(shape.size() > 1) {
    if (!factored) return;
    leading.assign(shape.begin(), shape.end() - 2);
    rows = columns = leading;
    rows.push_back(shape[shape.size() - 2]);
    columns.push_back(shape.back());
  }

  const int64_t* begin(size_t k) const { return begins.data() + k * shape.size(); }
  Tensor gradient(Operands in, size_t k, const Tensor& scale) const {
    return in[gradients[k]].to(at::kDouble) * scale;
  }
  double elements() const { return static_cast<double>(std::max<int64_t>(1, product(shape))); }
  static int64_t product(const Shape& list) {
    return std::accumulate(list.begin(), list.end(), int64_t{1}, std::multiplies<>());
  }

  // Return the sums over the last dim, and over the last but one, shaped as `rows` and `columns`.
  Tensor row_sums(const Tensor& sums) const { return sums.narrow(0, 0, product(rows)).view(rows); }
  Tensor column_sums(const Tensor& sums) const {
    return sums.narrow(0, product(rows), product(columns)).view(columns);
  }

  // Returns the sizes and first indices of a box without dim `dim`.
  static std::pair<Shape, Shape> without(at::IntArrayRef box, const int64_t* begin, int64_t dim) {
    Shape sizes, first;
    for (int64_t d = 0; d < static_cast<int64_t>(box.size()); ++d) {
      if (d == dim) continue;
      sizes.push_back(box[d]);
      first.push_back(begin[d]);
    }
    return {sizes, first};
  }
  Tensor row_box(const Tensor& of_rows, at::IntArrayRef box, size_t k) const {
    const auto [sizes, first] = without(box, begin(k), static_cast<int64_t>(box.size()) - 1);
    return box_of(of_rows, first.data(), sizes);
  }
  Tensor column_box(const Tensor& of_columns, at::IntArrayRef box, size_t k) const {
    const auto [sizes, first] = without(box, begin(k), static_cast<int64_t>(box.size()) - 2);
    return box_of(of_columns, first.data(), sizes);
  }

  std::vector<int> gradients;
  std::vector<int64_t> begins;
  Shape shape;
  bool factored;
  Shape leading, rows, columns;
};

double least_of(at::ScalarType type) {
  return type == at::kDouble     ? std::numeric_limits<double>::epsilon()
         : type == at::kBFloat16 ? 0.0078125
                                 : std::numeric_limits<float>::epsilon();
}

// Operands with second moments: factored (means by row and by column), or by element.
struct Moments {
  explicit Moments(const Arguments& a)
      : row(a.optional_operand("row_var")),
        column(a.optional_operand("col_var")),
        variance(a.find("variance") ? a.operands("variance") : std::vector<int>()) {}

  // Returns the update of box k, before the factor that all elements share.
  Tensor update(const Boxes& boxes, Operands in, size_t k, const Tensor& scale) const {
    const auto g = boxes.gradient(in, k, scale);
    if (!boxes.factored) {
      const auto& state = in[variance[k]];
      const double least = least_of(state.scalar_type());
      return g / state.to(at::kDouble).clamp_min(least * least).sqrt();
    }
    const double least = least_of(in[row].scalar_type());
    const auto rows = in[row].to(at::kDouble).view(boxes.rows);
    const auto columns = in[column].to(at::kDouble).view(boxes.columns);
    const auto means = rows.mean(-1).clamp_min(least);
    const auto shares = rows / means.unsqueeze(-1);
    const auto estimate = boxes.row_box(shares, g.sizes(), k).unsqueeze(-1) *
                          boxes.column_box(columns, g.sizes(), k).unsqueeze(-2);
    return g / estimate.clamp_min(least * least).sqrt();
  }

  int row, column;
  std::vector<int> variance;
};

}  // namespace

Kernel adafactor_sums(const Arguments& a) {
  return [boxes = Boxes(a), self = a.operand("self"), weights = a.operands("weights"),
          scale = a.operand("scale")](Operands in, Results, const Draw&) {
    const auto& sums = in[self];
    sums.zero_();
    for (size_t k = 0; k < weights.size(); ++k) {
      sums.select(0, -1).add_(in[weights[k]].to(at::kDouble).square().sum());
      if (!boxes.factored) continue;
      const auto squares = boxes.gradient(in, k, in[scale]).square();
      const auto box = squares.sizes();
      boxes.row_box(boxes.row_sums(sums), box, k).add_(squares.sum(-1));
      boxes.column_box(boxes.column_sums(sums), box, k).add_(squares.sum(-2));
    }
  };
}

Kernel adafactor_moments(const Arguments& a) {
  return [boxes = Boxes(a), moments = Moments(a), self = a.operand("self"),
          sums = a.operand("sums"), scale = a.operand("scale"), step = a.operand("step"),
          decay = a.number("beta2_decay")](Operands in, Results, const Draw&) {
    const auto skip = in[scale].isnan();
    const auto weight = in[step].pow(decay);
    const auto move = [&](const Tensor& state, const Tensor& now) {
      const auto old = state.to(at::kDouble);
      set_unless(skip, state, old + (now - old) * weight);
    };
    if (boxes.factored) {
      const auto rows = static_cast<double>(boxes.rows.back()),
                 columns = static_cast<double>(boxes.columns.back());
      move(in[moments.row], boxes.row_sums(in[sums]).view(in[moments.row].sizes()) / columns);
      move(in[moments.column], boxes.column_sums(in[sums]).view(in[moments.column].sizes()) / rows);
    } else {
      for (size_t k = 0; k < moments.variance.size(); ++k) {
        move(in[moments.variance[k]], boxes.gradient(in, k, in[scale]).square());
      }
    }
    in[self].zero_();
    for (size_t k = 0; k < boxes.gradients.size(); ++k) {
      const auto squares = moments.update(boxes, in, k, in[scale]).square().sum();
      in[self].add_(squares.masked_fill(skip, 0));
    }
  };
}

Kernel adafactor(const Arguments& a) {
  return
      [boxes = Boxes(a), moments = Moments(a), weights = a.operands("weights"),
       sums = a.operand("sums"), squares = a.operand("norm"), lr = a.operand("lr"),
       scale = a.operand("scale"), step = a.operand("step"), threshold = a.number("clip_threshold"),
       decay = StepNumber(a, "weight_decay")](Operands in, Results, const Draw&) {
        const auto skip = in[scale].isnan();
        const auto size = (in[sums].select(0, -1) / boxes.elements()).sqrt();
        const auto norm = (in[squares] / boxes.elements()).sqrt();
        const auto alpha = size.clamp_min(kLeastScale) * at::minimum(in[lr], in[step].rsqrt()) /
                           (norm / threshold).clamp_min(1);
        const auto shrink = 1 - decayed(in, decay, in[lr]);
        for (size_t k = 0; k < weights.size(); ++k) {
          const auto& weight = in[weights[k]];
          const auto update = moments.update(boxes, in, k, in[scale]);
          set_unless(skip, weight, weight.to(at::kDouble) * shrink - update * alpha);
        }
      };
}

Kernel muon_update(const Arguments& a) {
  return [self = a.operand("self"), buffers = a.operands("momentum_buffer"),
          gradients = a.operands("gradients"), scale = a.operand("scale"),
          begins = a.integers("begins"), momentum = a.number("momentum"),
          nesterov = a.flag("nesterov")](Operands in, Results, const Draw&) {
    const auto skip = in[scale].isnan();
    in[self].zero_();
    for (size_t k = 0; k < gradients.size(); ++k) {
      const auto g = in[gradients[k]].to(at::kDouble) * in[scale];
      const auto old = in[buffers[k]].to(at::kDouble).view(g.sizes());
      const auto now = old + (g - old) * (1 - momentum);
      const auto update = nesterov ? g + (now - g) * momentum : now;
      set_unless(skip, in[buffers[k]].view(g.sizes()), now);
      box_of(in[self], &begins[2 * k], g.sizes()).copy_(update.masked_fill(skip, 0));
    }
  };
}

void newton_schulz(const Tensor& x, const Tensor& squares, Tensor next, int64_t steps) {
  const bool flat = x.size(0) <= x.size(1);
  auto square = squares.select(0, 0), mixed = squares.select(0, 1);
  for (int64_t k = 0; k < steps; ++k) {
    flat ? at::mm_out(square, x, x.t()) : at::mm_out(square, x.t(), x);
    at::addmm_out(mixed, square, square, square, -4.7750, 2.0315);
    flat ? at::addmm_out(next, x, mixed, x, 3.4445, 1)
         : at::addmm_out(next, x, x, mixed, 3.4445, 1);
    x.copy_(next);
  }
}

Kernel orthogonalize(const Arguments& a) {
  return [self = a.operand("self"), squares = a.operand("squares"), other = a.operand("other"),
          steps = a.integer("steps")](Operands in, Results, const Draw&) {
    const auto& x = in[self];
    if (x.numel() == 0) return;
    const auto wide = x.to(at::kDouble);
    x.copy_(wide / (wide.norm() + 1e-7));
    newton_schulz(x, in[squares], in[other], steps);
  };
}

Kernel muon(const Arguments& a) {
  return [weights = a.operands("weights"), update = a.operand("update"), lr = a.operand("lr"),
          scale = a.operand("scale"), begins = a.integers("begins"),
          decay = StepNumber(a, "weight_decay")](Operands in, Results, const Draw&) {
    const auto skip = in[scale].isnan();
    const auto& whole = in[update];
    const double tall = static_cast<double>(whole.size(0)) /
                        static_cast<double>(std::max<int64_t>(1, whole.size(1)));
    const auto by = in[lr] * std::sqrt(std::max(1.0, tall)),
               shrink = 1 - decayed(in, decay, in[lr]);
    for (size_t k = 0; k < weights.size(); ++k) {
      const auto& weight = in[weights[k]];
      const auto step = box_of(whole, &begins[2 * k], weight.sizes()).to(at::kDouble) * by;
      set_unless(skip, weight, weight.to(at::kDouble) * shrink - step);
    }
  };
}

}  // namespace perigee::exec
