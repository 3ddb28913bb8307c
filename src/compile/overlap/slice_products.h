// Matrix products in slices of rows, overlapped with their collectives.
#pragma once

#include "compile/draft/draft.h"
#include "compile/trace.h"
#include "mesh/mesh.h"
#include "plan/plan.h"

namespace perigee::compile {

// Cuts matrix products whose sums are reduced over ranks, or whose rows are gathered, into at most
// Overlap::slices slices of rows: one slice is reduced, or the next gathered, while another is
// computed. Throws Error naming the method where the step has none.
void slice_products(Draft& draft, const mesh::Mesh& mesh, const plan::Overlap& overlap,
                    TraceSource& traces);

}  // namespace perigee::compile
