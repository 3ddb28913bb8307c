// adafactor on boxes of parameters (graph/ops.h): torch.optim.Adafactor's formulas. Elements and
// sums over ranks are computed in float64.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "exec/kernels/element.h"
#include "exec/kernels/kernels.h"
#include "exec/ops/step_number.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

constexpr double kLeastScale = 1e-3;  // lower limit of a parameter's root mean square

// Rows and columns of a box's elements in the whole parameter, whose last two dims are factored.
struct Layout {
  explicit Layout(std::vector<int64_t> whole) : shape(std::move(whole)) {
    factored = shape.size() > 1;
    columns = shape.empty() ? 1 : shape.back();
    rows = factored ? shape[shape.size() - 2] : 1;
    for (const auto size : shape) elements *= size;
    leading = rows * columns == 0 ? 0 : elements / (rows * columns);
  }

  // Calls f(index in the box, row, column); rows and columns are numbered over the leading
  // dims, too.
  template <class F>
  void each(at::IntArrayRef box, const int64_t* begin, F f) const {
    const int64_t dims = static_cast<int64_t>(shape.size());
    const int64_t wide = dims > 0 ? box[dims - 1] : 1, high = dims > 1 ? box[dims - 2] : 1;
    int64_t lead = 1;
    for (int64_t d = 0; d + 2 < dims; ++d) lead *= box[d];
    for (int64_t l = 0; l < lead; ++l) {
      int64_t rest = l, whole = 0, stride = 1;
      for (int64_t d = dims - 3; d >= 0; --d) {
        whole += (begin[d] + rest % box[d]) * stride;
        rest /= box[d];
        stride *= shape[d];
      }
      const int64_t first_row = dims > 1 ? begin[dims - 2] : 0;
      const int64_t first_column = dims > 0 ? begin[dims - 1] : 0;
      for (int64_t i = 0; i < high; ++i) {
        const int64_t row = whole * rows + first_row + i;
        for (int64_t j = 0; j < wide; ++j) {
          f((l * high + i) * wide + j, row, whole * columns + first_column + j);
        }
      }
    }
  }

  std::vector<int64_t> shape;
  bool factored = false;
  int64_t rows = 1, columns = 1, leading = 1, elements = 1;
};

struct Boxes {
  explicit Boxes(const Arguments& a)
      : gradients(a.operands("gradients")),
        begins(a.integers("begins")),
        layout(a.integers("shape")) {}
  const int64_t* begin(size_t k) const { return begins.data() + k * layout.shape.size(); }

  std::vector<int> gradients;
  std::vector<int64_t> begins;
  Layout layout;
};

// Calls f<G>(data, k) for each gradient.
template <class F>
void each_gradient(const Boxes& boxes, std::span<const Tensor> in, F f) {
  for (size_t k = 0; k < boxes.gradients.size(); ++k) {
    const auto& g = in[boxes.gradients[k]];
    const bool known = g.is_contiguous() && dispatch_gradient(g.scalar_type(), [&]<class G>() {
                         f(g.const_data_ptr<G>(), k);
                       });
    if (!known) {
      fail("exec", "adafactor needs contiguous floating point gradients, but got {}",
           c10::toString(g.scalar_type()));
    }
  }
}

template <class F>
void adafactor_dispatch(const Tensor& t, F f) {
  if (t.is_contiguous() && dispatch_element(t.scalar_type(), f)) return;
  fail("exec", "adafactor needs contiguous floating point parameters and states, but got {}",
       c10::toString(t.scalar_type()));
}

double least_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return std::numeric_limits<double>::epsilon();
    case at::kBFloat16:
      return 0.0078125;
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

// Operands with second moments: factored (means by row and by column), or by element.
struct Moments {
  Moments(const Arguments& a)
      : row(a.optional_operand("row_var")),
        column(a.optional_operand("col_var")),
        variance(a.find("variance") ? a.operands("variance") : std::vector<int>()) {}

  // The means of the row moments, by leading index.
  std::vector<double> row_means(const Layout& layout, const double* rows, double least) const {
    std::vector<double> means(static_cast<size_t>(layout.leading));
    for (int64_t l = 0; l < layout.leading; ++l) {
      double sum = 0;
      for (int64_t i = 0; i < layout.rows; ++i) sum += rows[l * layout.rows + i];
      means[l] = std::max(sum / static_cast<double>(layout.rows), least);
    }
    return means;
  }

  int row, column;
  std::vector<int> variance;
};

std::vector<double> doubles(const Tensor& t) {
  std::vector<double> values(static_cast<size_t>(t.numel()));
  adafactor_dispatch(t, [&]<class T>() {
    const T* p = t.const_data_ptr<T>();
    for (int64_t i = 0; i < t.numel(); ++i) values[i] = load(p, i);
  });
  return values;
}

