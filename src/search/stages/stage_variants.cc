#include "search/stages/stage_variants.h"

#include <algorithm>
#include <cstdint>

namespace perigee::search {
namespace {

using nlohmann::json;

bool is_use_of(const json& use, const char* method) {
  return use.is_array() && !use.empty() && use[0] == method;
}

// Returns the largest size of an axis on any stage.
int64_t largest(const json& mesh, const std::string& axis) {
  int64_t size = 1;
  const auto look = [&](const json& item) {
    if (item.is_array() && item.size() == 2 && item[0] == axis) {
      size = std::max(size, item[1].get<int64_t>());
    }
  };
  const bool ragged = mesh.is_object() && mesh.contains("submeshes");
  for (const auto& item : ragged ? mesh["submeshes"] : mesh) {
    look(item);
    if (!ragged) continue;
    for (const auto& own : item) look(own);
  }
  return size;
}

// Adds to `variants` each of them, and the strategy itself, with the cuts of pipeline_parallel.
void add_own_cuts(const json& strategy, std::vector<StageVariant>& variants) {
  std::vector<StageVariant> made = {{"", strategy}};
  made.insert(made.end(), variants.begin(), variants.end());
  for (auto& variant : made) {
    for (auto& use : variant.strategy) {
      if (is_use_of(use, "pipeline_parallel")) use[1].erase("starts");
    }
    variant.methods += variant.methods.empty() ? "pipeline_parallel" : ", pipeline_parallel";
    variants.push_back(std::move(variant));
  }
}

}  // namespace

std::vector<StageVariant> variants_of(const json& strategy, bool own_cuts) {
  const auto mesh = std::ranges::find_if(
      strategy, [](const auto& use) { return is_use_of(use, "parallel_mode"); });
  const auto solver = std::ranges::find_if(
      strategy, [](const auto& use) { return is_use_of(use, "auto_sharding"); });
  if (mesh == strategy.end() || solver == strategy.end()) return {};
  const auto at = static_cast<size_t>(solver - strategy.begin());
  const auto& choose = (*solver)[1]["choose"];
  std::vector<std::string> levels = {""};
  if (std::ranges::count(choose, json("storage")) > 0 && largest((*mesh)[1], "data") > 1) {
    levels.insert(levels.end(), {"zero2", "fsdp"});
  }
  std::vector<StageVariant> variants;
  for (const bool splits : {false, true}) {
    if (splits && largest((*mesh)[1], "tensor") == 1) continue;
    for (const auto& level : levels) {
      if (!splits && level.empty()) continue;
      StageVariant variant{.methods = splits ? "tensor_parallel" : "", .strategy = strategy};
      auto& use = variant.strategy[at];
      if (splits) {
        use = "tensor_parallel";
      } else {
        auto left = json::array();
        std::ranges::copy_if(choose, std::back_inserter(left),
                             [](const auto& choice) { return choice != "storage"; });
        use[1]["choose"] = std::move(left);
      }
      if (!level.empty()) {
        variant.methods += (splits ? ", " : "") + level;
        variant.strategy.insert(variant.strategy.begin() + static_cast<int64_t>(at), level);
      }
      variants.push_back(std::move(variant));
    }
  }
  const auto& axes = (*mesh)[1];
  if (own_cuts && axes.is_object() && axes.contains("submeshes")) {
    const auto& submeshes = axes["submeshes"];
    if (std::ranges::count(submeshes, submeshes[0]) == std::ssize(submeshes)) {
      add_own_cuts(strategy, variants);
    }
  }
  return variants;
}

}  // namespace perigee::search
