// CUDA kernels of Perigee's own ops over raw device memory. No torch header, which would add a
// minute of nvcc per file. Tensors are contiguous; bfloat16 and float16 are computed in float32.
#pragma once

#include <cstdint>

#include "cuda/kernels/random.h"
#include "exec/ops/loss_scale_step.h"
#include "optim/all.h"

typedef struct CUstream_st* cudaStream_t;

namespace perigee::cuda {

enum class Element : uint8_t { float32, float64, bfloat16, float16, int64, int32, uint8, boolean };

// An invalid operand that a kernel reports, in host memory that the device writes to. The rank's
// first fault is kept.
struct Fault {
  enum Kind : int32_t { none = 0, label = 1 };
  int32_t kind = none;
  int64_t value = 0;  // label: the invalid label
  int64_t limit = 0;  // label: number of classes
};

struct Rows {
  int64_t rows = 0;
  int64_t columns = 0;
};

// ---- random.cu

void fill_random(void* out, Element element, const Drawing& drawing, const RandomPlace& place,
                 cudaStream_t stream);

// out = self * mask / (1 - p); out may be self. Floating types.
void dropout(const void* self, void* out, Element element, double p, const RandomPlace& place,
             cudaStream_t stream);

// ---- optimizer.cu: the types that graph/ops.h lists. lr, step and scale (or nullptr: 1) are read
// from device memory.

struct OptimizerTypes {
  Element parameter, state, gradient;
};

struct StepScalars {
  const double* lr = nullptr;
  const double* step = nullptr;
  const double* scale = nullptr;
  const double* weight_decay = nullptr;  // nullptr: fixed_weight_decay
  double fixed_weight_decay = 0;
  bool guarded = false;  // a NaN scale leaves parameters and states unchanged
};

inline constexpr int kMostOptimizerStates = 3;

struct OptimizerTensors {
  int64_t elements = 0;
  void* parameter;
  void* states[kMostOptimizerStates];  // in the order of the optimizer's kStates
  unsigned held = 0;                   // bit k: states[k] exists
  const void* gradient;
  const float* noise = nullptr;  // for bfloat16 parameters
  void* low = nullptr;           // of float32 parameters: their values in `low_element`, 16 bits
  Element low_element = Element::bfloat16;
};

// One step of an optimizer on a bucket. The last argument only selects the optimizer by its type.
#define PERIGEE_STEP(O)                                                          \
  void step_bucket(const OptimizerTensors& tensors, const OptimizerTypes& types, \
                   const optim::O::Numbers& numbers, const StepScalars& scalars, \
                   cudaStream_t stream, const optim::O*);
PERIGEE_ELEMENTWISE_OPTIMIZERS(PERIGEE_STEP)
#undef PERIGEE_STEP

// ---- column_sums.cu: float32, float64, bfloat16, float16; rows of whole pieces of 16 bytes.

// partials [parts, columns] of float32 or, for float64, float64: row p sums the p-th of `parts`
// ranges of rows of x [rows, columns].
void column_sums(const void* x, void* partials, int64_t parts, Rows shape, Element element,
                 cudaStream_t stream);

// The sums of the rows of such partials, which are next to each other: [count, parts, columns].
struct PartSums {
  static constexpr int kMost = 3;
  int count = 0;
  void* out[kMost];  // [columns]
  Element elements[kMost];
};
// `element`: of the partials.
void sum_parts(const void* partials, int64_t parts, int64_t columns, Element element,
               const PartSums& sums, cudaStream_t stream);

// ---- gelu.cu: types and rows as for column_sums. exact: by erf, else by tanh.

// d = g * GELU'(x); partials as those of column_sums, of d before it is rounded.
void gelu_backward_sum(const void* g, const void* x, void* d, void* partials, int64_t parts,
                       Rows shape, bool exact, Element element, cudaStream_t stream);

// ---- copy_rows.cu: elements of two bytes.

struct RowsFrom {
  const void* data;
  int64_t stride = 0;  // of rows, in elements
  Rows shape;
};

// to [wanted.rows, wanted.columns] = from, with zeros beyond it.
void copy_rows(const RowsFrom& from, void* to, Rows wanted, cudaStream_t stream);

// ---- norm.cu

// A sum of squares is the sum over pieces of tensors, which depend on sizes only, in float64.
inline constexpr int64_t kPieceElements = int64_t{1} << 15;
inline int64_t square_pieces(int64_t elements) {
  return (elements + kPieceElements - 1) / kPieceElements;
}

// Tensors of one type.
struct TensorList {
  static constexpr int kMost = 32;
  int count = 0;
  const void* tensors[kMost];
  int64_t elements[kMost];
  int64_t pieces[kMost + 1] = {0};  // of the tensors before it; at `count`: of all tensors
};

// Writes the sums of squares of all pieces of the list, in its order.
void square_partials(const TensorList& list, Element element, double* partials,
                     cudaStream_t stream);
// out = the sum of n partials in a fixed order.
void sum_partials(const double* partials, int64_t n, double* out, cudaStream_t stream);

// norm = f * sqrt(squared); scale = f * min(1, max_norm / (norm + 1e-6)), or f where max_norm <= 0;
// f is factor, or factor / *loss_scale and scale NaN where squared is not finite. norm and scale
// may be nullptr.
struct ClipNumbers {
  double max_norm = 0, factor = 1;
};
void clip_scale(const double* squared, const float* loss_scale, const ClipNumbers& numbers,
                double* norm, double* scale, cudaStream_t stream);

void update_loss_scale(const exec::LossScaleScalars& state, const exec::LossScaleNumbers& numbers,
                       const double* squared_norm, const double* step, const double* examined,
                       cudaStream_t stream);

// ---- row_norm.cu: float32, float64, bfloat16, float16; statistics and partials are float32 or, for
// float64, float64.

// Layer norm of the rows of x [rows, columns], or RMS norm, whose mean and bias are nullptr.
struct RowNorm {
  const void* x = nullptr;
  const void* weight = nullptr;  // [columns], or nullptr: 1
  const void* bias = nullptr;    // [columns], or nullptr: 0
  void* mean = nullptr;          // [rows]
  void* rstd = nullptr;          // [rows]
  Rows shape;
  Element element = Element::float32;
  // Of y and g: as x, or bfloat16 or float16 where x is float32.
  Element outer = Element::float32;
};

// sum = x + other, which stands for x. sum may be x, and other where it has x's type. Otherwise x is
// float32, and other bfloat16 or float16. nullptr: nothing is added.
struct Added {
  const void* other = nullptr;
  Element element = Element::float32;  // of other
  void* sum = nullptr;
};

// y = (x - mean) rstd weight + bias. Writes the statistics.
void row_norm(const RowNorm& norm, const Added& added, void* y, double eps, cudaStream_t stream);

// What the gradient of a norm makes. A sum is given by partial sums [parts, columns], of which row p
// is that of the p-th of `parts` ranges of rows. nullptr: not needed.
struct NormGradients {
  const void* other = nullptr;  // added to d_x
  void* d_x = nullptr;          // may be g, x or other
  // With d_x, where x is float32: d_x in bfloat16 or float16.
  void* low = nullptr;
  Element low_element = Element::bfloat16;
  void* of_weight = nullptr;  // sums g (x - mean) rstd
  void* of_bias = nullptr;    // sums g
  void* of_low = nullptr;     // with low: sums its rows
  int64_t parts = 1;
};

// For the upstream gradient g. Rows of at most 4,096 elements (16 bits: 8,192), in whole packs at
// multiples of 16 bytes, are read once.
void row_norm_backward(const RowNorm& norm, const void* g, const NormGradients& to,
                       cudaStream_t stream);

// ---- swiglu.cu: float32, float64, bfloat16, float16; n elements. A result may be an operand.

// y = silu(gate) * up.
void swiglu(const void* gate, const void* up, void* y, int64_t n, Element element,
            cudaStream_t stream);
void swiglu_backward(const void* g, const void* gate, const void* up, void* d_gate, void* d_up,
                     int64_t n, Element element, cudaStream_t stream);

// ---- sequence.cu: float32, float64, bfloat16, float16.

// [batch, heads, positions, columns] with contiguous columns; strides in elements.
struct Heads {
  int64_t batch = 0, heads = 0, positions = 0, columns = 0;
  int64_t batch_stride = 0, head_stride = 0, position_stride = 0;
};
// angles: of cos and sin, which have the type of x and y or, beside 16 bits, float32.
struct RotaryTypes {
  Element element, angles;
};
// y = x cos + cat(-second, first half of x) sin, or the derivative of that; y is contiguous, cos
// and sin [positions, columns].
void rotary(const void* x, const void* cos, const void* sin, void* y, const Heads& shape,
            bool backward, RotaryTypes types, cudaStream_t stream);

// The result of attention to some of the keys: output [rows, columns], logsumexp [rows].
struct Attended {
  const void* output;
  const void* logsumexp;
};
// Merges attention to two sets of keys. All tensors are float32 (or, for float64, float64) except
// other's output, whose type is `element`.
void merge_attention(const Attended& self, const Attended& other, void* output, void* logsumexp,
                     Rows shape, Element element, cudaStream_t stream);

// ---- eight_bits.cu

// The largest magnitude of what is cast, as that of largest_magnitude: wanted where `out` is given.
// workspace: as many floats as workspace_of_cast returns.
struct CastMagnitude {
  float* workspace = nullptr;
  float* out = nullptr;
};
int64_t workspace_of_cast(Rows shape, bool transposed);

// y = x * scale as E4M3 or E5M2, to nearest even, saturating; n of them.
void cast_to_eight_bits(const void* x, const float* scale, void* y, int64_t n, Element element,
                        bool e5m2, CastMagnitude magnitude, cudaStream_t stream);
// y [columns, rows] = the same of the transpose of x [rows, columns]; at most 65,535 * 64 columns.
void cast_transposed_to_eight_bits(const void* x, const float* scale, void* y, Rows shape,
                                   Element element, bool e5m2, CastMagnitude magnitude,
                                   cudaStream_t stream);

// out = the largest magnitude of n elements, 0 of none; NaN where one is NaN. partials [parts], at
// least one, is workspace.
void largest_magnitude(const void* x, float* partials, int64_t parts, float* out, int64_t n,
                       Element element, cudaStream_t stream);

// ---- eight_bit_rows.cu

// A format, and the number that a row's largest magnitude becomes.
struct EightBits {
  bool e5m2 = false;
  float largest = 448;
};

// out [rows] = the largest magnitudes of the rows, 0 of no columns; NaN where one is NaN.
void magnitudes_of_rows(const void* x, float* out, Rows shape, Element element,
                        cudaStream_t stream);
// out [columns] = those of the columns. partials [parts, columns], at least one part, is workspace.
void magnitudes_of_columns(const void* x, float* partials, int64_t parts, float* out, Rows shape,
                           Element element, cudaStream_t stream);

// y = each row of x times its scale, to nearest even, saturating; inverse [rows] = 1 / scale. amax:
// the rows' magnitudes, or nullptr: they are found.
void cast_rows_to_eight_bits(const void* x, const float* amax, void* y, float* inverse, Rows shape,
                             Element element, EightBits format, cudaStream_t stream);
// y [columns, rows] = the same of the transpose of x [rows, columns], whose magnitudes are given; at
// most 65,535 * 64 columns.
void cast_columns_to_eight_bits(const void* x, const float* amax, void* y, float* inverse,
                                Rows shape, Element element, EightBits format, cudaStream_t stream);

// ---- cross_entropy.cu: logits [rows, columns] of float32, float64, bfloat16 or float16;
// logsumexp and upstream gradient are float32 or, for float64, float64.

struct LossNumbers {
  int64_t ignore_index = -100;
  double smoothing = 0;
  int64_t stride = 0, d_stride = 0;  // of rows of the logits and of their gradient, in elements
};

// losses [rows] of logsumexp's type, logsumexp [rows]. Invalid labels are reported in *fault.
void cross_entropy(const void* logits, const int64_t* target, const void* weight, void* losses,
                   void* logsumexp, Rows shape, const LossNumbers& numbers, Element element,
                   Fault* fault, cudaStream_t stream);

// d_logits may be the memory of the logits.
void cross_entropy_backward(const void* upstream, const void* logits, const int64_t* target,
                            const void* logsumexp, const void* weight, void* d_logits, Rows shape,
                            const LossNumbers& numbers, Element element, Fault* fault,
                            cudaStream_t stream);

}  // namespace perigee::cuda
