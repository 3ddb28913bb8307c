// Commands that look at a job and run nothing: plan, simulate, graph.
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "base/fail.h"
#include "base/log_format.h"
#include "code.h"
#include "command.h"
#include "graph/text/json.h"
#include "host.h"
#include "plan/diff.h"
#include "task.h"

namespace perigee::command {
namespace {

namespace fs = std::filesystem;

struct Options {
  JobOptions job;
  OutputOptions output;
};

struct PlanOptions {
  JobOptions job;
  OutputOptions output;
  bool explain = false;
  std::string report;
  std::vector<std::string> diff;
};

int run_diff(const PlanOptions& options) {
  if (!options.job.file.empty()) {
    fail("command", "--diff takes two plans and no job, but got {}", options.job.file);
  }
  const auto& job = options.job;
  const std::pair<const char*, bool> given[] = {
      {"--explain", options.explain},        {"--report", !options.report.empty()},
      {"--strategy", !job.strategy.empty()}, {"--plan", !job.plan.empty()},
      {"--cluster", !job.cluster.empty()},   {"--nproc", job.nproc > 0},
      {"--set", !job.sets.empty()}};
  for (const auto& [option, is_given] : given) {
    if (is_given) log::warn("{} has no effect beside --diff, which compares two files", option);
  }
  const auto &a = options.diff.at(0), &b = options.diff.at(1);
  const auto list = plan::difference(plan::parse(read_file(a), a), plan::parse(read_file(b), b));
  write_result(options.output,
               options.output.json ? plan::to_json(list) : plan::to_text(list, a, b));
  return 0;
}

// Warns of options about hosts that meet, where no ranks start.
void warn_of_hosts(const JobOptions& options, std::string_view command) {
  const std::pair<const char*, bool> given[] = {{"--node-rank", options.node_rank >= 0},
                                                {"--rendezvous", !options.rendezvous.empty()},
                                                {"--interface", !options.interface.empty()},
                                                {"--secret-file", !options.secret_file.empty()}};
  for (const auto& [option, is_given] : given) {
    if (is_given) log::warn("{} has no effect: perigee {} starts no ranks", option, command);
  }
}

int run_plan(const PlanOptions& options) {
  if (!options.diff.empty()) return run_diff(options);
  if (options.job.file.empty()) fail("command", "perigee plan takes a JOB or --diff, but got none");
  require_file(options.report);
  require_file(options.output.file);
  warn_of_hosts(options.job, "plan");
  auto task = make_task(options.job, job::place_from_environment());
  task.report = !options.report.empty();
  const bool text = options.explain && !options.output.json;
  const auto planned = torch_host().plan(task);
  if (task.report) write_result({.file = options.report}, planned.report);
  if (!text || !options.output.file.empty()) {
    write_result(options.output, plan::print(planned.plan));
  }
  if (text) write_result({}, plan::explain(planned.plan));
  return 0;
}

int run_graph(const Options& options) {
  require_file(options.output.file);
  warn_of_hosts(options.job, "graph");
  if (!options.job.cluster.empty()) log::warn("--cluster has no effect on the captured graph");
  auto task = make_task(options.job, std::nullopt);
  task.plain = true;
  const auto planned = torch_host().plan(task);
  write_result(options.output,
               options.output.json ? graph::summary(planned.graph) : graph::print(planned.graph));
  return 0;
}

void add_plan(CLI::App& app, Action& action) {
  auto options = std::make_shared<PlanOptions>();
  auto* sub = add_command(
      app, "plan", "make and print the plan; nothing runs",
      {"perigee plan job.toml --nproc 4 --explain", "perigee plan job.toml -o plan.json",
       "perigee plan job.toml --cluster 8xh100 --report plan.html -o plan.json",
       "perigee plan --diff old.json new.json"});
  sub->add_option("JOB", options->job.file,
                  "a job (TOML), or a strategy script that names its job");
  add_job_options(*sub, options->job);
  add_output_options(*sub, options->output);
  sub->add_flag("--explain", options->explain, "every decision of the plan as a sentence");
  sub->add_option("--report", options->report, "also write the plan as a page (HTML) to this file");
  sub->add_option("--diff", options->diff, "print what two plans (A.json B.json) do differently")
      ->expected(2);
  sub->callback([options, &action] { action = [options] { return run_plan(*options); }; });
}

void add_graph(CLI::App& app, Action& action) {
  auto options = std::make_shared<Options>();
  auto* sub = add_command(app, "graph", "print the captured graph",
                          {"perigee graph job.toml", "perigee graph job.toml --json"});
  sub->add_option("JOB", options->job.file, "a job (TOML), or a strategy script that names its job")
      ->required();
  add_job_options(*sub, options->job);
  add_output_options(*sub, options->output);
  sub->callback([options, &action] { action = [options] { return run_graph(*options); }; });
}

// Replaces a plan given as the job by the job.toml in its folder, since a plan names no model.
// Returns whether it does.
bool take_job_beside(JobOptions& options) {
  if (!options.file.ends_with(".json")) return false;
  if (!options.plan.empty()) {
    fail("command", "{} is the plan that is simulated, but --plan names {}: leave one of them out",
         options.file, options.plan);
  }
  const auto job = fs::path(options.file).parent_path() / "job.toml";
  if (!fs::exists(job)) {
    fail("command",
         "a plan has its model in a job, but there is no {}: perigee simulate JOB --plan {}",
         job.string(), options.file);
  }
  options.plan = std::exchange(options.file, job.string());
  return true;
}

// A plan is data: predicting it opens no code that the job beside it names.
void open_no_code(job::Job& job, const JobOptions& options) {
  take_sampler(job);
  const auto model = model_code(job);
  if (model.empty()) return;
  fail("command",
       "perigee simulate PLAN.json opens no code, but {} names {}: if you trust the code, give the "
       "job, perigee simulate {} --plan {}",
       options.file, model, options.file, options.plan);
}

void add_simulate(CLI::App& app, Action& action) {
  struct SimulateOptions {
    JobOptions job;
    OutputOptions output;
    std::string trace;
  };
  auto options = std::make_shared<SimulateOptions>();
  auto* sub = add_command(
      app, "simulate", "predict a step of a plan: time, waits and memory of every rank",
      {"perigee simulate job.toml --nproc 2", "perigee simulate job.toml --plan plan.json",
       "perigee simulate gpt3.toml --strategy 3d --cluster 128x8xh100 --trace step.json"});
  sub->add_option("JOB", options->job.file,
                  "a job (TOML), a strategy script that names its job, or a run's plan.json")
      ->required();
  add_job_options(*sub, options->job);
  add_output_options(*sub, options->output);
  sub->add_option("--trace", options->trace,
                  "write what would happen when to this file (Chrome trace events)");
  sub->callback([options, &action] {
    action = [options] {
      require_file(options->trace);
      require_file(options->output.file);
      warn_of_hosts(options->job, "simulate");
      const bool is_plan = take_job_beside(options->job);
      auto task = make_task(options->job, job::place_from_environment());
      if (is_plan) open_no_code(task.job, options->job);
      task.simulate_trace = !options->trace.empty();
      task.advice = !options->output.json;
      const auto result = torch_host().simulate(task);
      if (!options->trace.empty()) write_result({.file = options->trace}, result.trace);
      write_result(options->output, options->output.json ? result.json : result.text);
      return 0;
    };
  });
}

}  // namespace

void add_job_commands(CLI::App& app, Action& action) {
  add_plan(app, action);
  add_simulate(app, action);
  add_graph(app, action);
}

}  // namespace perigee::command
