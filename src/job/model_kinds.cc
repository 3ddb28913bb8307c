#include "job/model_kinds.h"

#include <algorithm>

#include "base/fail.h"

namespace perigee::job {

const std::vector<ModelKind>& model_kinds() {
  static const std::vector<ModelKind> all = {
      {.name = "gpt"},
      {.name = "llama"},
      {.name = "moe"},
      {.name = "mlp"},
      {.name = "resnet"},
      {.name = "hf"},
      {.name = "exported", .file = "archive of torch.export", .own_types = true},
      {.name = "torchscript", .file = "TorchScript file", .code = true, .own_types = true},
      {.name = "plugin", .file = "model plugin", .code = true, .own_types = true, .options = true},
      {.name = "lua", .file = "script", .options = true},
  };
  return all;
}

const ModelKind& model_kind(std::string_view name) {
  const auto found = std::ranges::find(model_kinds(), name, &ModelKind::name);
  if (found != model_kinds().end()) return *found;
  fail("job", "model.kind is a known kind, but got \"{}\"", name);
}

}  // namespace perigee::job
