// Products of matrices where they lie, by the BLAS that LibTorch carries: nothing is allocated.
#pragma once

#include <cstdint>
#include <type_traits>

// Its headers do not declare them.
extern "C" {
void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
void dgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc);
}

namespace perigee::exec::kernels {

// A matrix in rows; `row` elements from one row to the next.
template <class T>
struct Matrix {
  T* data;
  int64_t row;
  Matrix from(int64_t r) const { return {data + r * row, row}; }
};

struct ProductShape {
  int64_t m, n, k;
};

// c [m,n] = alpha a b + beta c, with a or b transposed where said; beta 0: c is not read. BLAS
// counts in columns, so it is told of c' = b' a'.
template <class T>
void multiply(ProductShape shape, std::type_identity_t<T> alpha,
              std::type_identity_t<Matrix<const T>> a, bool trans_a,
              std::type_identity_t<Matrix<const T>> b, bool trans_b, std::type_identity_t<T> beta,
              Matrix<T> c) {
  const char fa = trans_a ? 'T' : 'N', fb = trans_b ? 'T' : 'N';
  const int m = static_cast<int>(shape.m), n = static_cast<int>(shape.n),
            k = static_cast<int>(shape.k);
  const int lda = static_cast<int>(a.row), ldb = static_cast<int>(b.row),
            ldc = static_cast<int>(c.row);
  if constexpr (sizeof(T) == sizeof(float)) {
    sgemm_(&fb, &fa, &n, &m, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
  } else {
    dgemm_(&fb, &fa, &n, &m, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
  }
}

}  // namespace perigee::exec::kernels
