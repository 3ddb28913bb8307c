#include "train/host.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <torch/nn/module.h>

#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "exec/allocator.h"
#include "exec/tensor.h"
#include "profile/database.h"
#include "profile/times.h"
#include "profile/traces.h"
#include "search/report.h"
#include "search/simulate.h"
#include "shard/partition.h"
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
#include "train/profiling.h"
#include "train/rank_trainer.h"
#include "train/repeats.h"
#include "train/run_folder.h"
#include "train/sample.h"
#include "train/step_spec.h"
#include "train/storage.h"
#include "train/summary.h"
#include "train/task_plan.h"
#include "train/together.h"
#include "train/tokenizer.h"
#include "train/trainer.h"

namespace perigee::train {
namespace {

// What one rank of any command has open.
struct Session {
  Session(const Task& task, Connection met)
      : job(completed(task)),
        connection(std::move(met)),
        communicator(connection.communicator.get()),
        database(profile_of(job)),
        traces(database, static_cast<int>(job.cluster.threads), connection.device) {
    exec::install_allocator();
    at::set_num_threads(static_cast<int>(job.cluster.threads));
  }

  job::Job job;
  Connection connection;
  exec::Communicator* communicator;  // the connection's
  profile::Database database;
  profile::TraceDatabase traces;
  Blueprint blueprint;
  std::optional<Forecast> forecast;  // on rank 0
  std::unique_ptr<RankTrainer> trainer;
};

// Runs `body` on a rank's session. What a rank has open when it fails stays so until its process
// ends: transfers that hang may still write to its memory, and waiting for them takes another
// time-out. `failed` is called with the exception current, before the other ranks hear of it.
template <class Body>
auto run_rank(const Task& task, Connection connection, const Body& body,
              const std::function<void()>& failed = {}) {
  const auto communicator = connection.communicator;
  std::unique_ptr<Session> session;
  try {
    session = std::make_unique<Session>(task, std::move(connection));
    return body(*session);
  } catch (const std::exception& error) {
    if (failed) failed();
    communicator->abort(error.what());
    [[maybe_unused]] const auto* open = session.release();
    throw;
  }
}

// The same for the rank of that place, or for all ranks as threads of this process
// (cluster.in_process); then returns what rank 0 does. Rethrows the first error.
template <class Body>
auto run_session(const Task& task, const job::RankPlace& place, const Body& body) {
  const auto job = completed(task);
  if (!job.cluster.in_process || place.world == 1) {
    return run_rank(task, connect(job, place), body);
  }
  auto connections = connect_threads(job, place.world);
  std::exception_ptr first;
  std::mutex mutex;
  // What fails on other ranks once they hear of the first error is not the cause.
  const auto failed = [&] {
    std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
  };
  const auto guarded = [&](size_t rank, const auto& use) {
    try {
      use(run_rank(task, connections[rank], body, failed));
    } catch (...) {
      failed();
    }
  };
  std::vector<std::thread> others;
  for (size_t rank = 1; rank < connections.size(); ++rank) {
    others.emplace_back([&, rank] { guarded(rank, [](auto&&) {}); });
  }
  decltype(run_rank(task, connections[0], body)) result;
  guarded(0, [&](auto&& mine) { result = std::move(mine); });
  for (auto& thread : others) thread.join();
  if (first) std::rethrow_exception(first);
  return result;
}

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
                      const std::function<void(int64_t, int64_t)>& progress) override {
    return run_session(task, place, [&](Session& session) {
      std::shared_ptr<const Source> source;
      const auto& shared = plan_session(task, session, "", source);
      const auto spec = step_spec(session.job, shared.training);
      const auto programs =
          compile::compile_all(shared.training, shared.plan, spec, session.traces);
      // By itself rank 0 runs programs shortened anyway.
      const auto repeats =
          session.job.profile.parallel ? find_repeats(programs, shared.plan.mesh) : Repeats();
      StandsFor stands_for;
      const auto shorten = [&](compile::Program program) {
        auto shortened = leave_out(std::move(program), repeats);
        stands_for = std::move(shortened.stands_for);
        return std::move(shortened.program);
      };
      session.trainer = std::make_unique<RankTrainer>(shared, session.job, session.connection,
                                                      session.traces, shorten);
      initialise(*session.trainer, source.get());
      source.reset();
      const auto here = session.job.profile.parallel ? place.local_world : 1;
      auto times = times_of(session.database, *session.connection.device, session.job, here);
      const bool root = session.communicator->rank() == 0;
      auto done = profile_programs(programs, *session.trainer, stands_for, shared.plan.mesh,
                                   session.job, session.connection,
                                   *open_data(session.job, cut_of(shared.plan)).training, times,
                                   options, root ? progress : nullptr);
      done.left_out = repeats.left_out();
      return root ? describe(done) : std::string();
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
  // Makes the session's blueprint on rank 0 and shares it.
  // `begin` is told of the plan on rank 0, before the others go on.
  const Blueprint& plan_session(const Task& task, Session& session, const std::string& plan_text,
                                std::shared_ptr<const Source>& source,
                                const std::function<void(const Planned&)>& begin = nullptr) {
    auto& blueprint = session.blueprint;
    const auto make = [&] {
      auto with_job = task;
      with_job.job = session.job;
      auto planned = plan_task(with_job, plan_text);
      source = planned.source;
      blueprint.training = planned.captured.graph;
      blueprint.init = planned.captured.init;
      blueprint.tied = planned.captured.tied;
      blueprint.evaluation =
          planned.source
              ->at(planned.job.batch.global / planned.plan.microbatches / copies_of(planned.plan),
                   true)
              .graph;
      compile::Programs programs;
      at_methods(planned, [&](plan::Plan plan) {
        // Records what is missing.
        programs = predict(plan, blueprint.training, planned.job, session.traces);
        blueprint.plan = std::move(plan);
      });
      auto times = times_of(session.database, *session.connection.device, session.job,
                            session.connection.local_ranks);
      session.forecast =
          forecast_of(programs, blueprint.plan, planned.job, times, task.runtime_folder);
      check_memory_here(planned, blueprint.plan, session.connection.local_ranks,
                        task.runtime_folder);
      tell_of_coupling(blueprint);
      if (begin) begin(planned);
    };
    const bool root = session.communicator->rank() == 0;
    run_together(*everyone(*session.communicator), session.job,
                 root ? std::function<void()>(make) : nullptr);
    blueprint = share(std::move(blueprint), *session.communicator);
    session.job = with_fitted_batch(std::move(session.job), blueprint.plan);
    return blueprint;
  }

  // Throws Error where the first step's gradients are not those of one device.
  void require_gradients(const Task& task, const std::string& plan_text) {
    auto on_cpu = task;
    on_cpu.job.cluster.device = "cpu";
    on_cpu.job = completed(on_cpu);
    const auto check = train::check_gradients(plan_task(on_cpu, plan_text));
    at::set_num_threads(static_cast<int>(task.job.cluster.threads));  // it takes one
    require_passed(check);
  }

  static void tell_of_coupling(const Blueprint& blueprint) {
    if (blueprint.plan.microbatches == 1) return;
    const auto coupling = shard::classify_loss(blueprint.training).coupling;
    if (coupling.empty()) return;
    log::info(
        "samples of a microbatch see each other (first through {}): the loss is that of {} "
        "microbatches, each by itself, and another number than that of the whole batch",
        coupling, blueprint.plan.microbatches);
  }

  static void initialise(RankTrainer& trainer, const Source* source) {
    std::map<std::string, at::Tensor> values;
    if (source) {
      for (const auto& item : source->module().named_parameters())
        values[item.key()] = item.value().detach();
      for (const auto& item : source->module().named_buffers()) values[item.key()] = item.value();
    }
    trainer.initialise([&](const std::string& name) { return values[name]; });
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
