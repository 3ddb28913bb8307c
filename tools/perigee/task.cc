#include "task.h"

#include <charconv>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/log_format.h"
#include "base/rank_limit.h"
#include "base/terminal/phases.h"
#include "cost/cluster.h"
#include "host.h"
#include "job/assignment.h"
#include "job/rank_process.h"
#include "launch/forked_number.h"
#include "lua/strategy.h"
#include "secret.h"

namespace perigee::command {
namespace {

namespace fs = std::filesystem;

// Ranks of a mesh that run on a CPU core unless their number is given.
constexpr int64_t kRanksPerCore = 16;

// Returns the path of a strategy: a file, or a shipped one, by its bare name or as a file of the
// shipped folder in any subfolder ("ddp", "strategies/ddp.lua").
std::string find_strategy(const std::string& name) {
  if (name.empty() || name == "auto" || is_file(name)) return name.empty() ? "auto" : name;
  const auto folder = shipped_folder("strategies");
  const auto shipped = folder.empty() ? std::map<std::string, std::string>()
                                      : lua::scripts_in(folder);
  const bool bare = name.find('/') == std::string::npos && !name.ends_with(".lua");
  std::error_code ignored;
  if (bare || fs::equivalent(fs::absolute(name).parent_path(), folder, ignored)) {
    const auto found = shipped.find(fs::path(name).stem().string());
    if (found != shipped.end()) return found->second;
  }
  if (!bare) fail("strategy", "the strategy must be a file, but there is no {}", name);
  std::vector<std::string> names;
  for (const auto& [known, path] : shipped) names.push_back(known);
  fail("strategy", "a bare name must be that of a shipped strategy, but there is no \"{}\"{}", name,
       did_you_mean(name, names));
}

// Returns the script of the job's strategy; nothing for "auto".
std::unique_ptr<lua::StrategyScript> open_script(const train::Task& task,
                                                 const lua::Options& options) {
  if (task.strategy != "auto") {
    return std::make_unique<lua::StrategyScript>(task.strategy, options);
  }
  if (task.job.dialect.name.empty()) return nullptr;
  return std::make_unique<lua::StrategyScript>(task.job.dialect, options);
}

// Returns the size of the mesh that the script asks for, or 0 where it leaves that open or
// is a function.
int64_t ranks_of(lua::StrategyScript& script) {
  if (script.is_function()) return 0;
  const auto parsed = script.resolve({}, {});
  if (parsed.plan) return parsed.plan->mesh.size();
  for (const auto& use : parsed.methods) {
    if (use.method->name() != "parallel_mode") continue;
    if (use.config.items.empty() && !use.config.fields.contains("submeshes")) continue;
    plan::Plan plan;
    use.method->apply(plan, use.config, {});
    return plan.mesh.size();
  }
  return 0;
}

// Returns the number of ranks of the plan with which a resumed run goes on, or 0 where a new plan is
// made, or its file is not here.
int64_t ranks_of_resumed(const JobOptions& options, const train::Task& task) {
  const bool newest = options.resume == "newest" ||
                      (options.resume_if_any && torch_host().has_checkpoint(task.job));
  if ((!newest && options.resume.empty()) || task.strategy_given) return 0;
  const fs::path given = newest ? task.job.train.output : options.resume;
  for (const auto& file : {given / "plan.json", given / "../../plan.json"}) {
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored)) {
      return plan::parse(read_file(file.string()), file.string()).mesh.size();
    }
  }
  return 0;
}

// A task, and whether its mesh follows from a call of the strategy's function alone.
struct ReadTask {
  train::Task task;
  bool function_makes_mesh = false;
};

