// perigee solve: a solver on a problem file.
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "command.h"
#include "solve/solve.h"

namespace perigee::command {
namespace {

solve::Problem load_problem(const std::string& path) {
  const auto text = read_file(path);
  try {
    return solve::parse_problem(text);
  } catch (const Error& error) {
    constexpr std::string_view area = "[solve] ";
    std::string_view what = error.what();
    if (what.starts_with(area)) what.remove_prefix(area.size());
    throw Error(error.status(), "solve", fmt::format("{}: {}", path, what));
  }
}

}  // namespace

void add_solve_command(CLI::App& app, Action& action) {
  struct Options {
    std::string file;
    solve::Options solve;
    OutputOptions output;
  };
  auto options = std::make_shared<Options>();
  auto* sub = add_command(app, "solve", "run a solver on a problem file",
                          {"perigee solve problem.json",
                           "perigee solve problem.json --solver ilp --time-limit 60 --json"});
  sub->add_option("PROBLEM", options->file, "a perigee.problem/1 file")->required();
  sub->add_option("--solver", options->solve.solver, "auto, labels or ilp");
  sub->add_option("--time-limit", options->solve.time_limit,
                  "seconds; then the best found, with its bound");
  add_output_options(*sub, options->output);
  sub->callback([options, &action] {
    action = [options] {
      const auto problem = load_problem(options->file);
      const auto result = solve::solve(problem, options->solve);
      write_result(options->output,
                   options->output.json ? solve::to_json(result) : solve::to_text(result, problem));
      return static_cast<int>(result.verdict == solve::Verdict::infeasible ? Status::infeasible
                                                                           : Status::done);
    };
  });
}

}  // namespace perigee::command
