// The plan as JSON (perigee.plan/1): reading.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "base/text/depth.h"
#include "plan/format.h"
#include "plan/plan.h"

namespace perigee::plan {
namespace {

using nlohmann::json;

// A value in the file and the path to it, for messages.
class Field {
 public:
  Field(const json& value, std::string file, std::string path)
      : value_(value), file_(std::move(file)), path_(std::move(path)) {}

  [[noreturn]] void fail_rule(std::string_view rule) const {
    fail("plan", "{}: {} {}, but got {}", file_, path_.empty() ? "the plan" : path_, rule,
         value_.dump().substr(0, 80));
  }

  // Checks that this is an object with no other keys than these.
  void allow(std::initializer_list<const char*> keys) const {
    if (!value_.is_object()) fail_rule("is an object");
    const std::vector<std::string> known(keys.begin(), keys.end());
    for (const auto& [key, item] : value_.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      fail("plan", "{}: {} has no key \"{}\"{}", file_, path_.empty() ? "the plan" : path_, key,
           did_you_mean(key, known));
    }
  }

  Field at(const std::string& key) const {
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if (!value_.is_object()) fail_rule("is an object");
    const auto found = value_.find(key);
    if (found == value_.end()) fail("plan", "{}: {} is missing", file_, path);
    return {*found, file_, path};
  }

  // Keys that later versions have added may be missing.
  bool has(const std::string& key) const { return value_.is_object() && value_.contains(key); }
  bool is_null() const { return value_.is_null(); }

  // An empty object is an empty list, too: Lua tables do not distinguish them.
  std::vector<Field> items() const {
    if (!value_.is_array() && !(value_.is_object() && value_.empty())) fail_rule("is an array");
    std::vector<Field> fields;
    for (size_t i = 0; i < value_.size(); ++i) {
      fields.emplace_back(value_[i], file_, fmt::format("{}[{}]", path_, i));
    }
    return fields;
  }

  std::vector<std::pair<std::string, Field>> members() const {
    if (!value_.is_object()) fail_rule("is an object");
    std::vector<std::pair<std::string, Field>> fields;
    for (const auto& [key, item] : value_.items()) {
      fields.emplace_back(key, Field(item, file_, fmt::format("{}[\"{}\"]", path_, key)));
    }
    return fields;
  }