// Scripts run here for their job, its keys and their ranks, and once more for the plan. `print`
// receives the output of the first run.
ReadTask read_task(const JobOptions& options, const std::optional<Place>& place,
                   const std::function<void(std::string_view)>& print) {
  ReadTask read;
  auto& task = read.task;
  task.runtime_folder = shipped_folder("runtime");
  task.script_seconds = options.script_seconds;
  task.script_megabytes = options.script_megabytes;
  lua::Options script;
  script.limits = {options.script_seconds, options.script_megabytes};
  script.runtime_folder = task.runtime_folder;
  script.print = print;

  if (!options.plan.empty() && !options.strategy.empty()) {
    log::warn("--strategy {} has no effect beside the plan {}", options.strategy, options.plan);
  }
  auto file = options.file;
  std::string named_by_script;
  if (file.ends_with(".lua")) {
    const lua::StrategyScript strategy(file, script);
    if (!strategy.job()) {
      fail("command",
           "a strategy script must name its job (job = \"FILE.toml\"), but {} does not: give the "
           "job and "
           "--strategy {}",
           file, file);
    }
    named_by_script = file;
    file = *strategy.job();
  }
  task.job = job::Job::load(file, options.sets);
  task.job.require_model(file);
  task.strategy = find_strategy(!options.strategy.empty()  ? options.strategy
                                : !named_by_script.empty() ? named_by_script
                                                           : task.job.strategy);
  task.strategy_given = !options.strategy.empty() || !named_by_script.empty();
  if (task.strategy_given) task.job.dialect = {};
  task.plan_file = options.plan;
  task.hosts = options.nodes;
  task.restarts = options.max_restarts > 0 || options.least_nodes < options.nodes;
  std::unique_ptr<lua::StrategyScript> opened;
  if (task.plan_file.empty()) opened = open_script(task, script);
  if (opened && !opened->set().empty()) {
    auto sets = opened->set();  // the command line has the last word
    for (const auto& text : options.sets) sets.push_back({text});
    const auto dialect = task.job.dialect;
    task.job = job::load_with(file, sets);
    task.job.dialect = dialect;
  }
  if (!options.cluster.empty()) {
    task.job.cluster.file = cost::find_cluster(options.cluster, task.runtime_folder);
  }
  std::optional<plan::Plan> plan;
  if (!task.plan_file.empty()) plan = plan::parse(read_file(task.plan_file), task.plan_file);
  if (place) {
    task.world = place->world;
    task.world_given = true;
  } else if (options.nproc > 0 || options.nodes > 1) {
    task.world = std::max<int64_t>(1, options.nproc) * options.nodes;
    task.world_given = true;
    if (options.nproc == 0 && !task.job.cluster.file.empty()) {
      log::warn(
          "--nodes {} without --nproc means one rank on each node: give --nproc, the ranks of "
          "a node",
          options.nodes);
    }
  } else if (task.job.cluster.ranks > 0) {
    task.world = task.job.cluster.ranks;
    task.world_given = true;
  } else if (plan) {
    task.world = plan->mesh.size();
  } else if (const auto before = ranks_of_resumed(options, task); before > 0) {
    task.world = before;
  } else if (!options.cluster.empty()) {
    task.world = cost::load_cluster(task.job.cluster.file).ranks();
    task.world_given = true;
  } else if (const auto ranks = opened ? ranks_of(*opened) : 0; ranks > 0) {
    task.world = ranks;
  } else {
    if (task.job.cluster.device != "cpu" || !task.job.cluster.devices.empty()) {
      task.world = torch_host().default_ranks(task.job);
      task.world_given = task.world > 1;
    }
    read.function_makes_mesh = opened && opened->is_function();
  }
  return read;
}

ReadTask read_task(const JobOptions& options, const std::optional<Place>& place) {
  std::vector<std::string> printed;
  try {
    return read_task(options, place, [&](std::string_view text) { printed.emplace_back(text); });
  } catch (const Error&) {
    for (const auto& text : printed) log::info("{}", text);
    throw;
  }
}

// Sets the number of ranks to that of the mesh that the strategy's function makes. Leaves the task
// as it is where the function takes the host's devices, or fails: a rank then reports the error.
void ask_function(train::Task& task) {
  log::Phases phases(task.job.train.progress);
  phases.begin("planning: the number of ranks");
  const auto ranks_of_plan = [](const train::Task& asked) {
    return forked_number([&] { return torch_host().planned_ranks(asked); });
  };
  if (task.world_given && ranks_of_plan(task)) return;
  auto open = task;
  open.world = 1;
  open.world_given = false;
  const auto ranks = ranks_of_plan(open);
  if (!ranks || (task.world_given && *ranks == 1)) return;
  open.world = *ranks;
  task = std::move(open);
}

// Throws Error where a mesh that no one asked for by number has more ranks than this host can run.
void check_ranks_of_mesh(const train::Task& task) {
  if (task.world_given || task.world == 1) return;
  const auto mesh = fmt::format("the {}'s mesh has {} ranks",
                                task.plan_file.empty() ? "strategy" : "plan", task.world);
  const auto gpus = task.job.cluster.device == "cpu" ? 1 : torch_host().default_ranks(task.job);
  if (gpus > 1) {
    if (task.world <= gpus) return;
    fail("launch",
         "{}, but this host has {} GPUs: use several hosts (--nodes), a smaller mesh, or "
         "cluster.device = \"cpu\"",
         mesh, gpus);
  }
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  if (task.world <= kRanksPerCore * cores) return;
  fail("launch",
       "{}, but this host has {} CPU core{}, for up to {} ranks: use several hosts (--nodes), a "
       "smaller mesh, or --nproc {} to run all ranks here; perigee plan and simulate need no ranks",
       mesh, cores, cores == 1 ? "" : "s", kRanksPerCore * cores, task.world);
}

}  // namespace

