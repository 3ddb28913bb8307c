// A rank's peak memory by purpose.
#pragma once

#include <string>
#include <vector>

#include "compile/program.h"

namespace perigee::simulate {

struct MemoryKind {
  std::string name;  // one of memory_kinds()
  double bytes = 0;
};

// "parameters", "gradients", "optimizer state", "buffers", "saved activations", "working memory",
// "communication", "other" (low-precision copies of parameters, constants, results, padding).
const std::vector<std::string>& memory_kinds();

// Splits the program's peak_bytes into all kinds, in that order; they add up to it.
// Saved activations are values that forward ops make and backward ops read, for
// each in-flight microbatch.
std::vector<MemoryKind> memory_by_kind(const compile::Program& program);

}  // namespace perigee::simulate
