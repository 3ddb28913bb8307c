// CBC through its C interface, as a plugin: loading its libraries would cost every
// command milliseconds.
#include <Cbc_C_Interface.h>

#include <ClpSimplex.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>

#include "solve/ilp/integer_program.h"

namespace perigee::solve {
namespace {

// Columns, and coefficients in all rows, above which the relaxation is solved by itself first.
constexpr int kLarge = 20000;
constexpr CoinBigIndex kMany = 100000;

struct Delete {
  void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
};

void minimise(const IntegerProgram& program, double seconds, IntegerProgram::Answer& answer) {
  const int columns = static_cast<int>(program.columns().size()),
            rows = static_cast<int>(program.rows().size());
  std::vector<CoinBigIndex> start(columns + 1, 0);
  for (const auto& row : program.rows()) {
    for (const auto& term : row) ++start[term.first + 1];
  }
  for (int c = 0; c < columns; ++c) start[c + 1] += start[c];
  std::vector<int> index(start[columns]);
  std::vector<double> value(start[columns]);
  auto next = start;
  for (int r = 0; r < rows; ++r) {
    for (const auto& [column, coefficient] : program.rows()[r]) {
      index[next[column]] = r;
      value[next[column]++] = coefficient;
    }
  }
  std::vector<double> least(columns, 0.0), most, cost, row_least, row_most;
  for (const auto& column : program.columns()) {
    most.push_back(column.most);
    cost.push_back(column.cost);
  }
  for (const auto& range : program.ranges()) {
    row_least.push_back(range.least);
    row_most.push_back(range.most);
  }
  if ((columns > kLarge || start[columns] > kMany) && std::isfinite(seconds)) {
    // CBC checks its time limit only after the first relaxation, which takes long for
    // large programs.
    const auto begin = std::chrono::steady_clock::now();
    ClpSimplex relaxation;
    relaxation.setLogLevel(0);
    relaxation.loadProblem(columns, rows, start.data(), index.data(), value.data(), least.data(),
                           most.data(), cost.data(), row_least.data(), row_most.data());
    relaxation.setMaximumWallSeconds(seconds);
    relaxation.dual();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (relaxation.isProvenOptimal()) answer.bound = relaxation.objectiveValue();
    // CBC would take the same time for its own relaxation.
    if (!relaxation.isProvenPrimalInfeasible() && 2 * taken.count() > seconds) return;
    seconds = std::max(seconds - taken.count(), 0.01);
  }
  std::unique_ptr<Cbc_Model, Delete> model(Cbc_newModel());
  Cbc_setLogLevel(model.get(), 0);
  Cbc_setParameter(model.get(), "logLevel", "0");
  Cbc_setParameter(model.get(), "slogLevel", "0");
  Cbc_setParameter(model.get(), "timeMode", "elapsed");
  Cbc_loadProblem(model.get(), columns, rows, start.data(), index.data(), value.data(),
                  least.data(), most.data(), cost.data(), row_least.data(), row_most.data());
  for (int c = 0; c < columns; ++c) {
    if (program.columns()[c].integer) Cbc_setInteger(model.get(), c);
  }
  Cbc_setObjSense(model.get(), 1);
  Cbc_setParameter(model.get(), "allowableGap", "0");
  Cbc_setParameter(model.get(), "ratioGap", "0");
  Cbc_setParameter(model.get(), "increment", "1e-7");
  if (std::isfinite(seconds))
    Cbc_setParameter(model.get(), "seconds", std::to_string(seconds).c_str());
  Cbc_solve(model.get());

  if (Cbc_isProvenInfeasible(model.get()) && !Cbc_isSecondsLimitReached(model.get())) {
    answer.ending = IntegerProgram::Ending::infeasible;
    return;
  }
  const bool optimal = Cbc_isProvenOptimal(model.get()) && !Cbc_isSecondsLimitReached(model.get());
  answer.ending = optimal ? IntegerProgram::Ending::optimal : IntegerProgram::Ending::stopped;
  answer.bound = Cbc_getBestPossibleObjValue(model.get());
  if (optimal || Cbc_numberSavedSolutions(model.get()) > 0) {
    const double* values = Cbc_getColSolution(model.get());
    answer.values.assign(values, values + columns);
  }
}

}  // namespace
}  // namespace perigee::solve

extern "C" void perigee_cbc_minimise(const perigee::solve::IntegerProgram& program, double seconds,
                                     perigee::solve::IntegerProgram::Answer& answer) {
  perigee::solve::minimise(program, seconds, answer);
}
