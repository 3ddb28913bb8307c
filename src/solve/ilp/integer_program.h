// An integer program as data. CBC, which solves it, is a plugin that is loaded when first needed.
#pragma once

#include <utility>
#include <vector>

namespace perigee::solve {

class IntegerProgram {
 public:
  using Terms = std::vector<std::pair<int, double>>;  // column, coefficient; a column may repeat

  // Returns the new column's index. `most` may be infinity; an integer column takes whole
  // values only.
  struct Column {
    double cost = 0;
    double most = 0;
    bool integer = false;
  };
  int add_column(const Column& column);
  void add_cost(int column, double cost) { columns_[column].cost += cost; }
  void forbid(int column) { columns_[column].most = 0; }

  // Adds least <= sum of terms <= most; either may be infinite.
  struct Range {
    double least, most;
  };
  void add_row(const Terms& terms, Range range);

  enum class Ending { optimal, infeasible, stopped };
  struct Answer {
    Ending ending = Ending::stopped;
    std::vector<double> values;  // empty where no solution was found
    double bound = 0;            // no solution costs less
  };
  // Minimises the cost. Throws Error (failed) where the plugin libperigee_cbc.so is not in the
  // folder of this library.
  Answer minimise(double seconds) const;

  const std::vector<Column>& columns() const { return columns_; }
  // Returns the rows, in each of which columns are ascending and distinct.
  const std::vector<Terms>& rows() const { return rows_; }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Column> columns_;
  std::vector<Terms> rows_;
  std::vector<Range> ranges_;
};

// The function that the plugin exports as "perigee_cbc_minimise": fills in the answer,
// prints nothing.
using MinimiseFunction = void (*)(const IntegerProgram& program, double seconds,
                                  IntegerProgram::Answer& answer);

}  // namespace perigee::solve
