// The kinds of models that a job can name (model.kind), one description each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee::job {

struct ModelKind {
  std::string name;
  // The model's file (model.file) as a phrase: "TorchScript file"; "" for a built-in model.
  std::string file = "";
  bool code = false;       // opening the file runs code of its author's, without a sandbox
  bool own_types = false;  // the file gives the parameters' element types, not model.dtype
  bool options = false;    // [model.options] is handed to the file
};

// Returns all kinds, in the order of the reference page.
const std::vector<ModelKind>& model_kinds();

// Returns the kind of that name. Throws Error for a name that is none.
const ModelKind& model_kind(std::string_view name);

}  // namespace perigee::job
