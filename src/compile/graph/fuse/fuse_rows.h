// Ops that read the same rows, computed by one op.
#pragma once

#include <span>
#include <string>

#include "compile/rank.h"

namespace perigee::compile {

// Fuses
// - an addition and the norm of its result (perigee::add_layer_norm, add_rms_norm),
// - the gradient of a norm and the addition of another gradient (layer_norm_backward_add, ...), also a
//   cast of the result to 16 bits, and the sum of its rows, which is the gradient of a bias,
// - the gradient of GELU and the sum of its rows, the gradient of a bias (gelu_backward_sum),
// - a cast to eight bits and its operand's largest magnitude, for later scales (fp8_cast_amax),
// - a cast of rows to eight bits and the magnitudes that scale them, where the rank has whole rows,
// so that results are read and written less often. Ops of different sections of a pipeline stay, and
// values that others read, too, keep their producers. Additions of another block than the norm's stay,
// so that blocks are identical. Numbers change by rounding only. `scopes`: whose values are treated apart
// (plan::Offload::activations): a sum and its norm are of the same ones.
void fuse_rows(Local& local, std::span<const std::string> scopes = {});

}  // namespace perigee::compile
