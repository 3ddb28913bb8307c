#include "tests/parity/support/submeshes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace perigee::parity {
namespace {

int64_t count(const std::vector<mesh::Axis>& submesh) {
  int64_t ranks = 1;
  for (const auto& axis : submesh) ranks *= axis.size;
  return ranks;
}

}  // namespace

std::string text_of(const Submeshes& submeshes) {
  std::vector<std::string> stages;
  for (const auto& submesh : submeshes) {
    std::vector<std::string> axes;
    for (const auto& axis : submesh)
      axes.push_back(fmt::format(R"(["{}", {}])", axis.name, axis.size));
    stages.push_back(fmt::format("[{}]", fmt::join(axes, ", ")));
  }
  return fmt::format("[{}]", fmt::join(stages, ", "));
}

std::string staged(const Submeshes& submeshes, const std::string& pipeline,
                   const std::string& methods, int64_t microbatches) {
  return fmt::format(R"([["parallel_mode", {{"submeshes": {}}}], ["pipeline_parallel", {}],
                         ["gradient_accumulation", {{"microbatches": {}}}]{}])",
                     text_of(submeshes), pipeline, microbatches,
                     methods.empty() ? "" : ", " + methods);
}

Submeshes random_submeshes(std::mt19937& random, int64_t stages, int64_t left, bool splits) {
  const Submeshes all = {{},
                         {{"data", 2}},
                         {{"data", 3}},
                         {{"tensor", 2}},
                         {{"tensor", 3}},
                         {{"data", 2}, {"tensor", 2}}};
  Submeshes submeshes;
  while (std::ssize(submeshes) < stages) {
    const auto& submesh = all[random() % all.size()];
    const auto most = std::min<int64_t>(4, left - (stages - std::ssize(submeshes) - 1));
    if (count(submesh) > most || (!splits && has_axis({submesh}, "tensor"))) continue;
    left -= count(submesh);
    submeshes.push_back(submesh);
  }
  return submeshes;
}

bool has_axis(const Submeshes& submeshes, const std::string& axis) {
  return std::any_of(submeshes.begin(), submeshes.end(), [&](const auto& submesh) {
    return std::any_of(submesh.begin(), submesh.end(),
                       [&](const mesh::Axis& a) { return a.name == axis; });
  });
}

Outcome train_on_one_device(const Given& given, int64_t microbatches, int64_t rows,
                            const std::string& methods) {
  return train(given,
               plan_of(given, strategy_on(R"(["data", 1])", methods, microbatches), rows))[0];
}

}  // namespace perigee::parity
