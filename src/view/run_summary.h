// The end of a run as a table.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace perigee::view {

// A name ("peak memory") and a text.
using SummaryRow = std::pair<std::string, std::string>;

// Returns what the folder of a run tells of its last step and its summary: the losses, the speed,
// the peak memory counted and predicted (of the largest rank), the share of the devices' peak and the
// newest complete checkpoint. Rows without a value are left out. Throws Error as Metrics::read.
std::vector<SummaryRow> summary_rows(const std::string& folder);

// Returns a line for each row, its text at one column for all.
std::vector<std::string> aligned(const std::vector<SummaryRow>& rows);

}  // namespace perigee::view
