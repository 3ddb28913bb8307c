#include "view/run_summary.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>

#include "base/log_format.h"
#include "base/text/bytes.h"
#include "view/metrics.h"

namespace perigee::view {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";

// Returns the value of a row, NaN where the column has none.
double value_of(const Metrics& metrics, std::string_view name, int64_t row) {
  const auto* values = metrics.find(name);
  return values && row >= 0 ? (*values)[static_cast<size_t>(row)] : NAN;
}

int64_t step_of(const Metrics& metrics, int64_t row) {
  const auto step = value_of(metrics, "step", row);
  return std::isfinite(step) ? static_cast<int64_t>(step) : 0;
}

std::string validation_text(const Metrics& metrics) {
  const auto* values = metrics.find("val_loss");
  if (!values) return "";
  int64_t last = -1, lowest = -1;
  for (int64_t row = 0; row < metrics.rows(); ++row) {
    const auto value = value_of(metrics, "val_loss", row);
    if (!std::isfinite(value)) continue;
    last = row;
    if (lowest < 0 || value < value_of(metrics, "val_loss", lowest)) lowest = row;
  }
  if (last < 0) return "";
  auto text = fmt::format("{:.4f}", value_of(metrics, "val_loss", last));
  if (lowest == last) return text;
  return text + fmt::format(", lowest {:.4f} after step {}", value_of(metrics, "val_loss", lowest),
                            step_of(metrics, lowest));
}

std::string speed_text(const Metrics& metrics, double step_s) {
  if (!(step_s > 0)) return "";
  const auto last = metrics.rows() - 1;
  const auto tokens = value_of(metrics, "tokens", last);
  const auto count = tokens > 0 ? tokens : value_of(metrics, "samples", last);
  if (!(count > 0)) return "";
  return fmt::format("{:.0f} {}/s, {:.1f} ms a step", count / step_s,
                     tokens > 0 ? "tokens" : "samples", 1e3 * step_s);
}

// Returns the largest number of a list of the summary as bytes; "" where it has none.
std::string largest_text(const nlohmann::json& summary, const char* key) {
  const auto found = summary.find(key);
  if (found == summary.end() || !found->is_array() || found->empty()) return "";
  double largest = 0;
  for (const auto& bytes : *found) {
    if (bytes.is_number()) largest = std::max(largest, bytes.get<double>());
  }
  return bytes_text(largest);
}

std::string memory_text(const nlohmann::json& summary) {
  const auto counted = largest_text(summary, "peak_bytes");
  const auto predicted = largest_text(summary, "predicted_peak_bytes");
  if (counted.empty()) return "";
  return counted + " counted" + (predicted.empty() ? "" : ", " + predicted + " predicted");
}

std::string newest_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  int64_t newest = -1;
  std::string path;
  for (const auto& entry : fs::directory_iterator(folder / "checkpoints", ignored)) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with(kStep)) continue;
    int64_t step = -1;
    const char* const last = name.data() + name.size();
    const auto [end, error] = std::from_chars(name.data() + kStep.size(), last, step);
    if (error != std::errc() || end != last || step <= newest) continue;
    if (!fs::exists(entry.path() / "COMPLETE", ignored)) continue;
    newest = step;
    path = entry.path().string();
  }
  return path;
}

}  // namespace

std::vector<SummaryRow> summary_rows(const std::string& folder) {
  Metrics metrics((fs::path(folder) / "metrics.jsonl").string());
  metrics.read();
  const auto& summary = metrics.summary();
  const bool ended = summary.is_object();
  const auto number = [&](const char* key) {
    return ended && summary.contains(key) && summary[key].is_number() ? summary[key].get<double>()
                                                                      : NAN;
  };
  std::vector<SummaryRow> rows;
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) rows.emplace_back(name, text);
  };
  const auto last = metrics.rows() - 1;
  if (const auto loss = value_of(metrics, "loss", last); std::isfinite(loss)) {
    add("loss", fmt::format("{:.4f} after step {}", loss, step_of(metrics, last)));
  }
  add("validation loss", validation_text(metrics));
  add("speed", speed_text(metrics, number("step_s")));
  add("peak memory", ended ? memory_text(summary) : "");
  if (const auto mfu = number("mfu"); std::isfinite(mfu)) {
    add("utilisation", fmt::format("{:.1f}% of the devices' peak", 100 * mfu));
  }
  add("checkpoint", newest_checkpoint(folder));
  return rows;
}

std::vector<std::string> aligned(const std::vector<SummaryRow>& rows) {
  size_t width = 0;
  for (const auto& [name, text] : rows) width = std::max(width, name.size());
  std::vector<std::string> lines;
  for (const auto& [name, text] : rows) {
    lines.push_back(name + std::string(width + 2 - name.size(), ' ') + text);
  }
  return lines;
}

}  // namespace perigee::view
