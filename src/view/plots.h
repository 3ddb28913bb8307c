// The metrics of one or several runs as charts and as a table.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "view/chart.h"
#include "view/metrics.h"

namespace perigee::view {

struct Run {
  std::string name;
  std::shared_ptr<const Metrics> metrics;
};

struct PlotOptions {
  // The columns of each chart; empty: loss with validation loss, rate, norm of the gradients, speed
  // and MFU, as far as the runs have them.
  std::vector<std::vector<std::string>> charts;
  std::string x = "step";  // "step", "samples", "tokens" or "seconds": sums up to each step
  bool logarithmic = false;
};

// Returns the columns of "loss,val_loss".
std::vector<std::string> columns_of(std::string_view text);

// Returns the charts. A line is a column of a run. Throws Error for a column that no run has,
// naming the nearest, and for an unknown x.
std::vector<Chart> plots(const std::vector<Run>& runs, const PlotOptions& options);

// Returns a table with a header (RFC 4180): run, step, and the columns of options.charts (empty:
// all columns of all runs), a row for each step of each run, floats with 17 significant digits; a
// value that a row does not have is empty. Throws Error as above.
std::string to_csv(const std::vector<Run>& runs, const PlotOptions& options);

}  // namespace perigee::view
