// plot: the metrics of runs as charts (SVG), a table (CSV) or JSON.
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/log_format.h"
#include "command.h"
#include "view/plots.h"
#include "view/run_format.h"

namespace perigee::command {
namespace {

namespace fs = std::filesystem;

struct PlotOptions {
  std::vector<std::string> runs, charts;
  view::PlotOptions plot;
  OutputOptions output;
};

// Returns the runs with names that differ: the last folder of each path, or the whole path.
std::vector<view::Run> read_runs(const std::vector<std::string>& paths) {
  std::vector<view::Run> runs;
  for (const auto& path : paths) {
    std::error_code none;
    const bool folder = fs::is_directory(path, none);
    const auto file = folder ? (fs::path(path) / "metrics.jsonl").string() : path;
    if (!is_file(file)) {
      fail("command", "a run is a folder with metrics.jsonl, but there is no {}", file);
    }
    auto where = fs::path(folder ? path : fs::path(file).parent_path().string()).lexically_normal();
    if (where.filename().empty()) where = where.parent_path();
    view::require_run_format(where.string());
    auto metrics = std::make_shared<view::Metrics>(file);
    metrics->read();
    runs.push_back({where.filename().string(), metrics});
    if (metrics->damaged() > 0) {
      log::warn("{} has {} damaged lines, which are left out", file, metrics->damaged());
    }
    if (metrics->rows() == 0) fail("command", "a plot needs steps, but {} has none yet", file);
  }
  for (size_t a = 0; a < runs.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (runs[a].name != runs[b].name) continue;
      runs[a].name = paths[a];
      runs[b].name = paths[b];
    }
  }
  return runs;
}

std::string to_json(const std::vector<view::Run>& runs) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& run : runs) {
    auto columns = nlohmann::ordered_json::object();
    for (const auto& name : run.metrics->names()) {
      auto& column = columns[name] = nlohmann::ordered_json::array();
      for (const double value : *run.metrics->find(name)) {
        column.push_back(std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr);
      }
    }
    list.push_back({{"name", run.name}, {"columns", columns}, {"summary", run.metrics->summary()}});
  }
  return nlohmann::ordered_json{{"runs", list}}.dump(
             -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

int run_plot(PlotOptions& options) {
  for (const auto& chart : options.charts) {
    const auto& columns = options.plot.charts.emplace_back(view::columns_of(chart));
    if (columns.empty()) fail("command", "--chart takes columns, \"loss,val_loss\", but got none");
  }
  const auto kind = fs::path(options.output.file).extension();
  if (!options.output.file.empty() && !options.output.json && kind != ".svg" && kind != ".csv") {
    fail("command", "plot writes .svg or .csv (or --json), but -o is {}", options.output.file);
  }
  const auto& plot = options.plot;
  if (options.output.json &&
      (!plot.charts.empty() || plot.x != view::PlotOptions().x || plot.logarithmic)) {
    log::warn("--chart, --x and --log have no effect on --json, which has all columns");
  }
  const auto runs = read_runs(options.runs);
  write_result(options.output, options.output.json ? to_json(runs)
                               : kind == ".csv"    ? view::to_csv(runs, options.plot)
                                                   : view::to_svg(view::plots(runs, options.plot)));
  return 0;
}

}  // namespace

void add_plot_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<PlotOptions>();
  auto* sub = add_command(
      app, "plot", "draw the metrics of runs",
      {"perigee plot runs/gpt -o loss.svg",
       "perigee plot runs/a runs/b --chart loss,val_loss --x tokens -o both.svg",
       "perigee plot runs/a -o steps.csv"});
  sub->add_option("RUN", options->runs, "folders of runs, or their metrics.jsonl")->required();
  add_texts(*sub, "--chart", options->charts,
            "columns of one chart, such as loss,val_loss; may be given several times. "
            "Default: loss, rate, norm of the gradients and speed");
  sub->add_option("--x", options->plot.x, "step, samples, tokens or seconds")
      ->default_str(options->plot.x);
  sub->add_flag("--log", options->plot.logarithmic, "logarithmic values");
  add_output_options(*sub, options->output);
  sub->callback([options, &action] { action = [options] { return run_plot(*options); }; });
}

}  // namespace perigee::command
