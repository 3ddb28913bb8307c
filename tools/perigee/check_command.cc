// perigee check: a strategy, and the plan of a job by it. Opens no code (runtime/security.md).
#include <algorithm>
#include <memory>
#include <optional>

#include "base/fail.h"
#include "base/log_format.h"
#include "code.h"
#include "command.h"
#include "host.h"
#include "lua/strategy.h"
#include "plan/rewrites.h"
#include "task.h"

namespace perigee::command {
namespace {

// Returns the names of the script's methods, one a line.
std::string list_methods(lua::StrategyScript& script) {
  const auto strategy = script.resolve({}, {});
  if (strategy.plan) plan::apply(strategy.plan->rewrites, {});  // checks the ops that it names
  std::string text;
  for (const auto& warning : strategy.warnings) log::warn("{}", warning);
  for (const auto& use : strategy.methods) text += fmt::format("{}\n", use.method->name());
  return text;
}

// Returns whether the script sets the job's key.
bool sets(const lua::StrategyScript& script, std::string_view key) {
  return std::ranges::any_of(script.set(), [&](const job::Assignment& assignment) {
    return assignment.text.substr(0, assignment.text.find('=')) == key;
  });
}

int run_check(const std::string& strategy, const JobOptions& options) {
  if (strategy.ends_with(".toml")) {
    fail("command",
         "perigee check takes a strategy script, but {} is a job: perigee plan {} checks it, and "
         "perigee check STRATEGY.lua {} a script for it",
         strategy, strategy, strategy);
  }
  lua::Options limits;
  limits.limits = {options.script_seconds, options.script_megabytes};
  limits.runtime_folder = shipped_folder("runtime");
  lua::StrategyScript script(strategy, limits);
  auto with_job = options;
  with_job.strategy = strategy;
  if (with_job.file.empty() && script.job()) with_job.file = *script.job();
  std::optional<train::Task> task;
  if (!with_job.file.empty()) task = make_task(with_job, std::nullopt);
  // A sampler that the script sets must stay in the job while the plan is made.
  const auto model = task ? model_code(task->job) : "";
  const auto sampler = task ? take_sampler(task->job) : "";
  const bool no_plan = !model.empty() || (!sampler.empty() && sets(script, "data.sampler"));
  std::string text;
  if (task && !no_plan) {
    text = plan::explain(torch_host().plan(*task).plan);
  } else if (!script.is_function()) {
    text = list_methods(script);
  } else if (!task) {
    text = "the script returns a function of (job, graph): give a job to check what it returns\n";
  } else {
    text = "the script returns a function of (job, graph), which was not called\n";
  }
  for (const auto& file : {model, sampler}) {
    if (!file.empty()) text += fmt::format("not opened: {}\n", file);
  }
  if (no_plan) {
    text += fmt::format("no plan was made; with that code opened: perigee plan {} --strategy {}\n",
                        with_job.file, strategy);
  }
  write_result({}, fmt::format("{}: no mistakes found\n{}", strategy, text));
  return 0;
}

}  // namespace

void add_check_command(CLI::App& app, Action& action) {
  struct CheckOptions {
    std::string strategy;
    JobOptions job;
  };
  auto options = std::make_shared<CheckOptions>();
  auto* sub = add_command(
      app, "check", "parse and validate a strategy, run nothing",
      {"perigee check strategy.lua", "perigee check strategy.lua job.toml --nproc 4"});
  sub->add_option("STRATEGY", options->strategy, "a strategy script")->required();
  sub->add_option("JOB", options->job.file,
                  "also make the plan of this job; default: the job the script names");
  add_texts(*sub, "--set", options->job.sets, "override one job key: a.b=VALUE; repeatable");
  add_integer(*sub, "--nproc", options->job.nproc, "number of ranks")->check(rank_count());
  sub->callback([options, &action] {
    action = [options] { return run_check(options->strategy, options->job); };
  });
}

}  // namespace perigee::command
