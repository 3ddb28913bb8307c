// Weight gradients that hide collectives.
#pragma once

#include "compile/draft/draft.h"

namespace perigee::compile {

// Moves weight gradients that precede a product whose result a collective sends so that they run
// during the collective.
void put_products_beside(Draft& draft);

}  // namespace perigee::compile
