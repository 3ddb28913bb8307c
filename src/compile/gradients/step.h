// The sections that run once per step.
#pragma once

#include "compile/draft/source.h"
#include "compile/gradients/gradients.h"

namespace perigee::compile {

// Appends the section "step": the gradients' norm, clipping, the optimizer.
// `factor` is Microbatches::factor.
void make_step_section(Draft& draft, const Source& source, const Gradients& gradients,
                       double factor);

// Appends the sections "average.K": copies of the model are averaged after every K-th step.
void make_average_sections(Draft& draft, const Source& source, const Gradients& gradients);

}  // namespace perigee::compile
