// Operations on rows of attention's scores, in vectors.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace perigee::exec::kernels {

// to[k] = exp(scale x[k] - top) for k < n, where `top` is set to the largest scale x[k] (of none:
// -inf); bfloat16 is rounded to nearest even. `to` may be x. Returns the sum of the exponentials
// before they are rounded.
float exponentials(const float* x, int64_t n, float& top, float* to, float scale = 1);
float exponentials(const float* x, int64_t n, float& top, c10::BFloat16* to, float scale = 1);
double exponentials(const double* x, int64_t n, double& top, double* to);

void scale_row(float* x, int64_t n, float factor);
void scale_row(double* x, int64_t n, double factor);

// p = exp(scale p - lse)
void probabilities(float* p, int64_t n, float lse, float scale = 1);
void probabilities(double* p, int64_t n, double lse);

// d = p (d - dot) scale
void score_gradients(float* d, const float* p, int64_t n, float dot, float scale);
void score_gradients(double* d, const double* p, int64_t n, double dot, double scale);

// A row of scores and of the gradients of its probabilities. A query sees `own` <= n of the n keys.
struct ScoreRow {
  const float *scores, *d;
  int64_t own;
  float lse, dot;
};

// The factors that two rows become, of n elements: words with those of the first row in the low half
// and those of the second one in the high half, and rows.
struct PairedScores {
  uint32_t *p, *d;
  c10::BFloat16 *d_first, *d_second;
};

// Both functions above for two rows, with 0 for keys that a query does not see, rounded to nearest
// even. n is a multiple of 16.
void score_pairs(const ScoreRow& first, const ScoreRow& second, int64_t n, float scale,
                 PairedScores to);

float dot_product(const float* a, const float* b, int64_t n);
double dot_product(const double* a, const double* b, int64_t n);
float dot_product(const c10::BFloat16* a, const c10::BFloat16* b, int64_t n);

// to[k] = factor from[k], rounded to nearest even.
void round_row(const float* from, int64_t n, float factor, c10::BFloat16* to);

}  // namespace perigee::exec::kernels