train::Task make_task(const JobOptions& options, const std::optional<Place>& place) {
  return read_task(options, place).task;
}

train::Task make_running_task(const JobOptions& options) {
  const auto place = job::place_from_environment();
  auto [task, function_makes_mesh] = read_task(options, place);
  if (!place && options.nodes == 1) {
    for (const auto& [option, value] : {std::pair{"--rendezvous", options.rendezvous},
                                        std::pair{"--interface", options.interface},
                                        std::pair{"--secret-file", options.secret_file}}) {
      if (!value.empty())
        log::warn("{} has no effect: all ranks are on one node (--nodes)", option);
    }
  }
  if (function_makes_mesh) ask_function(task);
  if (!place) check_ranks_of_mesh(task);
  return task;
}

LaunchOptions launch_options(const JobOptions& options, const train::Task& task) {
  return {.ranks = task.world / options.nodes,
          .nodes = options.nodes,
          .least_nodes = options.least_nodes,
          .node_rank = options.node_rank,
          .rendezvous = options.rendezvous,
          .interface = options.interface,
          .secret = given_secret(options.secret_file, kJobSecret),
          .stop_seconds = task.job.train.checkpoint_when_stopped ? std::nullopt
                                                                 : LaunchOptions{}.stop_seconds,
          .max_restarts = options.max_restarts,
          .timeout_seconds = task.job.cluster.timeout};
}

// Returns MIN and MAX of "MIN:MAX", or N twice of "N".
std::pair<int64_t, int64_t> range_of_nodes(const std::string& text) {
  const auto number = [](std::string_view digits) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() ? value : 0;
  };
  const auto colon = text.find(':');
  const auto least = number(std::string_view(text).substr(0, colon));
  const auto most = colon == std::string::npos ? least
                                               : number(std::string_view(text).substr(colon + 1));
  if (least < 1 || most < least || most > kMostRanks) {
    fail("command", "--nodes takes N or MIN:MAX with 1 <= MIN <= MAX <= {}, but got \"{}\"",
         kMostRanks, text);
  }
  return {least, most};
}

CLI::Validator positive() {
  const auto check = [](const std::string& text) -> std::string {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc() && end == text.data() + text.size();
    return number && value > 0 ? "" : "must be a number above 0, but got " + text;
  };
  return {check, "POSITIVE"};
}

CLI::Validator rank_count() { return CLI::Range(int64_t{1}, kMostRanks); }

void add_job_options(CLI::App& app, JobOptions& options) {
  // An empty name is often that of a shell variable that is not set.
  const CLI::Validator named(
      [](const std::string& name) {
        return name.empty() ? std::string("must be a name, but it is empty") : std::string();
      },
      "");
  app.add_option("--strategy", options.strategy,
                 "a strategy script or a shipped one's name; replaces the job's")
      ->check(named);
  app.add_option("--plan", options.plan, "use this plan; refused if it is another graph's")
      ->check(named);
  app.add_option(
         "--cluster", options.cluster,
         "plan for this cluster description, or a shipped one's name, instead of this machine")
      ->check(named);
  add_integer(app, "--nproc", options.nproc, "number of ranks on this host")->check(rank_count());
  app.add_option_function<std::string>(
      "--nodes",
      [&options](const std::string& text) {
        std::tie(options.least_nodes, options.nodes) = range_of_nodes(text);
      },
      "number of hosts; of train also MIN:MAX, hosts that come and go");
  add_integer(app, "--node-rank", options.node_rank, "which of the hosts this is, from 0");
  app.add_option("--rendezvous", options.rendezvous,
                 "HOST:PORT on which host 0 waits for the others; where hosts come and go also "
                 "several, with commas");
  app.add_option(
      "--interface", options.interface,
      "network interface for transfers between hosts; default: the one with the route to "
      "the rendezvous");
  app.add_option("--secret-file", options.secret_file,
                 "file with the job's secret, one text on all hosts; default: PERIGEE_SECRET");
  add_texts(app, "--set", options.sets, "override one job key: a.b=VALUE; repeatable");
  app.add_option("--script-seconds", options.script_seconds,
                 "time limit of a script in seconds; default 5")
      ->check(positive());
  add_integer(app, "--script-megabytes", options.script_megabytes,
              "memory limit of a script in MiB; default 256")
      ->check(positive());
}

}  // namespace perigee::command
