#include "train/commands/train_job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/fail.h"
#include "base/log_format.h"
#include "base/terminal/phases.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/weights/merge.h"
#include "data/files_record.h"
#include "exec/op_threads.h"
#include "methods/method.h"
#include "train/commands/gradient_check.h"
#include "train/generate/training_samples.h"
#include "train/measure/recorded_profile.h"
#include "train/output/best_step.h"
#include "train/output/checkpoints.h"
#include "train/output/file_slices.h"
#include "train/output/metrics.h"
#include "train/output/progress.h"
#include "train/output/run_folder.h"
#include "train/output/shared_folder.h"
#include "train/plan/predict_memory.h"
#include "train/plan/step_prediction.h"
#include "train/plan/task_plan.h"
#include "train/ranks/share.h"
#include "train/ranks/wait_for_work.h"
#include "train/run/exit_status.h"
#include "train/run/held_out.h"
#include "train/run/loop.h"
#include "train/run/summary.h"
#include "train/step/step_data.h"
#include "train/step/step_spec.h"
#include "train/step/token_input.h"
#include "train/task/open_model.h"
#include "train/task/threads.h"
#include "view/event_file.h"

namespace perigee::train {
namespace {

// Throws Error where the first step's gradients are not those of one device.
void require_gradients(const Task& task, const std::string& plan_text) {
  auto on_cpu = task;
  on_cpu.job.cluster.device = "cpu";
  on_cpu.job = completed(on_cpu);
  const auto check = check_gradients(plan_task(on_cpu, plan_text));
  // The check sets one thread.
  exec::set_op_threads(static_cast<int>(threads_of_rank(task.job, task.world)));
  require_passed(check);
}

// Returns how the run's folder is opened. A start that may do both resumes from a complete
// checkpoint of the job's; without one it begins as the first start did, in place of the
// files there.
RunOptions run_options(const Task& task, const job::Job& job) {
  const bool again = task.restarted && has_begun(job, task.invocation);
  if (!again && (!task.resume || !task.overwrite)) {
    return {task.resume, task.resume_from, task.overwrite};
  }
  const auto& output = job.train.output;
  if (has_checkpoint(job)) return {.resume = true};
  if (std::filesystem::exists(std::filesystem::path(output) / "metrics.jsonl")) {
    log::warn("{} has no complete checkpoint: its steps are discarded, and the job begins anew",
              output);
  }
  return {!task.resume_from.empty(), task.resume_from, true};
}

// Returns the methods of a plan that a strategy named, "fsdp, lora"; "" where the search of "auto"
// made the plan.
std::string named_methods(const plan::Plan& plan) {
  std::set<std::string> methods;
  for (const auto& decision : plan.decisions) {
    if (decision.by == "auto") return "";
    if (decision.by != "batch" && decision.by != "module_replace") methods.insert(decision.by);
  }
  return fmt::format("{}", fmt::join(methods, ", "));
}

// Returns the text of the plan that a resumed run continues with; "" where a new plan is made: for
// a new run, another strategy, another number of ranks, or another batch.micro.
std::string resumed_plan(const Task& task, const RunFolder& folder, int64_t world) {
  if (!task.plan_file.empty() || task.strategy_given) return "";
  const auto file = folder.resumed_plan();
  if (file.empty()) return "";
  auto text = read_resumed_plan(file);
  const auto plan = plan::parse(text);
  const auto& [global, micro, round] = task.job.batch;
  std::string change;
  if (plan.mesh.size() != world) {
    change = fmt::format("another number of ranks: {} became {}", plan.mesh.size(), world);
  } else if (micro > 0 && methods::microbatches_of(plan, global, micro) != plan.microbatches) {
    change = fmt::format("batch.micro = {}", micro);
  }
  if (change.empty()) return text;
  const auto& dialect = task.job.dialect.name;
  const auto planner = dialect.empty() ? "strategy " + task.strategy : "[" + dialect + "]";
  log::info("resumed with {}, so that a new plan is made by {}", change, planner);
  const auto methods = named_methods(plan);
  if (dialect.empty() && task.strategy == "auto" && !methods.empty()) {
    log::warn("a strategy had named the run's methods, {}: give --strategy to keep them", methods);
  }
  return "";
}

// Says where a run goes on from the average of more copies of the model (local_sgd) than its plan
// has, or of fewer.
void report_copies(const checkpoint::Checkpoint& from, const plan::Plan& plan) {
  for (const auto& tensor : from.tensors()) {
    if (!tensor.name.starts_with("copies:")) continue;
    if (tensor.shape.front() == plan::copies_of(plan)) return;
    log::info("the {} copies of the model in {} are averaged: the plan has {}",
              tensor.shape.front(), from.folder(), plan::copies_of(plan));
    return;
  }
}

// Returns the page about the plan; "" where it cannot be made, since a run does not fail for it.
std::string report_of(const CompiledPlan& compiled, const std::string& runtime_folder) {
  try {
    return page_of(compiled, runtime_folder);
  } catch (const Error& error) {
    log::debug("the run has no page about its plan: {}", error.what());
    return "";
  }
}

// Says where the job asks for validation and too few samples are held out.
void require_held_out(const job::Job& job, const data::Validation& validation, bool warns) {
  const auto& train = job.train;
  const bool wanted = train.keep_best || train.early_stop_patience > 0;
  if (validation.batches > 0 || train.validate_every == 0 || job.data.validation == 0 ||
      (!wanted && train.steps < train.validate_every)) {
    return;
  }
  const auto text = fmt::format(
      "data.validation = {} holds out less than a global batch of {} samples", job.data.validation,
      job.batch.global);
  if (wanted) {
    fail(
        "data",
        "train.early_stop_patience and train.keep_best compare validation losses, but {}: raise it",
        text);
  }
  if (warns) log::warn("{}: nothing is validated; raise it, or set it to 0", text);
}

int64_t count_parameters(const graph::Graph& graph) {
  int64_t count = 0;
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) count += graph.type(input.value).numel();
  }
  return count;
}

