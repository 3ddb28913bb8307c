// Matrix products without allocations, by the BLAS in LibTorch. LibTorch exports the Fortran
// functions without a header: netlib's header declares them.
#pragma once

#include <stddef.h>

#include <cstdint>
#include <type_traits>

// cblas_f77.h needs cblas_mangling.h and size_t.
// clang-format off
extern "C" {
#include <cblas_mangling.h>
#include <cblas_f77.h>
}
// clang-format on

namespace perigee::exec::kernels {

// A row-major matrix; `row`: elements from one row to the next.
template <class T>
struct Matrix {
  T* data;
  int64_t row;
  Matrix from(int64_t r) const { return {data + r * row, row}; }
};

struct ProductShape {
  int64_t m, n, k;
};

// c [m,n] = alpha a b + beta c, with a or b transposed if trans_a or trans_b; beta 0: c is not
// read. BLAS is column-major, so it computes c' = b' a'.
template <class T>
void multiply(ProductShape shape, std::type_identity_t<T> alpha,
              std::type_identity_t<Matrix<const T>> a, bool trans_a,
              std::type_identity_t<Matrix<const T>> b, bool trans_b, std::type_identity_t<T> beta,
              Matrix<T> c) {
  char fa = trans_a ? 'T' : 'N', fb = trans_b ? 'T' : 'N';
  const int m = static_cast<int>(shape.m), n = static_cast<int>(shape.n),
            k = static_cast<int>(shape.k);
  const int lda = static_cast<int>(a.row), ldb = static_cast<int>(b.row),
            ldc = static_cast<int>(c.row);
  if constexpr (sizeof(T) == sizeof(float)) {
    F77_sgemm(&fb, &fa, &n, &m, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
  } else {
    F77_dgemm(&fb, &fa, &n, &m, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
  }
}

}  // namespace perigee::exec::kernels
