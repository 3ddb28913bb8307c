// The plan as JSON (perigee.plan/1): writing. parse.cc reads it.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "plan/format.h"
#include "plan/plan.h"

namespace perigee::plan {
namespace {

using nlohmann::json;

json to_json(const Precision& precision) {
  const auto& scale = precision.loss_scale;
  const auto dtype = [](const std::optional<graph::DType>& d) {
    return d ? json(graph::name_of(*d)) : json();
  };
  json loss_scale = {{"kind", name_of(scale.kind)},
                     {"init_scale", scale.init_scale},
                     {"growth_factor", scale.growth_factor},
                     {"backoff_factor", scale.backoff_factor},
                     {"growth_interval", scale.growth_interval}};
  if (scale.min_scale != 0) loss_scale["min_scale"] = scale.min_scale;
  if (scale.hysteresis != 1) loss_scale["hysteresis"] = scale.hysteresis;
  json result = {{"dtype", dtype(precision.dtype)},
                 {"parameters", name_of(precision.parameters)},
                 {"gradients", dtype(precision.gradients)},
                 {"allow", precision.allow},
                 {"deny", precision.deny},
                 {"promote", precision.promote},
                 {"scopes", precision.scopes},
                 {"skip_nonfinite", precision.skip_nonfinite},
                 {"loss_scale", loss_scale}};
  if (precision.keep_weights) result["keep_weights"] = true;
  return result;
}

// Leaves out keys with their default value.
json to_json(const Communication& communication) {
  const Communication usual;
  json result = {{"bucket_bytes", communication.bucket_bytes}, {"overlap", communication.overlap}};
  const auto add = [&](const char* key, const auto& value, const auto& otherwise) {
    if (value != otherwise) result[key] = value;
  };
  add("buckets", communication.buckets, usual.buckets);
  add("communicators", communication.communicators, usual.communicators);
  if (communication.reduce_dtype) {
    result["reduce_dtype"] = graph::name_of(*communication.reduce_dtype);
  }
  add("reduce_scale", communication.reduce_scale, usual.reduce_scale);
  add("sum", communication.sum, usual.sum);
  add("clip_first", communication.clip_first, usual.clip_first);
  add("prefetch_forward", communication.prefetch_forward, usual.prefetch_forward);
  add("prefetch_backward", communication.prefetch_backward, usual.prefetch_backward);
  add("prefetch_bytes", communication.prefetch_bytes, usual.prefetch_bytes);
  return result;
}

json to_json(const Fp8& fp8) {
  json field{{"format", name_of(fp8.format)},
             {"recipe", name_of(fp8.recipe)},
             {"margin", fp8.margin},
             {"amax_history_len", fp8.amax_history_len},
             {"amax_compute_algo", name_of(fp8.amax_compute_algo)},
             {"block", fp8.block},
             {"wgrad", fp8.wgrad},
             {"scopes", fp8.scopes}};
  if (fp8.interval != 1) field["interval"] = fp8.interval;
  if (!fp8.reduce_amax) field["reduce_amax"] = false;
  if (fp8.product != Fp8::Product::emulated) field["product"] = name_of(fp8.product);
  return field;
}

}  // namespace

std::string print(const Plan& plan) {
  json axes = json::array();
  for (const auto& axis : plan.mesh.axes)
    axes.push_back({{"name", axis.name}, {"size", axis.size}});
  json units = json::array();
  for (const auto& unit : plan.units) {
    units.push_back({{"name", unit.name},
                     {"parameters", unit.parameters},
                     {"axes", unit.axes.text()},
                     {"level", unit.level},
                     {"reshard_after_forward", unit.reshard_after_forward}});
    if (unit.one_copy) units.back()["one_copy"] = true;
  }
  json placements = json::object();
  for (const auto& [name, p] : plan.placements) placements[name] = mesh::to_string(p);
  json decisions = json::array();
  for (const auto& d : plan.decisions)
    decisions.push_back({{"by", d.by}, {"sentence", d.sentence}});
  if (!std::isfinite(plan.prediction.step_seconds)) {
    fail("plan", "prediction.step_seconds is finite, but got {}", plan.prediction.step_seconds);
  }
  json document = {
      {"format", kFormat},
      {"graph", plan.graph_hash},
      {"mesh", {{"axes", axes}, {"order", plan.mesh.order}}},
      {"microbatches", plan.microbatches},
      {"batch_axes", plan.batch_axes.text()},
      {"placements", placements},
      {"rules", plan.rules},
      {"recompute",
       {{"regions", plan.recompute.regions},
        {"only", plan.recompute.only},
        {"keep", plan.recompute.keep}}},
      {"prediction",
       {{"peak_bytes", plan.prediction.peak_bytes},
        {"step_seconds", plan.prediction.step_seconds},
        {"exact_memory", plan.prediction.exact_memory}}},
      {"decisions", decisions},
  };
  if (plan.prediction.measured_share > 0) {
    document["prediction"]["measured_share"] = plan.prediction.measured_share;
  }
  if (plan.precision != Precision()) document["precision"] = to_json(plan.precision);
  if (plan.fp8) document["fp8"] = to_json(*plan.fp8);
  if (const auto& a = plan.adapters) {
    document["adapters"] = {{"weights", a->weights}, {"rank", a->rank},
                            {"alpha", a->alpha},     {"dropout", a->dropout},
                            {"rslora", a->rslora},   {"trained", a->trained}};
  }
  for (const auto& rewrite : plan.rewrites) {
    json item = {{"name", rewrite.name}};
    if (!rewrite.pattern.empty() || !rewrite.replacement.empty()) {
      item["pattern"] = rewrite.pattern;
      item["replacement"] = rewrite.replacement;
    }
    if (!rewrite.within.empty()) item["within"] = rewrite.within;
    document["rewrites"].push_back(std::move(item));
  }
  // Fields with their default value are left out, so that plans without them keep their text
  // and hash.
  for (const auto& sizes : plan.mesh.stages) {
    json submesh = json::object();
    for (size_t a = 0; a < sizes.size(); ++a) {
      if (sizes[a] != 1) submesh[plan.mesh.axes[a].name] = sizes[a];
    }
    document["mesh"]["submeshes"].push_back(std::move(submesh));
  }
  if (!plan.units.empty()) document["units"] = units;
  if (const auto& p = plan.pipeline; p.cuts()) {
    document["pipeline"] = {
        {"axis", p.axis},         {"starts", p.starts},     {"chunks", p.chunks},
        {"schedule", p.schedule}, {"group", p.group},       {"extra", p.extra},
        {"forward", p.forward},   {"backward", p.backward}, {"weights", p.weights}};
    if (p.transfer != 0) document["pipeline"]["transfer"] = p.transfer;
    if (p.dtype) document["pipeline"]["dtype"] = graph::name_of(*p.dtype);
  }
  if (!plan.recompute.keep_in.empty()) {
    document["recompute"]["keep_in"] = plan.recompute.keep_in;
  }
  if (plan.recompute.kept_microbatches != 0) {
    document["recompute"]["kept_microbatches"] = plan.recompute.kept_microbatches;
  }
  if (plan.recompute.budget_bytes != 0) {
    document["recompute"]["budget_bytes"] = plan.recompute.budget_bytes;
  }
  if (const auto& o = plan.offload; o != Offload()) {
    document["offload"] = {{"activations", o.activations},
                           {"parameters", o.parameters},
                           {"optimizer", o.optimizer},
                           {"prefetch", o.prefetch}};
  }
  if (const auto& o = plan.overlap; o != Overlap()) {
    document["overlap"] = {{"accumulate", o.accumulate},
                           {"step", o.step},
                           {"receives", o.receives},
                           {"slices", o.slices}};
    if (o.sliced != Overlap::all_sliced()) document["overlap"]["sliced"] = o.sliced;
    if (!o.whole.empty()) document["overlap"]["whole"] = o.whole;
    if (o.bulk != Overlap::all_bulk()) document["overlap"]["bulk"] = o.bulk;
    if (!o.deferred.empty() || o.deferred_limit != 0) {
      document["overlap"]["deferred"] = o.deferred;
      document["overlap"]["deferred_limit"] = o.deferred_limit;
    }
    if (o.activations) document["overlap"]["activations"] = true;
    if (o.experts) document["overlap"]["experts"] = true;
    if (o.weights) document["overlap"]["weights"] = true;
  }
  if (!plan.prediction.host_bytes.empty()) {
    document["prediction"]["host_bytes"] = plan.prediction.host_bytes;
  }
  if (!plan.copy_axes.empty()) document["copy_axes"] = plan.copy_axes.text();
  if (plan.loss_chunks != 1) document["loss_chunks"] = plan.loss_chunks;
  if (!plan.products.empty()) document["products"] = plan.products;
  if (!plan.forbidden.empty()) document["forbidden"] = plan.forbidden;
  for (const auto& average : plan.averages) {
    document["averages"].push_back({{"axes", average.axes.text()},
                                    {"every", average.every},
                                    {"parameters", average.parameters},
                                    {"states", average.states}});
  }
  document["communication"] = to_json(plan.communication);
  return document.dump(2) + "\n";
}

}  // namespace perigee::plan