const char* plural(int64_t count, const char* ending) { return count == 1 ? "" : ending; }

// The files and the terminal's line that rank 0 writes while the job trains.
struct Output {
  MetricsFile metrics;
  Progress progress;
  std::unique_ptr<view::EventFile> events;  // nullptr: the job asks for none
};

// Returns the step's numbers that TensorBoard shows, with tags in groups.
std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics& step) {
  std::vector<std::pair<std::string, double>> scalars = {{"loss/train", step.loss},
                                                         {"optimizer/lr", step.lr},
                                                         {"optimizer/grad_norm", step.grad_norm},
                                                         {"speed/step_s", step.step_s}};
  if (step.tokens > 0) scalars.emplace_back("speed/tokens_per_s", step.tokens_per_s);
  if (step.val_loss) scalars.emplace_back("loss/validation", *step.val_loss);
  if (step.loss_scale) scalars.emplace_back("optimizer/loss_scale", *step.loss_scale);
  if (!step.peak_bytes.empty()) {
    scalars.emplace_back("memory/largest_peak_bytes",
                         static_cast<double>(*std::ranges::max_element(step.peak_bytes)));
  }
  return scalars;
}

// Returns the files that say how texts are read.
std::vector<std::string> readers_of(const job::DataConfig& data) {
  std::vector<std::string> files;
  if (!data.chat_template.empty()) files.push_back(data.chat_template);
  if (data.tokenizer == "bytes") return files;
  files.push_back(data.tokenizer);
  // These files of its folder have chat templates and the end of a text.
  const auto folder = std::filesystem::path(data.tokenizer).parent_path();
  for (const auto* name : {"chat_template.jinja", "tokenizer_config.json"}) {
    const auto file = (folder / name).string();
    std::error_code ignored;
    if (file != data.chat_template && std::filesystem::exists(file, ignored)) files.push_back(file);
  }
  return files;
}

