#include "search/stages/describe_stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/text/bytes.h"
#include "simulate/report.h"

namespace perigee::search {
namespace {

using nlohmann::json;

// Returns a method's config in a strategy, as lists and fields; nothing where it lacks the method.
std::optional<methods::Config> config_of(const json& strategy, const std::string& method) {
  for (const auto& use : strategy) {
    if (use.is_array() && use[0] == method) return methods::split_config(use[1]);
  }
  return {};
}

const methods::Config* config_of(const methods::StrategySpec& strategy, const std::string& method) {
  for (const auto& use : strategy.methods) {
    if (use.method->name() == method) return &use.config;
  }
  return nullptr;
}

// Order and forbidden collectives may be added to a found mesh, but no axes.
bool same_stages(const methods::StrategySpec& strategy, const json& found) {
  const auto mesh = config_of(found, "parallel_mode");
  const auto* own = config_of(strategy, "parallel_mode");
  if (!mesh || !own) return false;
  const bool solved = config_of(strategy, "auto_sharding") != nullptr;
  if (solved != config_of(found, "auto_sharding").has_value()) return false;
  const auto field = [](const methods::Config* config, const char* name) {
    return config ? config->fields.value(name, json()) : json();
  };
  if (own->items != mesh->items) return false;
  if (field(own, "submeshes") != field(&*mesh, "submeshes")) return false;
  const auto pipeline = config_of(found, "pipeline_parallel");
  return field(config_of(strategy, "pipeline_parallel"), "starts") ==
         field(pipeline ? &*pipeline : nullptr, "starts");
}

std::string shape_text(const json& submesh) {
  return fmt::format("{} x {}", submesh["hosts"].get<int64_t>(), submesh["devices"].get<int64_t>());
}

std::string row_text(const json& result, size_t r) {
  const auto& row = result["rows"][r];
  const auto& submesh = result["submeshes"][row["submesh"].get<size_t>()];
  const auto bytes = [&](const char* name) { return bytes_text(row[name].get<double>()); };
  auto text = fmt::format(
      "layers {}..{} on {} (data {}, tensor {}): cost {}, peak {}, in {}, out {}, temporary {}, "
      "available {}",
      row["first"].get<int>(), row["last"].get<int>(), shape_text(submesh),
      submesh["data"].get<int64_t>(), submesh["tensor"].get<int64_t>(),
      simulate::seconds_text(row["cost"].get<double>()), bytes("peak"), bytes("in"), bytes("out"),
      bytes("temporary"), bytes("available"));
  const auto& chosen = result["stages"];
  const auto stage = std::ranges::find(chosen, json(r)) - chosen.begin();
  if (stage < std::ssize(chosen)) {
    text += fmt::format("; stage {} of the plan{}", stage,
                        result.value("with", "").ends_with("pipeline_parallel")
                            ? ", which pipeline_parallel cuts elsewhere"
                            : "");
  }
  return text;
}

}  // namespace

std::shared_ptr<const json> stages_chosen_by(const methods::StrategySpec& strategy,
                                             StagesMade made) {
  for (auto result = made.rbegin(); result != made.rend(); ++result) {
    if (same_stages(strategy, (**result)["strategy"])) return *result;
  }
  return nullptr;
}

std::vector<plan::Decision> stage_decisions(const json& result) {
  std::vector<std::string> layers = result["layers"], submeshes;
  for (const auto& shape : result["submesh_choices"]) {
    submeshes.push_back(fmt::format("{} x {}", shape[0].get<int64_t>(), shape[1].get<int64_t>()));
  }
  size_t refused = 0, judged = result["judged"].size();
  for (const auto& sequence : result["judged"]) refused += sequence.contains("refused");
  const auto variant = result.value("with", "");
  const auto with = variant.empty()
                        ? ""
                        : fmt::format(" ({} in place of the solver's decisions)", variant);
  std::vector<plan::Decision> decisions;
  decisions.push_back(
      {"stages", fmt::format("{} layers, which begin at the first op{}{}, on submeshes of {}",
                             layers.size() + 1, layers.empty() ? "" : ", ", fmt::join(layers, ", "),
                             fmt::join(submeshes, ", "))});
  decisions.push_back(
      {"stages",
       fmt::format("of {} plan{} of stages that {} simulated{} the chosen one{} takes {} a step; "
                   "by the table no sequence takes less than {}",
                   judged, judged == 1 ? "" : "s", judged == 1 ? "was" : "were",
                   refused > 0 ? fmt::format(" ({} were refused)", refused) : "", with,
                   simulate::seconds_text(result["seconds"].get<double>()),
                   simulate::seconds_text(result["lower_bound"].get<double>()))});
  for (size_t r = 0; r < result["rows"].size(); ++r) {
    decisions.push_back({std::string(kStageTable), row_text(result, r)});
  }
  return decisions;
}

json table_json(const json& result) {
  auto table = json::object();
  for (const char* key : {"format", "graph", "cluster", "devices", "microbatches", "layers",
                          "choose", "measured", "rules", "submeshes", "rows", "chosen"}) {
    table[key] = result[key];
  }
  return table;
}

}  // namespace perigee::search
