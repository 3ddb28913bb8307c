#include "capture/models/models.h"

#include "capture/models/hf/decoder.h"
#include "capture/models/parts.h"

namespace perigee {

BuiltInModel make_model(const job::ModelConfig& model, int64_t sequence, Packing packing) {
  if (model.kind == "gpt") return models::make_gpt(model, sequence, packing);
  if (model.kind == "llama") return models::make_llama(model, sequence, packing);
  if (model.kind == "moe") return models::make_moe(model, sequence, packing);
  if (model.kind == "hf") return hf::make_decoder(model, sequence, packing);
  if (packing == Packing::documents && (model.kind == "mlp" || model.kind == "resnet")) {
    fail("model",
         "data.pack = \"documents\" requires a language model (gpt, llama, moe or hf), but "
         "model.kind is \"{}\"",
         model.kind);
  }
  if (model.kind == "mlp") return models::make_mlp(model);
  if (model.kind == "resnet") return models::make_resnet(model);
  fail("model", "built-in kinds are gpt, llama, moe, mlp, resnet and hf, but got \"{}\"",
       model.kind);
}

}  // namespace perigee