// Opens the run's folder for writing and logs a description of the training.
std::unique_ptr<Output> begin_output(const Task& task, RunFolder& folder, const job::Job& given,
                                     const RankSession& session, int64_t first_step) {
  const auto& train = session.job.train;
  const auto& blueprint = session.blueprint;
  folder.begin(task.invocation);
  if (task.open_log) task.open_log(folder.file("log.txt"));
  folder.write_job(given);
  folder.write_plan(plan::print(blueprint.plan));
  folder.write_memory(session.memory);
  if (!given.data.files.empty()) {
    folder.write_data(data::record_files(given.data.files, readers_of(given.data)));
  }
  const auto world = session.communicator->world();
  const auto microbatches = blueprint.plan.microbatches;
  auto output = std::unique_ptr<Output>(new Output{
      MetricsFile(folder.file("metrics.jsonl"), first_step - 1),
      Progress(first_step, train.steps, train.log_every, train.progress),
      train.tensorboard ? std::make_unique<view::EventFile>(folder.path(), first_step) : nullptr});
  for (const auto& change : folder.changes()) log::info("resumed with {}", change);
  if (const auto& lost = output->metrics.lost_steps(); folder.resumes() && !lost.empty()) {
    log::warn("{} is damaged or was cut short: the metrics of steps {} are lost, all others kept",
              folder.file("metrics.jsonl"), lost);
  }
  log::info("{}: {} parameters, {} rank{}, {} microbatch{} a step, output in {}", given.name,
            count_parameters(blueprint.training), world, plural(world, "s"), microbatches,
            plural(microbatches, "es"), train.output);
  return output;
}

// Logs the shares of several sources in the run's first samples.
void log_sources(DataSource& data, int64_t samples) {
  std::vector<std::string> shares;
  for (const auto& [name, count] : data.counts(samples)) {
    shares.push_back(fmt::format("{} {} ({:.1f}%)", name, count,
                                 100.0 * double(count) / double(std::max<int64_t>(1, samples))));
  }
  if (!shares.empty()) log::info("samples of sources: {}", fmt::join(shares, ", "));
}

// Returns how the run's checkpoints are written. `folder` and `output`: nullptr on ranks but 0.
CheckpointOptions checkpoint_options(const job::Job& job, const plan::Plan& plan,
                                     const RunFolder* folder, Output* output) {
  CheckpointOptions options{.run = checkpoint_run(job), .plan_hash = plan::hash(plan)};
  if (folder) options.check = [folder] { folder->require_own(); };
  if (output) options.sync = [output] { output->metrics.sync(); };
  return options;
}

// Returns whether nothing is left to train, and logs it.
bool is_done(const job::Job& job, const std::string& checkpoint, bool root) {
  const auto info = checkpoint::Checkpoint(checkpoint).info();
  const bool all = info.step >= job.train.steps;
  if (!all && !BestStep(job, info.state).ends_training()) return false;
  if (root && all) {
    log::info("{}: all {} steps are done, in {} (raise train.steps to continue)", job.name,
              job.train.steps, checkpoint);
  } else if (root) {
    log::info(
        "{}: training ended early, {} validations in a row were no better, in {} (raise "
        "train.early_stop_patience to continue)",
        job.name, job.train.early_stop_patience, checkpoint);
  }
  return true;
}

// Has the data go on after the samples that the run has seen.
void continue_data(data::Data& data, const job::Job& job, int64_t more_samples, bool root) {
  if (more_samples == 0) return;
  if (job.data.slice_files) {
    fail("data",
         "files that are assigned to ranks (data.slice_files) need steps of the same number of "
         "samples, but a step has {} now and had another before: resume on as many ranks and with "
         "the same batch.micro as before",
         job.batch.global);
  }
  data.training = data::shifted(std::move(data.training), job.batch.global, more_samples);
  if (!root) return;
  log::info("steps have {} samples now, others than before: the data goes on where it was",
            job.batch.global);
}

}  // namespace

