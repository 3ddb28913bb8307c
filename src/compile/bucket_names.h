// The collectives of a program that reduce gradients or gather parameters, with the
// parameters' names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/program.h"

namespace perigee::compile {

// The bucket or unit (plan::Unit) that a collective reduces or gathers.
struct BucketNames {
  bool gradients = false;               // gradients are reduced; else parameters are gathered
  std::vector<std::string> parameters;  // names of its parameters, in the order of the buffer
};

// Returns the buckets by the value that their collective sends.
std::map<ValueId, BucketNames> bucket_names(const Program& program);

}  // namespace perigee::compile
