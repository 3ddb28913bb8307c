// Tensors of Hugging Face files as views in the model's order of dims, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include "capture/models/hf/families.h"
#include "mesh/placement.h"

namespace perigee::checkpoint {

// Returns one part of a stored tensor (one expert's, without the dim of experts) in the model's
// form, one range per dim. Only elements of the part are read, of Form::heads whole heads.
at::Tensor part_in_model(const at::Tensor& stored, hf::Form form, int64_t heads,
                         const std::vector<mesh::Range>& ranges);

// Returns a whole tensor of the model (one expert's) in the form of the files, contiguous.
at::Tensor as_stored(const at::Tensor& whole, hf::Form form, int64_t heads);

// Returns the shape that a stored tensor has in the model.
std::vector<int64_t> shape_in_model(std::vector<int64_t> stored, hf::Form form);

}  // namespace perigee::checkpoint