void train_job(const Task& task, RankSession& session, const std::function<bool()>& stop) {
  auto& communicator = *session.communicator;
  const auto& job = session.job;
  const auto given = session.job;  // with its batch.global, which may not fit the plan
  const bool root = communicator.rank() == 0;
  if (root) check_profile(job);

  // The folder and the checkpoint to continue from.
  const auto all = everyone(communicator);
  // A wait of rank 0 for a disk counts as work.
  const auto at_root = [&](const std::function<void()>& work) {
    wait_for_work(*all, job, root ? work : nullptr);
  };
  std::unique_ptr<RunFolder> folder;
  at_root([&] {
    folder = std::make_unique<RunFolder>(job, run_options(task, job));
    data::check_files(folder->resumed_data(), job.data.files, readers_of(job.data));
  });
  const bool writes_together = job.train.checkpoint_target.empty() && !job.train.forward_only;
  if (writes_together) require_shared_folder(job, communicator);
  const auto checkpoint = share_text(root ? folder->checkpoint() : "", *all);
  if (!checkpoint.empty() && is_done(job, checkpoint, root)) return;

  // The plan, on every rank.
  log::Phases phases(root && job.train.progress);
  phases.begin("planning");
  const auto plan_text = root ? resumed_plan(task, *folder, communicator.world()) : std::string();
  std::shared_ptr<const ModelSource> source;
  Strategy strategy;   // on rank 0
  std::string report;  // on rank 0
  const auto& shared = plan_session(
      task, session, plan_text, source, [&](const CompiledPlan& compiled) {
        require_trained(job, compiled.planned.captured.graph);
        strategy = compiled.planned.strategy;
        report = report_of(compiled, task.runtime_folder);
        if (!checkpoint.empty()) {
          checkpoint::require_scale_of_run(compiled.planned.plan.adapters,
                                           checkpoint::Checkpoint(checkpoint));
        }
        if (job.train.check_gradients && checkpoint.empty()) require_gradients(task, plan_text);
      });
  if (shared.plan.mesh.size() != communicator.world()) {
    fail("plan",
         "the plan's mesh must have the {} ranks of this run, but it has {}: start {} rank{} "
         "(--nproc, cluster.ranks)",
         communicator.world(), shared.plan.mesh.size(), shared.plan.mesh.size(),
         plural(shared.plan.mesh.size(), "s"));
  }
  mesh::verify_ranks(shared.plan.mesh, communicator.world());

  require_document_inputs(job, shared.training);

  std::optional<TrainingSamples> samples;
  if (!job.train.samples.empty()) {
    const auto file = root ? folder->file("samples.jsonl") : std::string();
    samples.emplace(task, shared, session.connection, session.traces, file);
  }

  // The data, before memory is allocated: files that do not fit the job are errors soon.
  // Of the checkpoint.
  const auto state = checkpoint.empty() ? "{}" : checkpoint::Checkpoint(checkpoint).info().state;
  auto division = with_slices_of(state, data::division_of(shared.plan));
  division.warn = root;
  if (root && job.data.slice_files && division.file_slices() != division.ranks) {
    log::info("the files stay dealt to the {} data ranks that the run began on (data.slice_files)",
              division.file_slices());
  }
  data::Data data;
  const auto sources = job.data.token_sources();
  const bool texts = std::ranges::any_of(sources, [](const auto& s) { return s.tokens.empty(); });
  phases.begin(texts ? "tokenizing the text" : "opening the data");
  wait_for_work(*all, job, [&] {
    data = data::open_data(job, division, id_limit(shared.training));
    check_data(job, shared.training, *data.training, root);
    require_held_out(job, data.validation, root);
    if (job.train.validate_every > 0) count_learned(job, shared.training, data.validation);
  });

  // The rank's program and tensors.
  phases.begin("compiling the program");
  session.trainer = std::make_unique<RankTrainer>(shared, job, session.connection, session.traces);
  auto& trainer = *session.trainer;
  int64_t first = 1;         // the first step
  int64_t more_samples = 0;  // of steps whose batches had another size (batch.round)
  const auto show = [&](int64_t done, int64_t bytes) { phases.done(done, bytes); };
  if (checkpoint.empty()) {
    phases.begin(job.train.weights.empty() ? "initialising the weights" : "loading the weights");
    initialise(trainer, source.get(), show);
  } else {
    phases.begin(fmt::format("loading {}", checkpoint));
    wait_for_work(*all, job, [&] {
      const checkpoint::Checkpoint from(checkpoint);
      trainer.load(from, show);
      if (root) report_copies(from, shared.plan);
      first = from.info().step + 1;
      more_samples = from.info().samples - from.info().step * job.batch.global;
    });
    continue_data(data, job, more_samples, root);
  }
  phases.end();
  source.reset();
  if (task.trace) {
    trainer.trace(std::min(first + 1, job.train.steps), [&](const std::string& trace) {
      if (!root) return;
      folder->write_trace(trace);
      task.trace(trace);
    });
  }

  // The steps.
  std::unique_ptr<Output> output;
  at_root([&] {
    output = begin_output(task, *folder, given, session, first);
    folder->write_report(report);
  });
  auto saving = checkpoint_options(job, shared.plan, folder.get(), output.get());
  saving.written = show;
  saving.more_samples = more_samples;
  Checkpoints checkpoints(trainer, communicator, job, std::move(saving));
  if (copies_checkpoints(job)) checkpoints.reserve(job.train.checkpoint_every);
  LoopHooks hooks;
  hooks.stop = stop;
  hooks.tokens_of_sample = tokens_of_sample(shared.training);
  hooks.more_samples = more_samples;
  if (shared.plan.precision.loss_scale.kind == plan::LossScale::Kind::given) {
    hooks.before = [&](int64_t step) {
      const auto scale = root ? strategy.ask("loss_scale", step) : 0;
      trainer.set_loss_scale(share_number(scale, *all));
    };
  } else if (root && strategy.observes("loss_scale")) {
    log::warn(
        "events.loss_scale is never called: set loss_scale = \"given\" of amp_native or half, or "
        "leave it out");
  }
  const bool observed = strategy.observes("step");
  const auto buckets = observed ? compile::bucket_names(trainer.executor().program())
                                : std::map<compile::ValueId, compile::BucketNames>();
  trainer.executor().record(observed);
  // Of steps of one second.
  const auto mfu = root ? mfu_of(shared.training, shared.plan, job, task.runtime_folder, 1)
                        : std::nullopt;
  hooks.report = [&](const StepMetrics& of_loop) {
    auto step = of_loop;
    if (mfu && step.step_s > 0) step.mfu = *mfu / step.step_s;
    output->metrics.write(step);
    if (output->events) output->events->add(step.step, scalars_of(step));
    output->progress.step(step);
    if (!observed) return;
    strategy.notify("step", step_report(step, trainer.executor().intervals(), buckets));
    trainer.executor().record(true);
  };
  hooks.checkpoint = [&](int64_t step, const std::string& of_loop, bool last) {
    const auto all_state = job.data.slice_files ? with_file_slices(of_loop, division) : of_loop;
    return checkpoints.begin(step, all_state, /*copies=*/!last);
  };
  if (samples) {
    hooks.sample = [&](int64_t step) {
      checkpoints.wait();
      samples->write(step);
    };
  }
  hooks.between_checkpoints = [&] { checkpoints.poll(); };
  hooks.validating = [&](int64_t done, int64_t all) {
    if (done == 0) phases.begin("validating");
    if (done < all) return phases.done(done, all);
    phases.end();
  };
  hooks.complete_checkpoint = [&] { checkpoints.wait(); };
  const auto result = run_loop(trainer, communicator, job, first, *data.training, data.validation,
                               hooks, state);
  if (root) output->progress.end();
  phases.begin("saving the last checkpoint");
  checkpoints.wait();
  phases.end();

  if (root) {
    auto summary = summarise(result, first, shared.plan, session.step_prediction);
    summary.mfu = mfu_of(shared.training, shared.plan, job, task.runtime_folder, summary.step_s);
    if (const auto& bytes = session.checkpoint_bytes; !bytes.empty()) {
      summary.checkpoint_bytes = *std::max_element(bytes.begin(), bytes.end());
    }
    output->metrics.write(summary);
    log_summary(summary, result.stopped);
    log_sources(*data.training, result.last_step * job.batch.global);
    if (result.best_step > 0 && (job.train.keep_best || job.train.early_stop_patience > 0)) {
      log::info("lowest validation loss: {:.4f}, after step {}", result.best_loss,
                result.best_step);
    }
    folder->require_resumable();
  }
  if (result.stopped) {
    // A signal to one host stops the ranks of all, and each host's command says so. The first rank
    // that ends has the others of its host ended: all wait for rank 0's summary.
    barrier(communicator);
    throw Error(kStopped, "train",
                fmt::format("stopped by a signal after step {}", result.last_step));
  }
}

}  // namespace perigee::train
