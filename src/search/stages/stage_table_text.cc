// Tables of stages as JSON.
#include <algorithm>
#include <type_traits>

#include "base/fail.h"
#include "base/text/depth.h"
#include "search/stages/stage_table.h"
#include "solve/problem.h"

namespace perigee::search {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "perigee.stages/1";

// The numbers of a row by their names in the file.
struct Column {
  const char* name;
  double StageRow::*member;
};
constexpr Column kColumns[] = {{"cost", &StageRow::cost},
                               {"peak", &StageRow::peak},
                               {"in", &StageRow::in},
                               {"out", &StageRow::out},
                               {"temporary", &StageRow::temporary},
                               {"available", &StageRow::available},
                               {"receive", &StageRow::receive}};

constexpr uint64_t kLargestCount = 1 << 20;

// Returns whether the value is a T; a number must be at least 0, and neither overflow sums
// nor memory.
template <class T>
bool is_a(const json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean();
  } else if constexpr (std::is_same_v<T, double>) {
    return value.is_number() && value.get<double>() >= 0 &&
           value.get<double>() <= solve::kLargestNumber;
  } else if constexpr (std::is_integral_v<T>) {
    return value.is_number_unsigned() && value.get<uint64_t>() <= kLargestCount;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value.is_string();
  } else {
    return value.is_array() && std::ranges::all_of(value, is_a<typename T::value_type>);
  }
}

template <class T>
T read(const json& object, const char* key, const std::string& file) {
  const auto found = object.find(key);
  if (found == object.end()) fail("stages", "{}: \"{}\" is missing", file, key);
  if (is_a<T>(*found)) return found->template get<T>();
  fail("stages", "{}: \"{}\" has another type or is out of range: {}", file, key,
       found->dump().substr(0, 80));
}

// Returns the list of objects at the key.
const json& objects(const json& object, const char* key, const std::string& file) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_array()) return *found;
  fail("stages", "{}: \"{}\" must be a list", file, key);
}

StageRules read_rules(const json& all, const std::string& file) {
  if (!all.is_object()) fail("stages", "{}: \"rules\" must be an object", file);
  StageRules rules{.storage = read<int64_t>(all, "storage", file),
                   .recomputed = read<bool>(all, "recomputed", file),
                   .forbid = read<std::vector<std::string>>(all, "forbid", file),
                   .dtype = {},
                   .individual = read<bool>(all, "individual", file),
                   .imbalance = {}};
  if (all.contains("dtype")) rules.dtype = read<std::string>(all, "dtype", file);
  if (all.contains("imbalance")) rules.imbalance = read<double>(all, "imbalance", file);
  return rules;
}

}  // namespace

std::string print(const StageTable& table) {
  json views = json::array(), rows = json::array();
  for (const auto& view : table.views) {
    views.push_back({{"hosts", view.hosts},
                     {"devices", view.devices},
                     {"data", view.data},
                     {"tensor", view.tensor}});
  }
  for (const auto& row : table.rows) {
    json one = {{"first", row.first},
                {"last", row.last},
                {"submesh", row.view},
                {"max_successors", row.max_successors}};
    for (const auto& column : kColumns) one[column.name] = row.*column.member;
    rows.push_back(std::move(one));
  }
  json rules = {{"storage", table.rules.storage},
                {"recomputed", table.rules.recomputed},
                {"forbid", table.rules.forbid},
                {"individual", table.rules.individual}};
  if (!table.rules.dtype.empty()) rules["dtype"] = table.rules.dtype;
  if (table.rules.imbalance) rules["imbalance"] = *table.rules.imbalance;
  const json all = {{"format", kFormat},
                    {"graph", table.graph_hash},
                    {"cluster", table.cluster},
                    {"devices", table.devices},
                    {"microbatches", table.microbatches},
                    {"layers", table.layers},
                    {"choose", table.choose},
                    {"measured", table.measured},
                    {"rules", std::move(rules)},
                    {"submeshes", std::move(views)},
                    {"rows", std::move(rows)},
                    {"chosen", table.chosen}};
  return all.dump(1) + "\n";
}

StageTable parse_table(std::string_view text, const std::string& file) {
  check_json_depth(text, "stages", file);
  const auto all = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || all.value("format", json()) != kFormat) {
    fail("stages", "{} must be a table of stages (\"format\": \"{}\"), but is none", file, kFormat);
  }
  StageTable table{.graph_hash = read<std::string>(all, "graph", file),
                   .cluster = read<std::string>(all, "cluster", file),
                   .devices = read<int64_t>(all, "devices", file),
                   .microbatches = read<int64_t>(all, "microbatches", file),
                   .layers = read<std::vector<std::string>>(all, "layers", file),
                   .choose = read<std::vector<std::string>>(all, "choose", file),
                   .measured = read<bool>(all, "measured", file),
                   .rules = read_rules(all.value("rules", json()), file),
                   .views = {},
                   .rows = {},
                   .chosen = read<std::vector<int>>(all, "chosen", file)};
  for (const auto& view : objects(all, "submeshes", file)) {
    table.views.push_back({read<int64_t>(view, "hosts", file), read<int64_t>(view, "devices", file),
                           read<int64_t>(view, "data", file), read<int64_t>(view, "tensor", file)});
    const auto& [hosts, devices, data, tensor] = table.views.back();
    if (hosts < 1 || devices < 1 || data < 1 || tensor < 1) {
      fail("stages", "{}: submesh {} must have sizes of at least 1, but has {}", file,
           table.views.size() - 1, view.dump().substr(0, 80));
    }
  }
  for (const auto& one : objects(all, "rows", file)) {
    StageRow row{.first = read<int>(one, "first", file),
                 .last = read<int>(one, "last", file),
                 .view = read<int>(one, "submesh", file),
                 .max_successors = read<int64_t>(one, "max_successors", file)};
    for (const auto& column : kColumns) row.*column.member = read<double>(one, column.name, file);
    const bool fits = row.first >= 0 && row.first <= row.last && row.last < table.layer_count() &&
                      row.view >= 0 && row.view < std::ssize(table.views);
    if (!fits) {
      fail("stages", "{}: row {} must have layers below {} and a submesh below {}, but has {}",
           file, table.rows.size(), table.layer_count(), table.views.size(),
           one.dump().substr(0, 80));
    }
    table.rows.push_back(row);
  }
  for (const int row : table.chosen) {
    if (row < std::ssize(table.rows)) continue;
    fail("stages", "{}: \"chosen\" must list rows below {}, but has {}", file, table.rows.size(),
         row);
  }
  return table;
}

}  // namespace perigee::search
