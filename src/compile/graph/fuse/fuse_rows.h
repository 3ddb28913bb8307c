// Ops that read the same rows, computed by one op.
#pragma once

#include "compile/rank.h"

namespace perigee::compile {

// Fuses
// - an addition and the norm of its result (perigee::add_layer_norm, add_rms_norm),
// - the gradient of a norm and the addition of another gradient (layer_norm_backward_add, ...),
// - the gradient of GELU and the sum of its rows, the gradient of a bias (gelu_backward_sum),
// so that results are read and written less often. Ops of different sections of a pipeline stay, and
// values that others read, too, keep their producers. Numbers change by rounding only.
void fuse_rows(Local& local);

}  // namespace perigee::compile
