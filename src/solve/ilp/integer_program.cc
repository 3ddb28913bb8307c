#include "solve/ilp/integer_program.h"

#include <algorithm>

#include "base/plugin.h"

namespace perigee::solve {

int IntegerProgram::add_column(const Column& column) {
  columns_.push_back(column);
  return static_cast<int>(columns_.size()) - 1;
}

void IntegerProgram::add_row(const Terms& terms, Range range) {
  // CBC takes each column once per row.
  Terms sorted = terms;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  Terms merged;
  for (const auto& [column, value] : sorted) {
    if (!merged.empty() && merged.back().first == column) {
      merged.back().second += value;
    } else {
      merged.emplace_back(column, value);
    }
  }
  rows_.push_back(std::move(merged));
  ranges_.push_back(range);
}

IntegerProgram::Answer IntegerProgram::minimise(double seconds) const {
  static const auto plugin = reinterpret_cast<MinimiseFunction>(
      open_plugin("solve", "the solver ilp", "perigee_cbc", "perigee_cbc_minimise"));
  Answer answer;
  plugin(*this, seconds, answer);
  return answer;
}

}  // namespace perigee::solve
