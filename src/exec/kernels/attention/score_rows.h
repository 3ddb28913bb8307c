// Operations on rows of attention's scores, in vectors.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace perigee::exec::kernels {

// x[k] = exp(scale x[k] - top) for k < n, where `top` is set to the largest scale x[k] (of none:
// -inf). Returns the sum of all x[k] then.
float exponentials(float* x, int64_t n, float& top, float scale = 1);
double exponentials(double* x, int64_t n, double& top);

void scale_row(float* x, int64_t n, float factor);
void scale_row(double* x, int64_t n, double factor);

// p = exp(scale p - lse)
void probabilities(float* p, int64_t n, float lse, float scale = 1);
void probabilities(double* p, int64_t n, double lse);

// d = p (d - dot) scale
void score_gradients(float* d, const float* p, int64_t n, float dot, float scale);
void score_gradients(double* d, const double* p, int64_t n, double dot, double scale);

float dot_product(const float* a, const float* b, int64_t n);
double dot_product(const double* a, const double* b, int64_t n);
float dot_product(const c10::BFloat16* a, const c10::BFloat16* b, int64_t n);

// to[k] = factor from[k], rounded to nearest even.
void round_row(const float* from, int64_t n, float factor, c10::BFloat16* to);

}  // namespace perigee::exec::kernels
