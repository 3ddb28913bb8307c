// The ways to multiply matrices that a plan states.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "compile/draft/draft.h"
#include "compile/trace.h"

namespace perigee::compile {

// A product of matrices [m, k] and [k, n], to which a bias [n] may be added.
struct MatrixProduct {
  graph::DType factors;
  int64_t m, k, n;
  bool bias;
};

// Returns the product of an instruction (aten::mm, aten::addmm, perigee::mm_, addmm_, mm_gelu and
// mm_gelu_backward), or nothing for other instructions.
std::optional<MatrixProduct> product_of(const Program& program, const Instruction& instruction);

// Gives the products that `ways` (plan::Plan::products) names an argument "way".
void set_product_ways(Draft& draft, const std::map<std::string, std::string>& ways,
                      TraceSource& traces);

}  // namespace perigee::compile
