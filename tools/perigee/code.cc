#include "code.h"

#include <fmt/format.h>

#include <algorithm>

#include "job/model_kinds.h"

namespace perigee::command {

std::string model_code(const job::Job& job) {
  if (job.model.kind.empty()) return "";
  const auto& kind = job::model_kind(job.model.kind);
  return kind.code ? fmt::format("the {} {}", kind.file, job.model.text("file")) : "";
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
