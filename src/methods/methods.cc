#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "methods/method.h"
#include "methods/placed.h"

namespace perigee::methods {

std::shared_ptr<const Method> parallel_mode();
std::shared_ptr<const Method> grad_comm();
std::shared_ptr<const Method> gradient_accumulation();
std::shared_ptr<const Method> checkpoint();
std::shared_ptr<const Method> pipeline_parallel();
std::shared_ptr<const Method> sequence_parallel();
std::shared_ptr<const Method> context_parallel();
std::shared_ptr<const Method> expert_parallel();
std::shared_ptr<const Method> tensor_parallel();
std::shared_ptr<const Method> zero1();
std::shared_ptr<const Method> zero2();
std::shared_ptr<const Method> fsdp();
std::shared_ptr<const Method> amp_native();
std::shared_ptr<const Method> half();
std::shared_ptr<const Method> offload();
std::shared_ptr<const Method> overlap();
std::shared_ptr<const Method> mixed_parallel();
std::shared_ptr<const Method> ds_3d_parallel();
std::shared_ptr<const Method> module_replace();
std::shared_ptr<const Method> lora();
std::shared_ptr<const Method> chunked_loss();
std::shared_ptr<const Method> fp8();
std::shared_ptr<const Method> partition_constraints();
std::shared_ptr<const Method> auto_sharding();

namespace {

bool is_position(std::string_view key) {
  return !key.empty() && key.front() != '0' &&
         std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string> names_of(std::span<const std::shared_ptr<const Method>> methods) {
  std::vector<std::string> names;
  for (const auto& method : methods) names.emplace_back(method->name());
  return names;
}

std::shared_ptr<const Method> find(std::string_view name,
                                   std::span<const std::shared_ptr<const Method>> more) {
  auto known = std::vector<std::shared_ptr<const Method>>(more.begin(), more.end());
  known.insert(known.end(), all().begin(), all().end());
  for (const auto& method : known) {
    if (method->name() == name) return method;
  }
  const auto names = names_of(known);
  fail("strategy", "methods must be known, but got \"{}\"{}", name, did_you_mean(name, names));
}

}  // namespace

const std::vector<std::shared_ptr<const Method>>& all() {
  static const std::vector<std::shared_ptr<const Method>> methods = {parallel_mode(),
                                                                     tensor_parallel(),
                                                                     sequence_parallel(),
                                                                     context_parallel(),
                                                                     expert_parallel(),
                                                                     pipeline_parallel(),
                                                                     mixed_parallel(),
                                                                     ds_3d_parallel(),
                                                                     gradient_accumulation(),
                                                                     grad_comm(),
                                                                     checkpoint(),
                                                                     zero1(),
                                                                     zero2(),
                                                                     fsdp(),
                                                                     amp_native(),
                                                                     half(),
                                                                     chunked_loss(),
                                                                     offload(),
                                                                     overlap(),
                                                                     module_replace(),
                                                                     fp8(),
                                                                     lora(),
                                                                     partition_constraints(),
                                                                     auto_sharding()};
  return methods;
}

Config split_config(const Json& config) {
  Config result;
  if (config.is_null()) return result;
  if (config.is_array()) {
    result.items = config;
    return result;
  }
  std::map<int64_t, Json> items;
  for (const auto& [key, value] : config.items()) {
    if (is_position(key)) {
      items.emplace(std::stoll(key), value);
    } else {
      result.fields[key] = value;
    }
  }
  for (auto& [position, value] : items) result.items.push_back(std::move(value));
  return result;
}

Config check_config(const Method& method, const Json& config) {
  if (config.is_string() && !method.items().empty()) {
    return check_config(method, Json::array({config}));
  }
  if (!config.is_null() && !config.is_object() && !config.is_array()) {
    fail("strategy", "{} takes a table, but got {}", method.name(), config.dump());
  }
  auto parts = split_config(config);
  if (!parts.items.empty() && method.items().empty()) {
    fail("strategy", "{} takes named fields, but got a list", method.name());
  }
  check_fields(method.fields(), parts.fields, method.name());
  method.check_items(parts.items);
  return parts;
}

namespace {

// JSON's numbers, strings and lists are TOML's; its tables are not.
std::string toml_of(const Json& value) {
  if (!value.is_object() && !value.is_array()) return value.dump();
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += (text.empty() ? "" : ", ") + (value.is_object() ? Json(key).dump() + " = " : "");
    text += toml_of(item);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// Reads the fields of a strategy besides its methods.
void read_fields(const Json& value, StrategySpec& strategy) {
  // `plan`, the result of the methods, is for readers of the strategy only.
  const std::vector<std::string> keys = {"job",    "set",     "warnings", "origin",
                                         "places", "methods", "plan"};
  for (const auto& [key, part] : value.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail("strategy",
           "a strategy is a list of methods or has the fields {}, in a script also events and "
           "around, but got \"{}\"{}",
           fmt::join(keys, ", "), key, did_you_mean(key, keys));
    }
  }
  if (value.contains("plan") && (!value["plan"].is_object() || !value.contains("methods"))) {
    fail("strategy",
         "plan is the result of a strategy's methods, but the strategy has none: return the plan "
         "itself, or methods");
  }
  if (value.contains("job")) {
    if (!value["job"].is_string())
      fail("strategy", "job must be a file name, but got {}", value["job"].dump());
    strategy.job = value["job"];
  }
  if (value.contains("set")) {
    if (!value["set"].is_object())
      fail("strategy", "set is a table of the job's keys, but got {}", value["set"].dump());
    for (const auto& [key, to] : value["set"].items()) {
      if (key == "strategy") {
        fail("strategy",
             "set changes keys of the job, but not which strategy is read: leave strategy out");
      }
      strategy.set.push_back(assignment(key, to));
    }
  }
  if (value.contains("warnings")) {
    for (const auto& warning : value["warnings"]) {
      if (!warning.is_string())
        fail("strategy", "warnings are sentences, but got {}", warning.dump());
      strategy.warnings.push_back(warning);
    }
  }
  if (value.contains("origin")) {
    const auto& origin = value["origin"];
    if (!origin.is_object() || !origin.contains("dialect") || !origin["dialect"].is_string())
      fail("strategy", "origin is {{dialect, options}}, but got {}", origin.dump());
    const auto options = origin.value("options", Json::object());
    strategy.origin = {origin["dialect"], fmt::format("written as {}", options.dump())};
  }
  if (value.contains("places") && !value["places"].is_object())
    fail("strategy", "places are a table by method, but got {}", value["places"].dump());
}

MethodUse read_item(const Json& item, size_t number,
                    std::span<const std::shared_ptr<const Method>> more) {
  const bool pair = item.is_array() && !item.empty() && item.size() <= 2 && item[0].is_string();
  if (!item.is_string() && !pair) {
    fail("strategy", "a method is a name or {{name, config}}, but item {} is {}", number,
         item.dump());
  }
  const auto method = find(item.is_string() ? item.get<std::string>() : item[0].get<std::string>(),
                           more);
  return {method, check_config(*method, pair && item.size() == 2 ? item[1] : Json())};
}

// Returns where an item of a list of methods was written.
std::string place_of(const Json& item, const std::string& place, const Json& by_method) {
  const auto& name = item.is_array() && !item.empty() ? item[0] : item;
  if (!place.empty() || !name.is_string() || !by_method.is_object()) return place;
  const auto found = by_method.find(name.get<std::string>());
  return found != by_method.end() && found->is_string() ? found->get<std::string>() : "";
}

// Returns where words of a method's config were written.
std::map<std::string, std::string> words_of(const Json& item, const Json& by_method) {
  std::map<std::string, std::string> words;
  const auto& name = item.is_array() && !item.empty() ? item[0] : item;
  if (!name.is_string() || !by_method.is_object()) return words;
  const auto before = name.get<std::string>() + ".";
  for (const auto& [key, place] : by_method.items()) {
    if (key.starts_with(before) && place.is_string()) words[key.substr(before.size())] = place;
  }
  return words;
}

// Throws Error for a list with a hole, which is a table of numbers in Lua.
void require_no_hole(const Json& list) {
  if (!list.is_object()) return;
  for (const auto& item : list.items()) {
    if (item.key().find_first_not_of("0123456789") != std::string::npos) continue;
    int64_t missing = 1;
    while (list.contains(std::to_string(missing))) ++missing;
    fail("strategy", "a list of methods must have no holes, but item {} is nil: leave it out",
         missing);
  }
}

}  // namespace

std::string assignment(const std::string& key, const Json& value) {
  return fmt::format("{}={}", key, toml_of(value));
}

StrategySpec from_json(const Json& value, std::string_view name,
                       std::span<const std::shared_ptr<const Method>> more,
                       std::span<const std::string> items) {
  StrategySpec strategy;
  strategy.name = name;
  const Json* list = &value;
  Json places;
  require_no_hole(value);
  if (value.is_object() && !value.empty()) {
    read_fields(value, strategy);
    static const Json none = Json::array();
    list = value.contains("methods") ? &value["methods"] : &none;
    places = value.value("places", Json());
  }
  require_no_hole(*list);
  if (!list->is_array() && !list->empty()) {
    fail("strategy", "methods must be a list, but got {}", list->dump());
  }
  for (const auto& item : *list) {
    const auto i = strategy.methods.size();
    const Config position{.place = place_of(item, i < items.size() ? items[i] : "", places),
                          .places = words_of(item, places)};
    at_place(position, [&] {
      auto use = read_item(item, i + 1, more);
      for (const auto& other : strategy.methods) {
        if (other.method == use.method)
          fail("strategy", "a method may be listed once, but {} is listed twice",
               use.method->name());
      }
      use.config.place = position.place;
      use.config.places = position.places;
      strategy.methods.push_back(std::move(use));
    });
  }
  return strategy;
}

}  // namespace perigee::methods
