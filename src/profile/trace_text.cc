#include "profile/trace_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace perigee::profile {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMost = int64_t{1} << 50;  // of bytes and strides: sums of them do not overflow

bool read(const Json& json, int64_t least, int64_t most, int64_t& number) {
  if (!json.is_number_integer()) return false;
  number = json.get<int64_t>();
  return number >= least && number <= most;
}

// Reads a list of numbers. Returns whether it is one.
template <class Number>
bool read(const Json& json, int64_t least, int64_t most, std::vector<Number>& list) {
  if (!json.is_array()) return false;
  for (const auto& item : json) {
    int64_t number = 0;
    if (!read(item, least, most, number)) return false;
    list.push_back(static_cast<Number>(number));
  }
  return true;
}

bool read(const Json& json, compile::OpTrace& trace) {
  if (!json.is_object()) return false;
  const auto field = [&](const char* name) { return json.value(name, Json()); };
  if (!read(field("allocations"), 0, kMost, trace.allocations)) return false;
  const auto allocations = std::ssize(trace.allocations);
  const auto freed = field("freed_before"), strides = field("output_strides");
  if (!freed.is_array() || std::ssize(freed) != allocations || !strides.is_array()) return false;
  for (const auto& earlier : freed) {
    const auto last = std::ssize(trace.freed_before) - 1;
    if (!read(earlier, 0, last, trace.freed_before.emplace_back())) return false;
  }
  if (!read(field("output_allocation"), -1, allocations - 1, trace.output_allocation)) return false;
  if (strides.size() != trace.output_allocation.size()) return false;
  for (const auto& output : strides) {
    if (!read(output, 0, kMost, trace.output_strides.emplace_back())) return false;
  }
  const auto complete = json.value("complete", Json(true));
  if (complete.is_boolean()) trace.complete = complete.get<bool>();
  return complete.is_boolean() &&
         read(json.value("worker_bytes", Json(0)), 0, kMost, trace.worker_bytes);
}

}  // namespace

std::string print(const std::optional<compile::OpTrace>& trace) {
  if (!trace) return "null";
  Json json{{"allocations", trace->allocations},
            {"freed_before", trace->freed_before},
            {"output_allocation", trace->output_allocation},
            {"output_strides", trace->output_strides}};
  if (trace->worker_bytes > 0) json["worker_bytes"] = trace->worker_bytes;
  if (!trace->complete) json["complete"] = false;
  return json.dump();
}

std::optional<std::optional<compile::OpTrace>> parse_trace(const std::string& text) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_null()) return std::optional<compile::OpTrace>();
  compile::OpTrace trace;
  if (!read(json, trace)) return std::nullopt;
  return std::optional<compile::OpTrace>(std::move(trace));
}

bool describes(const compile::OpTrace& trace, const compile::OpInstance& instance) {
  if (trace.output_allocation.size() != instance.outputs.size()) return false;
  for (size_t k = 0; k < instance.outputs.size(); ++k) {
    const auto& type = instance.outputs[k];
    if (type && trace.output_strides[k].size() != type->shape.size()) return false;
  }
  return true;
}

}  // namespace perigee::profile
