// Which collectives of a program bring gradients or parameters together, and of which parameters.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/program.h"

namespace perigee::compile {

// A bucket or unit (plan::Unit) on its way.
struct BucketNames {
  bool gradients = false;               // they are reduced; else parameters are gathered
  std::vector<std::string> parameters;  // their own names, as they lie there
};

// Returns, by the value that a collective sends, what is on its way.
std::map<ValueId, BucketNames> bucket_names(const Program& program);

}  // namespace perigee::compile
