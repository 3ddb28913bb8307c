// Weights in a low precision that outlive a step (plan::Precision::keep_weights).
#pragma once

#include "compile/draft/draft.h"
#include "compile/draft/source.h"

namespace perigee::compile {

// Replaces casts of weights to the plan's low precision, which every microbatch computes, by values
// that outlive a step: the optimizer's instruction writes them beside the weights (its operand
// `low`), or a copy follows the last instruction of the section that writes the weights. The section
// "refresh" writes them where the host may have written the weights (Run::after_writes). Weights in
// host memory, of which ranks hold one copy, or that are gathered where they are used keep their
// casts, as do those whose low values would begin between multiples of 16 bytes.
void keep_casts(Draft& draft, const Source& source);

}  // namespace perigee::compile
