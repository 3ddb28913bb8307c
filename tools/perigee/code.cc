#include "code.h"

#include <fmt/format.h>

#include <algorithm>

namespace perigee::command {

std::string model_code(const job::Job& job) {
  const auto& kind = job.model.kind;
  if (kind == "plugin") return fmt::format("the model plugin {}", job.model.text("file"));
  if (kind == "torchscript") return fmt::format("the TorchScript file {}", job.model.text("file"));
  return "";
}

std::string take_sampler(job::Job& job) {
  const auto& orders = job::sampler_names();
  auto& sampler = job.data.sampler;
  if (std::ranges::find(orders, sampler) != orders.end()) return "";
  const auto phrase = fmt::format("the sampler {}", sampler);
  sampler = orders.front();
  return phrase;
}

}  // namespace perigee::command
