#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "cost/schedule_plan.h"
#include "cost/schedule_turns.h"
#include "methods/method.h"
#include "methods/order.h"

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
std::shared_ptr<const Method> fp8();
std::shared_ptr<const Method> partition_constraints();

namespace {

bool has_type(const Json& value, std::string_view type) {
  if (type == "any") return true;
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  // an empty Lua table is an object
  if (type == "list") return value.is_array() || (value.is_object() && value.empty());
  return value.is_object() || value.is_array();
}

bool is_position(std::string_view key) {
  return !key.empty() && key.front() != '0' &&
         std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Config split(const Json& config) {
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

// Axes whose ranks repeat each other's work.
void say_idle_axes(plan::Plan& plan) {
  const auto batch_axes = mesh::split_axes(plan.batch_axes);
  const auto copy_axes = mesh::split_axes(plan.copy_axes);
  for (size_t a = 0; a < plan.mesh.axes.size(); ++a) {
    const auto& axis = plan.mesh.axes[a];
    const bool splits_batch =
        std::find(batch_axes.begin(), batch_axes.end(), axis.name) != batch_axes.end();
    const bool used = std::any_of(plan.placements.begin(), plan.placements.end(),
                                  [&](const auto& pin) { return pin.second[a].is_shard(); }) ||
                      std::any_of(plan.units.begin(), plan.units.end(), [&](const auto& unit) {
                        const auto axes = mesh::split_axes(unit.axes);
                        return std::find(axes.begin(), axes.end(), axis.name) != axes.end();
                      });
    const bool staged = axis.name == plan.pipeline.axis;
    const bool copies = std::find(copy_axes.begin(), copy_axes.end(), axis.name) != copy_axes.end();
    if (axis.size == 1 || splits_batch || used || staged || copies) continue;
    plan.decisions.push_back(
        {"parallel_mode", fmt::format("no method shards over axis {}: its {} ranks repeat the same "
                                      "work",
                                      axis.name, axis.size)});
  }
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
                                                                     offload(),
                                                                     overlap(),
                                                                     module_replace(),
                                                                     fp8(),
                                                                     partition_constraints()};
  return methods;
}

Config check_config(const Method& method, const Json& config) {
  if (config.is_string() && !method.items().empty()) {
    return check_config(method, Json::array({config}));
  }
  if (!config.is_null() && !config.is_object() && !config.is_array()) {
    fail("strategy", "{} takes a table, but got {}", method.name(), config.dump());
  }
  auto parts = split(config);
  if (!parts.items.empty() && method.items().empty()) {
    fail("strategy", "{} takes named fields, but got a list", method.name());
  }
  std::vector<std::string> names;
  for (const auto& field : method.fields()) names.push_back(field.name);
  for (const auto& [key, value] : parts.fields.items()) {
    const auto field = std::find(names.begin(), names.end(), key) - names.begin();
    if (field == static_cast<ptrdiff_t>(names.size())) {
      fail("strategy", "{} has no field \"{}\"{}", method.name(), key, did_you_mean(key, names));
    }
    const auto& type = method.fields()[field].type;
    if (!has_type(value, type)) {
      fail("strategy", "{}.{} must be of type {}, but got {}", method.name(), key, type,
           value.dump());
    }
  }
  for (const auto& field : method.fields()) {
    if (field.required && !parts.fields.contains(field.name)) {
      fail("strategy", "{} needs the field {}: {}", method.name(), field.name, field.doc);
    }
  }
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

// What a strategy says beside its methods.
void read_fields(const Json& value, Strategy& strategy) {
  // `plan`, what the methods have come to, is for who reads the strategy.
  const std::vector<std::string> keys = {"job", "set", "warnings", "origin", "methods", "plan"};
  for (const auto& [key, part] : value.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail("strategy", "a strategy is a list of methods or has the fields {}, but got \"{}\"{}",
           fmt::join(keys, ", "), key, did_you_mean(key, keys));
    }
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
}

}  // namespace

std::string assignment(const std::string& key, const Json& value) {
  return fmt::format("{}={}", key, toml_of(value));
}

Strategy from_json(const Json& value, std::string_view name,
                   std::span<const std::shared_ptr<const Method>> more) {
  Strategy strategy;
  strategy.name = name;
  const Json* list = &value;
  if (value.is_object() && !value.empty()) {
    read_fields(value, strategy);
    static const Json none = Json::array();
    list = value.contains("methods") ? &value["methods"] : &none;
  }
  if (!list->is_array() && !list->empty()) {
    fail("strategy", "methods must be a list, but got {}", list->dump());
  }
  for (const auto& item : *list) {
    const bool pair = item.is_array() && !item.empty() && item.size() <= 2 && item[0].is_string();
    if (!item.is_string() && !pair) {
      fail("strategy", "a method is a name or {{name, config}}, but item {} is {}",
           strategy.methods.size() + 1, item.dump());
    }
    const auto method =
        find(item.is_string() ? item.get<std::string>() : item[0].get<std::string>(), more);
    for (const auto& use : strategy.methods) {
      if (use.method == method)
        fail("strategy", "a method may stand once, but {} stands twice", method->name());
    }
    strategy.methods.push_back(
        {method, check_config(*method, pair && item.size() == 2 ? item[1] : Json())});
  }
  return strategy;
}

namespace {

// The ranks that a step's samples are over.
int64_t data_ranks(const plan::Plan& plan) {
  int64_t ranks = copies_of(plan);
  for (const auto& axis : mesh::split_axes(plan.batch_axes)) ranks *= plan.mesh.size_of(axis);
  return ranks;
}

int64_t step_samples(const plan::Plan& plan, const Request& request) {
  return request.round ? fitted_batch(plan, request.global_batch, request.micro_batch)
                       : request.global_batch;
}

}  // namespace

plan::Plan make_plan(const Strategy& strategy, const Request& request) {
  plan::Plan plan;
  if (strategy.plan) plan = *strategy.plan;
  for (const auto& [op, rule] : strategy.rules) plan.rules.insert_or_assign(op, rule);
  if (strategy.plan) return plan;
  plan.graph_hash = graph::structural_hash(*request.graph);
  plan.microbatches = 0;
  if (strategy.origin) plan.decisions.push_back(*strategy.origin);
  const auto uses = in_order(strategy.methods);
  if (uses.empty() || uses.front().method->name() != "parallel_mode") {
    parallel_mode()->apply(plan, {}, request);
  }
  for (const auto& use : uses) use.method->apply(plan, use.config, request);
  say_idle_axes(plan);

  const auto data = data_ranks(plan);
  if (request.micro_batch > 0) {
    const auto per_microbatch = request.micro_batch * data;
    if (request.global_batch % per_microbatch != 0 && !request.round) {
      fail("plan",
           "batch.global must be a multiple of batch.micro x data ranks, but got {} for {} x {}",
           request.global_batch, request.micro_batch, data);
    }
    const auto fitting = std::max<int64_t>(1, request.global_batch / per_microbatch);
    if (plan.microbatches != 0 && plan.microbatches != fitting) {
      fail("plan",
           "the strategy asks for {} microbatches, but batch.micro = {} makes {}: remove one of "
           "them",
           plan.microbatches, request.micro_batch, fitting);
    }
    plan.microbatches = fitting;
  }
  if (plan.microbatches == 0) plan.microbatches = 1;
  const auto global = step_samples(plan, request);
  if (global % (plan.microbatches * data) != 0) {
    fail("plan", "batch.global must divide over microbatches x data ranks, but got {} for {} x {}",
         global, plan.microbatches, data);
  }
  if (plan.pipeline.cuts() || plan.overlap.experts) check_turns(plan, schedule_of(plan));
  plan.decisions.push_back(
      {"batch",
       fmt::format("a step of {} samples runs as {} microbatch{} of {} on each of {} data rank{}",
                   global, plan.microbatches, plan.microbatches == 1 ? "" : "es",
                   global / plan.microbatches / data, data, data == 1 ? "" : "s")});
  return plan;
}

int64_t fitted_batch(const plan::Plan& plan, int64_t global, int64_t micro) {
  const auto block = (micro > 0 ? micro : plan.microbatches) * data_ranks(plan);
  return std::max<int64_t>(1, global / block) * block;
}

int64_t graph_batch(const plan::Plan& plan, const Request& request) {
  return step_samples(plan, request) / plan.microbatches / copies_of(plan);
}

}  // namespace perigee::methods