  std::string text() const {
    if (!value_.is_string()) fail_rule("is a string");
    return value_.get<std::string>();
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> list;
    for (const auto& item : items()) list.push_back(item.text());
    return list;
  }
  bool boolean() const {
    if (!value_.is_boolean()) fail_rule("is true or false");
    return value_.get<bool>();
  }
  double number() const {
    if (!value_.is_number()) fail_rule("is a number");
    return value_.get<double>();
  }
  int64_t integer() const {
    const bool fits = value_.is_number_integer() &&
                      !(value_.is_number_unsigned() &&
                        value_.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
    if (!fits) fail_rule("is an integer");
    return value_.get<int64_t>();
  }
  mesh::Placements placements() const {
    try {
      return mesh::parse_placements(text());
    } catch (const Error&) {
      fail_rule("is a list of placements such as \"S0,R\"");
    }
  }

 private:
  const json& value_;
  std::string file_, path_;
};

// Returns the one of the values that has this name.
template <class T>
T one_of(const Field& field, std::initializer_list<T> values) {
  const auto text = field.text();
  std::string names;
  for (const T value : values) {
    if (name_of(value) == text) return value;
    names += (names.empty() ? "" : ", ") + std::string(name_of(value));
  }
  field.fail_rule("is one of " + names);
}

Unit parse_unit(const Field& field) {
  field.allow({"name", "parameters", "axes", "level", "reshard_after_forward", "one_copy"});
  Unit unit;
  unit.name = field.at("name").text();
  for (const auto& parameter : field.at("parameters").items()) {
    unit.parameters.push_back(parameter.text());
  }
  unit.axes = mesh::AxisSet::parse(field.at("axes").text());
  const auto level = field.at("level");
  if (level.integer() < 1 || level.integer() > 3) level.fail_rule("is 1, 2 or 3");
  unit.level = static_cast<int>(level.integer());
  unit.reshard_after_forward = field.at("reshard_after_forward").boolean();
  if (field.has("one_copy")) unit.one_copy = field.at("one_copy").boolean();
  return unit;
}

Average parse_average(const Field& field) {
  field.allow({"axes", "every", "parameters", "states"});
  return {mesh::AxisSet::parse(field.at("axes").text()), field.at("every").integer(),
          field.at("parameters").texts(), field.at("states").boolean()};
}

std::optional<graph::DType> parse_dtype(const Field& field) {
  if (field.is_null()) return std::nullopt;
  const auto dtype = graph::dtype_of(field.text());
  if (!dtype) field.fail_rule("is a dtype such as \"bfloat16\"");
  return dtype;
}

Pipeline parse_pipeline(const Field& field) {
  field.allow({"axis", "starts", "chunks", "schedule", "group", "extra", "dtype", "forward",
               "backward", "weights", "transfer"});
  Pipeline pipeline;
  pipeline.axis = field.at("axis").text();
  pipeline.starts = field.at("starts").texts();
  pipeline.chunks = field.at("chunks").integer();
  pipeline.schedule = field.at("schedule").text();
  pipeline.group = field.at("group").integer();
  pipeline.extra = field.at("extra").integer();
  if (field.has("dtype")) pipeline.dtype = parse_dtype(field.at("dtype"));
  pipeline.forward = field.at("forward").number();
  pipeline.backward = field.at("backward").number();
  pipeline.weights = field.at("weights").number();
  if (field.has("transfer")) pipeline.transfer = field.at("transfer").number();
  return pipeline;
}

Offload parse_offload(const Field& field) {
  field.allow({"activations", "parameters", "optimizer", "prefetch"});
  return {field.at("activations").texts(), field.at("parameters").boolean(),
          field.at("optimizer").boolean(), field.at("prefetch").integer()};
}

Overlap parse_overlap(const Field& field) {
  field.allow({"accumulate", "step", "receives", "slices", "sliced", "whole", "bulk", "deferred",
               "deferred_limit", "experts", "weights", "activations"});
  Overlap overlap{.accumulate = field.at("accumulate").boolean(),
                  .step = field.at("step").boolean(),
                  .receives = field.at("receives").boolean(),
                  .slices = field.at("slices").integer()};
  if (field.has("sliced")) overlap.sliced = field.at("sliced").texts();
  if (field.has("whole")) overlap.whole = field.at("whole").texts();
  if (field.has("bulk")) overlap.bulk = field.at("bulk").texts();
  if (field.has("deferred")) {
    overlap.deferred = field.at("deferred").texts();
    overlap.deferred_limit = field.at("deferred_limit").integer();
  }
  overlap.activations = field.has("activations") && field.at("activations").boolean();
  overlap.experts = field.has("experts") && field.at("experts").boolean();
  overlap.weights = field.has("weights") && field.at("weights").boolean();
  return overlap;
}

// Missing keys have their default values.
Communication parse_communication(const Field& field) {
  field.allow({"bucket_bytes", "overlap", "buckets", "communicators", "reduce_dtype",
               "reduce_scale", "sum", "clip_first", "prefetch_forward", "prefetch_backward",
               "prefetch_bytes"});
  Communication communication;
  communication.bucket_bytes = field.at("bucket_bytes").integer();
  communication.overlap = field.at("overlap").boolean();
  for (const auto& [key, number] :
       {std::pair("buckets", &communication.buckets),
        std::pair("communicators", &communication.communicators),
        std::pair("prefetch_forward", &communication.prefetch_forward),
        std::pair("prefetch_backward", &communication.prefetch_backward),
        std::pair("prefetch_bytes", &communication.prefetch_bytes)}) {
    if (field.has(key)) *number = field.at(key).integer();
  }
  for (const auto& [key, flag] :
       {std::pair("sum", &communication.sum), std::pair("clip_first", &communication.clip_first)}) {
    if (field.has(key)) *flag = field.at(key).boolean();
  }
  if (field.has("reduce_dtype")) {
    communication.reduce_dtype = parse_dtype(field.at("reduce_dtype"));
  }
  if (field.has("reduce_scale")) communication.reduce_scale = field.at("reduce_scale").number();
  return communication;
}

mesh::Mesh parse_mesh(const Field& field) {
  field.allow({"axes", "order", "submeshes"});
  mesh::Mesh mesh;
  for (const auto& axis : field.at("axes").items()) {
    axis.allow({"name", "size"});
    mesh.axes.push_back({axis.at("name").text(), axis.at("size").integer()});
    if (mesh.axes.back().size < 1) axis.at("size").fail_rule("is at least 1");
  }
  for (const auto& rank : field.at("order").items()) mesh.order.push_back(rank.integer());
  if (!field.has("submeshes")) return mesh;
  for (const auto& submesh : field.at("submeshes").items()) {
    auto& sizes = mesh.stages.emplace_back(std::max<size_t>(1, mesh.axes.size()) - 1, 1);
    for (const auto& [name, size] : submesh.members()) {
      const int axis = mesh.find(name);
      if (axis < 0 || axis >= std::ssize(sizes)) {
        submesh.fail_rule("has sizes of axes before the last one");
      }
      sizes[static_cast<size_t>(axis)] = size.integer();
    }
  }
  return mesh;
}

Fp8 parse_fp8(const Field& field) {
  field.allow({"format", "recipe", "margin", "amax_history_len", "amax_compute_algo", "interval",
               "reduce_amax", "block", "wgrad", "scopes", "product"});
  using Recipe = Fp8::Recipe;
  using Product = Fp8::Product;
  return {.format = one_of(field.at("format"), {Fp8::Format::e4m3, Fp8::Format::hybrid}),
          .recipe = one_of(field.at("recipe"), {Recipe::delayed, Recipe::tensorwise,
                                                Recipe::rowwise, Recipe::blockwise}),
          .margin = field.at("margin").integer(),
          .amax_history_len = field.at("amax_history_len").integer(),
          .interval = field.has("interval") ? field.at("interval").integer() : 1,
          .amax_compute_algo = one_of(field.at("amax_compute_algo"),
                                      {Fp8::Amax::most_recent, Fp8::Amax::max}),
          .block = field.at("block").integer(),
          .reduce_amax = !field.has("reduce_amax") || field.at("reduce_amax").boolean(),
          .wgrad = field.at("wgrad").boolean(),
          .scopes = field.at("scopes").texts(),
          .product = field.has("product")
                         ? one_of(field.at("product"), {Product::emulated, Product::native})
                         : Product::emulated};
}

graph::Adapters parse_adapters(const Field& field) {
  field.allow({"weights", "rank", "alpha", "dropout", "rslora", "trained"});
  graph::Adapters adapters{.weights = field.at("weights").texts(),
                           .trained = field.at("trained").texts(),
                           .rank = field.at("rank").integer(),
                           .alpha = field.at("alpha").number(),
                           .dropout = field.at("dropout").number(),
                           .rslora = field.at("rslora").boolean()};
  if (adapters.weights.empty()) field.at("weights").fail_rule("names at least one weight");
  if (adapters.rank < 1) field.at("rank").fail_rule("is at least 1");
  if (!(adapters.dropout >= 0 && adapters.dropout < 1)) {
    field.at("dropout").fail_rule("is at least 0 and below 1");
  }
  return adapters;
}

Precision parse_precision(const Field& field) {
  field.allow({"dtype", "parameters", "gradients", "allow", "deny", "promote", "scopes",
               "keep_weights", "skip_nonfinite", "loss_scale"});
  using Parameters = Precision::Parameters;
  Precision precision;
  if (field.has("dtype")) precision.dtype = parse_dtype(field.at("dtype"));
  precision.parameters = one_of(field.at("parameters"),
                                {Parameters::as_captured, Parameters::masters, Parameters::low});
  if (field.has("gradients")) precision.gradients = parse_dtype(field.at("gradients"));
  precision.allow = field.at("allow").texts();
  precision.deny = field.at("deny").texts();
  precision.promote = field.at("promote").texts();
  precision.scopes = field.at("scopes").texts();
  if (field.has("keep_weights")) precision.keep_weights = field.at("keep_weights").boolean();
  precision.skip_nonfinite = field.at("skip_nonfinite").boolean();
  const auto scale = field.at("loss_scale");
  scale.allow({"kind", "init_scale", "growth_factor", "backoff_factor", "growth_interval",
               "min_scale", "hysteresis"});
  using Kind = LossScale::Kind;
  auto& read = precision.loss_scale;
  read.kind = one_of(scale.at("kind"), {Kind::none, Kind::fixed, Kind::dynamic, Kind::given});
  read.init_scale = scale.at("init_scale").number();
  read.growth_factor = scale.at("growth_factor").number();
  read.backoff_factor = scale.at("backoff_factor").number();
  read.growth_interval = scale.at("growth_interval").integer();
  if (scale.has("min_scale")) read.min_scale = scale.at("min_scale").number();
  if (scale.has("hysteresis")) read.hysteresis = scale.at("hysteresis").integer();
  return precision;
}

// An object that has a key twice is refused: the parser alone would keep the last value.
json parse_document(std::string_view text, const std::string& file) {
  check_json_depth(text, "plan", file);
  std::vector<std::set<std::string>> keys;  // of the objects that are being read, outermost first
  const auto check = [&](int, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value).second) {
      fail("plan", "{}: an object has the key \"{}\" twice", file, value.get<std::string>());
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& e) {
    fail("plan", "{}: the file is JSON, but got: {}", file, e.what());
  }
}

}  // namespace

Plan parse(std::string_view text, std::string_view file_name) {
  const std::string file(file_name);
  const auto document = parse_document(text, file);
  const Field root(document, file, "");
  if (root.at("format").text() != kFormat) {
    root.at("format").fail_rule(fmt::format("is \"{}\"", kFormat));
  }
  root.allow({"format",     "graph",     "mesh",          "microbatches", "batch_axes",
              "placements", "copy_axes", "averages",      "units",        "pipeline",
              "rules",      "rewrites",  "recompute",     "offload",      "overlap",
              "precision",  "fp8",       "communication", "prediction",   "decisions",
              "forbidden",  "adapters",  "loss_chunks",   "products"});

  Plan plan;
  plan.graph_hash = root.at("graph").text();
  plan.mesh = parse_mesh(root.at("mesh"));
  plan.microbatches = root.at("microbatches").integer();
  if (plan.microbatches < 1) root.at("microbatches").fail_rule("is at least 1");
  plan.batch_axes = mesh::AxisSet::parse(root.at("batch_axes").text());
  for (const auto& [name, field] : root.at("placements").members()) {
    plan.placements[name] = field.placements();
  }

  if (root.has("loss_chunks")) plan.loss_chunks = root.at("loss_chunks").integer();
  if (root.has("products")) {
    for (const auto& [name, way] : root.at("products").members()) plan.products[name] = way.text();
  }
  if (root.has("forbidden")) plan.forbidden = root.at("forbidden").texts();
  if (root.has("copy_axes")) plan.copy_axes = mesh::AxisSet::parse(root.at("copy_axes").text());
  if (root.has("averages")) {
    for (const auto& item : root.at("averages").items()) {
      plan.averages.push_back(parse_average(item));
    }
  }
  if (root.has("units")) {
    for (const auto& unit : root.at("units").items()) plan.units.push_back(parse_unit(unit));
  }
  if (root.has("pipeline")) plan.pipeline = parse_pipeline(root.at("pipeline"));
  for (const auto& [op, text] : root.at("rules").members()) plan.rules[op] = text.text();

  const auto recompute = root.at("recompute");
  recompute.allow({"regions", "only", "keep", "keep_in", "kept_microbatches", "budget_bytes"});
  for (const auto& region : recompute.at("regions").items()) {
    plan.recompute.regions.push_back(region.texts());
  }
  plan.recompute.only = recompute.at("only").texts();
  plan.recompute.keep = recompute.at("keep").texts();
  if (recompute.has("keep_in")) {
    for (const auto& [scope, ops] : recompute.at("keep_in").members()) {
      plan.recompute.keep_in[scope] = ops.texts();
    }
  }
  if (recompute.has("kept_microbatches")) {
    plan.recompute.kept_microbatches = recompute.at("kept_microbatches").integer();
  }
  if (recompute.has("budget_bytes")) {
    plan.recompute.budget_bytes = recompute.at("budget_bytes").integer();
  }
  if (root.has("offload")) plan.offload = parse_offload(root.at("offload"));
  if (root.has("overlap")) plan.overlap = parse_overlap(root.at("overlap"));

  if (root.has("precision")) plan.precision = parse_precision(root.at("precision"));

  if (root.has("fp8")) plan.fp8 = parse_fp8(root.at("fp8"));
  if (root.has("adapters")) plan.adapters = parse_adapters(root.at("adapters"));
  if (root.has("rewrites")) {
    for (const auto& field : root.at("rewrites").items()) {
      field.allow({"name", "pattern", "replacement", "within"});
      Rewrite rewrite{.name = field.at("name").text()};
      if (field.has("pattern") || field.has("replacement")) {
        rewrite.pattern = field.at("pattern").text();
        rewrite.replacement = field.at("replacement").text();
      }
      if (field.has("within")) rewrite.within = field.at("within").texts();
      plan.rewrites.push_back(std::move(rewrite));
    }
  }

  plan.communication = parse_communication(root.at("communication"));

  const auto prediction = root.at("prediction");
  prediction.allow({"peak_bytes", "host_bytes", "step_seconds", "measured_share", "exact_memory"});
  for (const auto& bytes : prediction.at("peak_bytes").items()) {
    plan.prediction.peak_bytes.push_back(bytes.integer());
  }
  if (prediction.has("host_bytes")) {
    for (const auto& bytes : prediction.at("host_bytes").items()) {
      plan.prediction.host_bytes.push_back(bytes.integer());
    }
  }
  plan.prediction.step_seconds = prediction.at("step_seconds").number();
  if (prediction.has("measured_share")) {
    plan.prediction.measured_share = prediction.at("measured_share").number();
  }
  plan.prediction.exact_memory = prediction.at("exact_memory").boolean();

  for (const auto& decision : root.at("decisions").items()) {
    decision.allow({"by", "sentence"});
    plan.decisions.push_back({decision.at("by").text(), decision.at("sentence").text()});
  }
  return plan;
}

}  // namespace perigee::plan
