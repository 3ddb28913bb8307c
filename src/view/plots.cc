#include "view/plots.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/fail.h"

namespace perigee::view {
namespace {

// Returns the names of all runs' columns, in the order of the first run that has each.
std::vector<std::string> all_names(const std::vector<Run>& runs) {
  std::vector<std::string> names;
  for (const auto& run : runs) {
    for (const auto& name : run.metrics->names()) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

void check_column(const std::vector<Run>& runs, const std::string& name) {
  const auto known = all_names(runs);
  if (std::ranges::find(known, name) != known.end()) return;
  fail("metrics", "a column must be in the metrics of a run, but no run has \"{}\"{}", name,
       did_you_mean(name, known));
}

std::vector<std::vector<std::string>> default_charts(const std::vector<Run>& runs) {
  const auto known = all_names(runs);
  std::vector<std::vector<std::string>> charts;
  for (const auto& columns : std::vector<std::vector<std::string>>{
           {"loss", "val_loss"}, {"lr"}, {"grad_norm"}, {"tokens_per_s"}, {"mfu"}, {"step_s"}}) {
    auto found = columns;
    std::erase_if(found,
                  [&](const auto& name) { return std::ranges::find(known, name) == known.end(); });
    if (!found.empty()) charts.push_back(std::move(found));
  }
  return charts;
}

// Returns x of each row.
std::vector<double> positions(const Metrics& metrics, const std::string& x) {
  const auto* values = metrics.find(x == "seconds" ? "step_s" : x);
  if (!values) return std::vector<double>(static_cast<size_t>(metrics.rows()), std::nan(""));
  auto made = *values;
  if (x == "step") return made;
  double sum = 0;
  for (auto& value : made) value = sum += std::isfinite(value) ? value : 0;
  return made;
}

}  // namespace

std::vector<std::string> columns_of(std::string_view text) {
  std::vector<std::string> columns;
  for (size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    if (end > begin) columns.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return columns;
}

std::vector<Chart> plots(const std::vector<Run>& runs, const PlotOptions& options) {
  const std::vector<std::string> kinds = {"step", "samples", "tokens", "seconds"};
  if (std::ranges::find(kinds, options.x) == kinds.end()) {
    fail("metrics", "x is one of {}, but got \"{}\"{}", fmt::join(kinds, ", "), options.x,
         did_you_mean(options.x, kinds));
  }
  std::vector<Chart> charts;
  for (const auto& columns : options.charts.empty() ? default_charts(runs) : options.charts) {
    Chart chart{.title = fmt::format("{}", fmt::join(columns, ", ")),
                .x_label = options.x,
                .logarithmic = options.logarithmic};
    for (const auto& name : columns) check_column(runs, name);
    for (const auto& run : runs) {
      for (const auto& name : columns) {
        const auto* values = run.metrics->find(name);
        if (!values) continue;
        const auto label = runs.size() == 1      ? name
                           : columns.size() == 1 ? run.name
                                                 : run.name + " " + name;
        chart.lines.push_back({label, positions(*run.metrics, options.x), *values});
      }
    }
    charts.push_back(std::move(chart));
  }
  return charts;
}

std::string to_csv(const std::vector<Run>& runs, const PlotOptions& options) {
  std::vector<std::string> names;
  for (const auto& columns : options.charts) {
    for (const auto& name : columns) {
      check_column(runs, name);
      names.push_back(name);
    }
  }
  if (options.charts.empty()) names = all_names(runs);
  std::erase(names, "step");
  const auto quoted = [](const std::string& text) {
    if (text.find_first_of(",\"\r\n") == text.npos) return text;
    std::string made = "\"";
    for (const char c : text) made += c == '"' ? std::string("\"\"") : std::string(1, c);
    return made + "\"";
  };
  const auto number = [](double value) {
    return std::isfinite(value) ? fmt::format("{:.17g}", value) : std::string();
  };
  std::string table = "run,step";
  for (const auto& name : names) table += "," + quoted(name);
  table += "\r\n";
  for (const auto& run : runs) {
    const auto* steps = run.metrics->find("step");
    for (int64_t row = 0; row < run.metrics->rows(); ++row) {
      table += quoted(run.name) + "," + (steps ? number((*steps)[row]) : "");
      for (const auto& name : names) {
        const auto* values = run.metrics->find(name);
        table += "," + (values ? number((*values)[row]) : "");
      }
      table += "\r\n";
    }
  }
  return table;
}

}  // namespace perigee::view
