// cuBLASLt of the simulated machine. Its products are computed at once.
#pragma once

#include "cuda/calls.h"

namespace perigee::cuda::simulated {

// Whether it has kernels for products with an epilogue.
extern bool knows_epilogues;

void add_blas_lt(Calls& table);

}  // namespace perigee::cuda::simulated