// Calls f(k, index, update) for each element of each box, with the update before the factor that
// all elements share.
template <class F>
void each_update(const Boxes& boxes, const Moments& moments, std::span<const Tensor> in,
                 double scale, F f) {
  const auto& layout = boxes.layout;
  if (layout.factored) {
    const double least = least_of(in[moments.row].scalar_type());
    const auto rows = doubles(in[moments.row]), columns = doubles(in[moments.column]);
    const auto means = moments.row_means(layout, rows.data(), least);
    each_gradient(boxes, in, [&](const auto* g, size_t k) {
      layout.each(in[boxes.gradients[k]].sizes(), boxes.begin(k),
                  [&](int64_t i, int64_t row, int64_t column) {
                    const double estimate = rows[row] * columns[column] / means[row / layout.rows];
                    f(k, i, load(g, i) * scale / std::sqrt(std::max(estimate, least * least)));
                  });
    });
    return;
  }
  each_gradient(boxes, in, [&](const auto* g, size_t k) {
    const auto& v = in[moments.variance[k]];
    const double least = least_of(v.scalar_type());
    adafactor_dispatch(v, [&]<class T>() {
      const T* p = v.const_data_ptr<T>();
      for (int64_t i = 0; i < v.numel(); ++i) {
        const double estimate = load(p, i);
        f(k, i, load(g, i) * scale / std::sqrt(std::max(estimate, least * least)));
      }
    });
  });
}

}  // namespace

Kernel adafactor_sums(const Arguments& a) {
  return [boxes = Boxes(a), self = a.operand("self"), weights = a.operands("weights"),
          scale = a.operand("scale")](std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    const auto& layout = boxes.layout;
    double* sums = in[self].mutable_data_ptr<double>();
    std::fill(sums, sums + in[self].numel(), 0.0);
    double* columns = sums + layout.leading * layout.rows;
    double& squares = sums[in[self].numel() - 1];
    const double by = scalar(in[scale]);
    each_gradient(boxes, in, [&](const auto* g, size_t k) {
      const auto& w = in[weights[k]];
      adafactor_dispatch(w, [&]<class T>() {
        const T* p = w.const_data_ptr<T>();
        for (int64_t i = 0; i < w.numel(); ++i) {
          const double value = load(p, i);
          squares += value * value;
        }
      });
      if (!layout.factored) return;
      layout.each(w.sizes(), boxes.begin(k), [&](int64_t i, int64_t row, int64_t column) {
        const double value = load(g, i) * by;
        sums[row] += value * value;
        columns[column] += value * value;
      });
    });
  };
}

Kernel adafactor_moments(const Arguments& a) {
  return
      [boxes = Boxes(a), moments = Moments(a), self = a.operand("self"), sums = a.operand("sums"),
       scale = a.operand("scale"), step = a.operand("step"), decay = a.number("beta2_decay")](
          std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
        const auto& layout = boxes.layout;
        double& norm = *in[self].mutable_data_ptr<double>();
        norm = 0;
        const double by = scalar(in[scale]);
        if (std::isnan(by)) return;
        const double weight = std::pow(scalar(in[step]), decay);
        const auto move = [&](const Tensor& state, const double* sum, double count) {
          adafactor_dispatch(state, [&]<class T>() {
            T* p = state.mutable_data_ptr<T>();
            for (int64_t i = 0; i < state.numel(); ++i) {
              const double old = load(p, i);
              store(p, i, static_cast<Wide<T>>(old + (sum[i] / count - old) * weight));
            }
          });
        };
        if (layout.factored) {
          const double* rows = in[sums].const_data_ptr<double>();
          move(in[moments.row], rows, static_cast<double>(layout.columns));
          move(in[moments.column], rows + layout.leading * layout.rows,
               static_cast<double>(layout.rows));
        } else {
          each_gradient(boxes, in, [&](const auto* g, size_t k) {
            const auto& state = in[moments.variance[k]];
            adafactor_dispatch(state, [&]<class T>() {
              T* p = state.mutable_data_ptr<T>();
              for (int64_t i = 0; i < state.numel(); ++i) {
                const double old = load(p, i), value = load(g, i) * by;
                store(p, i, static_cast<Wide<T>>(old + (value * value - old) * weight));
              }
            });
          });
        }
        each_update(boxes, moments, in, by,
                    [&](size_t, int64_t, double update) { norm += update * update; });
      };
}

Kernel adafactor(const Arguments& a) {
  return [boxes = Boxes(a), moments = Moments(a), weights = a.operands("weights"),
          sums = a.operand("sums"), squares = a.operand("norm"), lr = a.operand("lr"),
          scale = a.operand("scale"), step = a.operand("step"),
          threshold = a.number("clip_threshold"), decay = StepNumber(a, "weight_decay")](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    const double by = scalar(in[scale]);
    if (std::isnan(by)) return;
    const double rate = scalar(in[lr]);
    const double elements = static_cast<double>(std::max<int64_t>(1, boxes.layout.elements));
    const double size = std::sqrt(in[sums].const_data_ptr<double>()[in[sums].numel() - 1] /
                                  elements);
    const double norm = std::sqrt(scalar(in[squares]) / elements);
    const double alpha = std::max(kLeastScale, size) *
                         std::min(rate, 1 / std::sqrt(scalar(in[step]))) /
                         std::max(1.0, norm / threshold);
    const double shrink = 1 - rate * decay.of(in);
    each_update(boxes, moments, in, by, [&](size_t k, int64_t i, double update) {
      const auto& w = in[weights[k]];
      adafactor_dispatch(w, [&]<class T>() {
        T* p = w.mutable_data_ptr<T>();
        store(p, i, static_cast<Wide<T>>(load(p, i) * shrink - alpha * update));
      });
    });
  };
}

}  // namespace perigee::exec::kernels
