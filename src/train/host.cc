#include "train/host.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <torch/nn/module.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "exec/allocator.h"
#include "exec/tensor.h"
#include "profile/database.h"
#include "profile/traces.h"
#include "search/report.h"
#include "search/simulate.h"
#include "train/blueprint.h"
#include "train/checkpoint.h"
#include "train/connect.h"
#include "train/durable.h"
#include "train/forecast.h"
#include "train/gradient_check.h"
#include "train/known.h"
#include "train/local_cluster.h"
#include "train/loop.h"
#include "train/machine.h"
#include "train/planning.h"
#include "train/profile_job.h"
#include "train/rank_trainer.h"
#include "train/run_folder.h"
#include "train/sample.h"
#include "train/session.h"
#include "train/step_spec.h"
#include "train/storage.h"
#include "train/summary.h"
#include "train/task_plan.h"
#include "train/tokenizer.h"
#include "train/trainer.h"

namespace perigee::train {
namespace {

class TorchHost : public Host {
 public:
  int64_t default_ranks(const job::Job& job) override { return train::default_ranks(job); }

  PlanResult plan(const Task& task) override {
    auto with_job = task;
    with_job.job = completed(task);
    check_profile(with_job.job);
    auto planned = plan_task(with_job, "", /*foretold=*/true);
    if (!planned.predicted) predict_known(planned, planned.job, task.runtime_folder);
    PlanResult result{planned.captured.graph, planned.plan, ""};
    if (task.report) result.report = page_of(planned, planned.job, task.runtime_folder);
    return result;
  }

  void train(const Task& task, const job::RankPlace& place,
             const std::function<bool()>& stop) override {
    run_session(task, place, [&](Session& session) {
      train(task, session, stop);
      return std::string();
    });
  }

  GradientReport check_gradients(const Task& task, double tolerance) override {
    auto on_cpu = task;
    on_cpu.job.cluster.device = "cpu";
    on_cpu.job = completed(on_cpu);
    const auto check = train::check_gradients(plan_task(on_cpu), tolerance);
    return {print(check), check.passed()};
  }

  std::string evaluate(const Task& task, const std::string& checkpoint,
                       const job::RankPlace& place) override {
    return run_session(task, place,
                       [&](Session& session) { return evaluate(task, session, checkpoint); });
  }

  std::string profile(const Task& task, const ProfileOptions& options, const job::RankPlace& place,
                      const ProfileProgress& progress) override {
    return run_session(task, place, [&](Session& session) {
      return profile_job(task, session, options, place, progress);
    });
  }

  std::string move_profile(const ProfileOptions& options) override {
    profile::Database database(default_profile());
    std::string text;
    if (!options.import_from.empty()) {
      const auto json = read_file(options.import_from, "profile");
      check_import(json, options.import_from);
      const auto count = profile::import_json(database, json, options.import_from);
      text += fmt::format("{} entries of {} are in {}\n", count, options.import_from,
                          default_profile());
    }
    if (!options.export_to.empty()) {
      write_durably(options.export_to, profile::export_json(database));
      text += fmt::format("{} is in {}\n", default_profile(), options.export_to);
    }
    return text;
  }

  SimulateResult simulate(const Task& task) override {
    const auto job = completed(task);
    check_profile(job);
    auto with_job = task;
    with_job.job = job;
    auto planned = plan_task(with_job, "", /*foretold=*/true);
    const auto& graph = planned.captured.graph;
    const auto cluster = cluster_of(job, planned.plan.mesh.size(), task.runtime_folder);
    Known known(job, planned.plan.mesh.size());
    const auto spec = step_spec(planned.job, graph);
    compile::Programs programs;
    at_methods(planned, [&](plan::Plan plan) {
      plan = compile::fit_recompute(graph, std::move(plan), spec, known.traces());
      programs = compile::compile_all(graph, plan, spec, known.traces());
      planned.plan = std::move(plan);
    });
    search::OpCosts costs(cluster, known.times());
    const auto simulation = search::simulate(
        programs, planned.plan.mesh, costs,
        {.intervals = task.simulate_trace, .stage_axis = planned.plan.pipeline.axis});
    const auto used = search::utilisation(graph, planned.plan, cluster, simulation.step_seconds);
    return {search::to_text(simulation, programs, cluster, used) + advice_of(planned, task),
            search::to_json(simulation, programs, cluster, used),
            task.simulate_trace ? search::chrome_trace(simulation, programs) : std::string()};
  }

