// The data that a rank's program reads in one step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/program.h"
#include "data/data.h"

namespace perigee::train {

// Returns the program's data tensors by name, one map for each microbatch, with this rank's part of
// the step's `global_batch` samples. Throws Error for a tensor that the data lacks.
std::vector<std::map<std::string, at::Tensor>> step_data(const compile::Program& program,
                                                         int64_t global_batch, int64_t step,
                                                         DataSource& data);

}  // namespace perigee::train
