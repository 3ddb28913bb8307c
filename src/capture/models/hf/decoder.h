// The model of a Hugging Face folder.
#pragma once

#include "capture/models/hf/architecture.h"
#include "capture/models/models.h"

namespace perigee::hf {

// Makes the model of `model.folder` without memory for its parameters, for samples of `sequence`
// tokens; `packing` as for make_model. Its scopes and parameters have the names of the built-in models, so that known layers
// are split as theirs. Throws Error as read_architecture, and for samples that are longer than the
// learned positions.
BuiltInModel make_decoder(const job::ModelConfig& model, int64_t sequence, Packing packing);

}  // namespace perigee::hf