  void sample(const Task& task, const SampleOptions& options,
              const std::function<void(std::string_view)>& print) override {
    auto alone = task;
    alone.job = completed(task);
    alone.strategy = "auto";
    alone.world = 1;
    alone.world_given = true;
    alone.job.batch.global = 1;
    alone.job.batch.micro = 1;
    exec::install_allocator();
    at::set_num_threads(static_cast<int>(alone.job.cluster.threads));
    const auto device = open_device(alone.job);
    profile::Database database(profile_of(alone.job));
    profile::TraceDatabase traces(database, static_cast<int>(alone.job.cluster.threads), device);
    const auto folder =
        find_checkpoint(options.checkpoint.empty() ? task.job.train.output : options.checkpoint);
    sample_text(alone.job, *open_model(alone), Checkpoint(folder), options, device, traces, print);
  }

  void export_weights(const std::string& checkpoint, const std::string& file) override {
    export_checkpoint(Checkpoint(find_checkpoint(checkpoint)), file);
  }

  std::vector<std::string> doctor() override {
    auto lines = describe_machine();
    lines.push_back(fmt::format("profile     {}", default_profile()));
    return lines;
  }

 private:
  // Throws Error where the first step's gradients are not those of one device.
  void require_gradients(const Task& task, const std::string& plan_text) {
    auto on_cpu = task;
    on_cpu.job.cluster.device = "cpu";
    on_cpu.job = completed(on_cpu);
    const auto check = train::check_gradients(plan_task(on_cpu, plan_text));
    at::set_num_threads(static_cast<int>(task.job.cluster.threads));  // it takes one
    require_passed(check);
  }

