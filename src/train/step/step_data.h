// The data that a rank's program reads in one step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/program.h"
#include "data/data.h"
#include "graph/graph.h"
#include "job/job.h"

namespace perigee::train {

// Finds the tensor for the model's input `name` in a batch. Throws Error where the batch has none, or
// a sparse one.
const at::Tensor& find_field(const Batch& batch, const std::string& name);

// Throws Error where a batch, of any number of samples, lacks an input that the model reads, or a
// sample of one has another shape or type than the model's.
void check_fields(const job::Job& job, const graph::Graph& graph, const Batch& batch);

// Does so with a sample of the data. Warns, where `warns`, of tensors of data.tensors that the model
// does not read.
void check_data(const job::Job& job, const graph::Graph& graph, DataSource& data, bool warns);

// Returns the program's data tensors by name, one map for each microbatch, with this rank's part of
// the step's `global_batch` samples. Throws Error for a tensor that the data lack, or give in another
// shape or another number of samples.
std::vector<std::map<std::string, at::Tensor>> step_data(const compile::Program& program,
                                                         int64_t global_batch, int64_t step,
                                                         DataSource& data);

}  // namespace perigee::train