  void train(const Task& task, Session& session, const std::function<bool()>& stop) {
    auto& communicator = *session.communicator;
    const auto& job = session.job;
    const auto given = session.job;  // its batch.global may not fit the plan
    const bool root = communicator.rank() == 0;
    if (root) check_profile(job);
    std::unique_ptr<RunFolder> folder;
    if (root)
      folder = std::make_unique<RunFolder>(
          job, RunOptions{task.resume, task.resume_from, task.overwrite});
    const auto checkpoint = share_text(root ? folder->checkpoint() : "", *everyone(communicator));
    if (!checkpoint.empty() && Checkpoint(checkpoint).info().step >= job.train.steps) {
      if (root) {
        log::info("{}: all {} steps are done, in {} (a larger train.steps goes on)", job.name,
                  job.train.steps, checkpoint);
      }
      return;
    }
    const bool own_plan = root && task.resume && task.plan_file.empty() && !task.strategy_given;
    const auto plan_file = own_plan ? folder->resumed_plan() : std::string();
    auto plan_text = plan_file.empty() ? std::string() : read_own_plan(plan_file);
    if (!plan_text.empty() && plan::parse(plan_text).mesh.size() != communicator.world()) {
      plan_text.clear();  // another number of ranks: planned anew
    }

    std::shared_ptr<const Source> source;
    Strategy strategy;  // on rank 0
    const auto& shared =
        plan_session(task, session, plan_text, source, [&](const Planned& planned) {
          strategy = planned.strategy;
          if (job.train.check_gradients && checkpoint.empty()) require_gradients(task, plan_text);
        });
    if (shared.plan.mesh.size() != communicator.world()) {
      fail("plan", "the plan's mesh must have the {} ranks of this run, but it has {}",
           communicator.world(), shared.plan.mesh.size());
    }
    session.trainer =
        std::make_unique<RankTrainer>(shared, job, session.connection, session.traces);
    auto& trainer = *session.trainer;
    auto cut = cut_of(shared.plan);
    cut.tell = root;
    auto data = open_data(job, cut);
    int64_t first = 1;
    if (checkpoint.empty()) {
      initialise(trainer, source.get());
    } else {
      const Checkpoint from(checkpoint);
      trainer.load(from);
      first = from.info().step + 1;
    }
    source.reset();
    if (task.trace) {
      trainer.trace(std::min(first + 1, job.train.steps), [&](const std::string& trace) {
        if (root) task.trace(trace);
      });
    }

    std::unique_ptr<MetricsFile> metrics;
    std::unique_ptr<Progress> progress;
    if (root) {
      folder->begin();
      if (task.open_log) task.open_log(folder->file("log.txt"));
      folder->write_job(given);
      folder->write_plan(plan::print(shared.plan));
      metrics = std::make_unique<MetricsFile>(folder->file("metrics.jsonl"), first - 1);
      progress = std::make_unique<Progress>(first, job.train.steps, job.train.log_every,
                                            job.train.progress);
      log::info("{}: {} parameters, {} rank{}, {} microbatch{} a step, output in {}", job.name,
                count_parameters(shared.training), communicator.world(),
                communicator.world() == 1 ? "" : "s", shared.plan.microbatches,
                shared.plan.microbatches == 1 ? "" : "es", job.train.output);
    }
    LoopHooks hooks;
    hooks.stop = stop;
    if (shared.plan.precision.loss_scale.kind == plan::LossScale::Kind::given) {
      hooks.before = [&](int64_t step) {
        const auto scale = root ? strategy.ask("loss_scale", step) : 0;
        trainer.set_loss_scale(share_number(scale, *everyone(communicator)));
      };
    }
    const bool observed = strategy.observes("step");
    const auto buckets = observed ? compile::bucket_names(trainer.executor().program())
                                  : std::map<compile::ValueId, compile::BucketNames>();
    trainer.executor().record(observed);
    hooks.report = [&](const StepMetrics& step) {
      metrics->write(step);
      progress->step(step);
      if (!observed) return;
      strategy.notify("step", step_report(step, trainer.executor().intervals(), buckets));
      trainer.executor().record(true);
    };
    hooks.checkpoint = [&](int64_t step) {
      if (metrics) metrics->sync();
      save_checkpoint(trainer, communicator, job, shared.plan, job.train.output, step);
    };
    const auto result =
        run_loop(trainer, communicator, job, first, *data.training, data.validation, hooks);
    if (!root) return;
    progress.reset();
    auto summary = summarise(result, first, shared.plan, session.forecast);
    summary.mfu = mfu_of(shared.training, shared.plan, job, task.runtime_folder, summary.step_s);
    metrics->write(summary);
    tell(summary, result.stopped);
    if (result.stopped)
      throw Error(Status::failed, "train",
                  fmt::format("stopped by a signal after step {}", result.last_step));
  }

  std::string evaluate(const Task& task, Session& session, const std::string& checkpoint) {
    const auto folder = find_checkpoint(checkpoint.empty() ? task.job.train.output : checkpoint);
    std::shared_ptr<const Source> source;
    const auto& shared = plan_session(task, session, "", source);
    session.trainer =
        std::make_unique<RankTrainer>(shared, session.job, session.connection, session.traces);
    auto& trainer = *session.trainer;
    const Checkpoint from(folder);
    trainer.load(from);
    auto cut = cut_of(shared.plan);
    cut.tell = session.communicator->rank() == 0;
    auto data = open_data(session.job, cut);
    if (data.validation.batches == 0) {
      fail("data",
           "evaluation needs a held-back global batch, but data.validation = {} leaves none: raise "
           "it",
           session.job.data.validation);
    }
    const auto loss = validate(trainer, session.job, data.validation);
    const auto batches = std::min(data.validation.batches, session.job.train.validate_batches);
    return nlohmann::json{{"checkpoint", from.folder()},
                          {"step", from.info().step},
                          {"val_loss", loss},
                          {"samples", batches * session.job.batch.global}}
               .dump() +
           "\n";
  }

  static int64_t count_parameters(const graph::Graph& graph) {
    int64_t count = 0;
    for (const auto& input : graph.inputs) {
      if (input.kind == graph::Input::Kind::parameter) count += graph.type(input.value).numel();
    }
    return count;
  }
};

}  // namespace
}  // namespace perigee::train

extern "C" perigee::train::Host* perigee_host() {
  c10::initLogging();  // reads TORCH_CPP_LOG_LEVEL
  static perigee::train::TorchHost host;
  return &host;
}
