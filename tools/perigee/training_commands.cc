// Commands that run ranks: train, profile, evaluate, export.
#include <charconv>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/log_format.h"
#include "command.h"
#include "host.h"
#include "ranks/run_ranks.h"
#include "task.h"
#include "view/run_summary.h"

namespace perigee::command {

namespace fs = std::filesystem;

namespace {

// The log has the reason why the run ended; where it cannot be written, standard error has it.
void append_line(const std::string& path, const char* text) {
  std::FILE* file = path.empty() ? nullptr : std::fopen(path.c_str(), "a");
  if (!file) return;
  std::fprintf(file, "%s\n", text);
  std::fclose(file);
}

// Returns the exit status: 1 where gradients differ.
int check_gradients(const JobOptions& options, const std::string& text) {
  double tolerance = 0;  // by the model's precision
  if (text != "auto") {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tolerance);
    if (error != std::errc() || end != text.data() + text.size() || !(tolerance > 0)) {
      fail("command", "--check-gradients takes a relative tolerance above 0, but got \"{}\"", text);
    }
  }
  const auto report = torch_host().check_gradients(make_task(options, std::nullopt), tolerance);
  write_result({}, report.text);
  return report.passed ? 0 : 1;
}

// Throws Error where this is the host or process of rank 0, which writes the file, and cannot.
void require_file_of_root(const JobOptions& options, const std::string& file) {
  const auto place = job::place_from_environment();
  if (options.node_rank <= 0 && (!place || place->rank == 0)) require_file(file);
}

// Logs a table of the run's results and the commands that show them, which have the options that it
// was given, so that they work on the same model, plan and folder. `trace`: the file, or "".
void log_results(const JobOptions& options, const job::Job& trained, const std::string& trace) {
  const auto place = job::place_from_environment();
  if (place && place->rank != 0) return;
  const auto& output = trained.train.output;
  std::error_code none;
  if (!fs::exists(fs::path(output) / "metrics.jsonl", none)) return;  // on the host of rank 0
  std::vector<view::SummaryRow> rows;
  try {
    rows = view::summary_rows(output);
  } catch (const Error& error) {  // the run itself is good
    log::warn("{}", error.what());
  }
  if (!trained.train.checkpoint_target.empty()) {
    rows.emplace_back("checkpoint", trained.train.checkpoint_target);
  }
  if (!trace.empty()) rows.emplace_back("trace", trace + ", which ui.perfetto.dev shows");
  const auto report = fs::path(output) / "plan.html";
  if (fs::exists(report, none))
    rows.emplace_back("report", report.string() + ", the plan as a page");
  rows.emplace_back("run", output);
  for (const auto& line : view::aligned(rows)) log::info("{}", line);

  const auto run = quoted(output);
  const auto command = quoted(command_name());
  auto sets = quoted(options.file);
  for (const auto& set : options.sets) sets += " --set " + quoted(set);
  auto job = sets;
  if (!options.strategy.empty()) job += " --strategy " + quoted(options.strategy);
  if (!options.plan.empty()) job += " --plan " + quoted(options.plan);
  if (options.nproc > 0) job += fmt::format(" --nproc {}", options.nproc);
  if (options.nodes > 1) job += fmt::format(" --nodes {}", options.nodes);
  std::vector<view::SummaryRow> next = {
      {"next: charts on a page", "watch " + run},
      {"next: curves as a picture", fmt::format("plot {} -o loss.svg", run)},
      {"next: reasons of the plan", fmt::format("plan {} --explain", job)}};
  if (fs::exists(fs::path(output) / "checkpoints", none)) {
    next.emplace_back("next: weights as a file",
                      fmt::format("export {} -o weights.safetensors", run));
    const auto sources = trained.data.token_sources();
    const bool texts = std::ranges::any_of(sources, [](const auto& s) { return s.tokens.empty(); });
    const bool talks = !sources.empty() && std::ranges::all_of(sources, [](const auto& s) {
      return !s.conversations.empty();
    });
    if (talks) next.emplace_back("next: a conversation", "chat " + sets);
    if (!talks && texts)
      next.emplace_back("next: a text of the model",
                        fmt::format("sample {} --prompt \"...\"", sets));
  }
  for (auto& [purpose, arguments] : next) arguments = command + " " + arguments;
  for (const auto& line : view::aligned(next)) log::info("{}", line);
}

void add_train(CLI::App& app, Action& action) {
  struct Options {
    JobOptions job;
    std::string trace, check;
    bool overwrite = false;
  };
  auto options = std::make_shared<Options>();
  auto* sub = add_command(
      app, "train", "plan, launch the ranks, train",
      {"perigee train job.toml --nproc 2",
       "perigee train job.toml --strategy ddp --set train.steps=500",
       "perigee train job.toml --resume",
       "perigee train job.toml --nproc 8 --nodes 2 --node-rank 0 --rendezvous host0:29500",
       "perigee train job.toml --nproc 8 --nodes 1:4 --rendezvous host0:29500,host1:29500 "
       "--resume-if-any --max-restarts 3"});
  sub->add_option("JOB", options->job.file, "a job (TOML), or a strategy script that names its job")
      ->required();
  add_job_options(*sub, options->job);
  auto* resume = sub->add_flag(
      "--resume{newest}", options->job.resume,
      "[DIR] continue from the newest complete checkpoint of train.output, or of DIR");
  auto* overwrite = sub->add_flag("--overwrite", options->overwrite,
                                  "empty an output folder that holds another run")
                        ->excludes(resume);
  sub->add_flag("--resume-if-any", options->job.resume_if_any,
                "as --resume where train.output has a complete checkpoint, else begin anew there")
      ->excludes(resume)
      ->excludes(overwrite);
  add_integer(*sub, "--max-restarts", options->job.max_restarts,
              "how often a job whose rank failed is started again, from its newest complete "
              "checkpoint; default 0")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--trace", options->trace,
                  "write what all ranks did in the second step to this file (Chrome trace events)");
  sub->add_flag(
      "--check-gradients{auto}", options->check,
      "[=TOLERANCE] train nothing: run the first step's gradients on the strategy's ranks "
      "and on one device, on the CPU, and print how far they are apart");
  sub->callback([options, &action] {
    action = [options] {
      refuse_cluster(options->job);
      if (!options->check.empty()) return check_gradients(options->job, options->check);
      require_file_of_root(options->job, options->trace);
      auto task = make_running_task(options->job);
      task.resume = !options->job.resume.empty();
      if (options->job.resume != "newest") task.resume_from = options->job.resume;
      if (!options->trace.empty()) {
        task.trace = [file = options->trace](const std::string& trace) {
          write_durably(file, trace);
          log::info("wrote the trace of a step, {}: ui.perfetto.dev shows it", file);
        };
      }
      task.overwrite = options->overwrite;
      if (options->job.resume_if_any) task.resume = task.overwrite = true;
      // A host that joins has the others stop and save.
      if (options->job.least_nodes < options->job.nodes) {
        task.job.train.checkpoint_when_stopped = true;
      }
      // The run goes on when the reader of its log ends (| head).
      ::signal(SIGPIPE, SIG_IGN);
      const auto train = [&](const Place& place) {
        std::string log_file;
        auto rank_task = task;
        rank_task.world = place.world;
        rank_task.open_log = [&](const std::string& path) {
          log_file = path;
          log::set_sink(log::standard_sink(log_prefix(place), path));
        };
        try {
          torch_host().train(rank_task, place, stop_requested);
        } catch (const std::exception& error) {
          append_line(log_file, error.what());
          throw;
        }
      };
      // A restart resumes; before the first checkpoint it begins anew.
      const auto before_round = [&task](const std::string& id, bool again) {
        task.invocation = id;
        task.restarted = again;
      };
      const int status = run_ranks(options->job, task, train,
                                   {.lost_work = "steps after the last checkpoint are discarded",
                                    .before_round = before_round});
      if (status == 0 && options->job.node_rank <= 0) {
        log_results(options->job, task.job, options->trace);
      }
      return status;
    };
  });
}

void add_profile(CLI::App& app, Action& action) {
  struct Options {
    JobOptions job;
    train::ProfileOptions profile;
  };
  auto options = std::make_shared<Options>();
  auto& profile = options->profile;
  auto* sub = add_command(app, "profile",
                          "measure what a job's programs run on this machine, for later plans",
                          {"perigee profile job.toml --nproc 2",
                           "perigee profile job.toml --strategy fsdp --nproc 2 --seconds 30",
                           "perigee profile --export profile.json"});
  auto* job = sub->add_option("JOB", options->job.file,
                              "a job (TOML), or a strategy script that names its job");
  add_job_options(*sub, options->job);
  sub->add_option("--seconds", profile.seconds,
                  "seconds for all measurements; ops not reached stay estimates; default 120")
      ->check(positive());
  sub->add_flag("--again", profile.remeasure, "also measure ops whose times are known");
  sub->add_option("--export", profile.export_to, "write the whole profile to this JSON file")
      ->excludes(job);
  sub->add_option("--import", profile.import_from, "add a profile that was exported")
      ->excludes(job);
  sub->callback([options, &action] {
    action = [options] {
      if (options->job.file.empty()) {
        if (options->profile.export_to.empty() && options->profile.import_from.empty()) {
          fail("command", "perigee profile takes a JOB, --export or --import, but got none");
        }
        write_result({}, torch_host().move_profile(options->profile));
        return 0;
      }
      refuse_cluster(options->job);
      require_fixed_hosts(options->job);
      const auto task = make_running_task(options->job);
      const auto measure = [&](const Place& place) {
        bool shown = false;
        const auto text = torch_host().profile(
            task, options->profile, place, [&](auto plan, auto done, auto all) {
              const auto which = plan > 1 ? fmt::format("plan {}, ", plan) : std::string();
              shown = log::progress(fmt::format("profile: {}{} of {} measured", which, done, all));
            });
        if (shown) log::progress("");
        if (place.rank == 0) write_result({}, text);
      };
      return run_ranks(options->job, task, measure,
                       {.lost_work = "the measurements of this run are discarded"});
    };
  });
}

void add_evaluate(CLI::App& app, Action& action) {
  struct Options {
    JobOptions job;
    OutputOptions output;
    std::string checkpoint;
  };
  auto options = std::make_shared<Options>();
  auto* sub = add_command(
      app, "evaluate", "forward only, from a checkpoint, with any parallelism",
      {"perigee evaluate job.toml",
       "perigee evaluate job.toml --checkpoint runs/gpt/checkpoints/step-100 --nproc 2"});
  sub->add_option("JOB", options->job.file, "a job (TOML), or a strategy script that names its job")
      ->required();
  sub->add_option("--checkpoint", options->checkpoint,
                  "a run or a checkpoint; default: the newest of train.output");
  add_job_options(*sub, options->job);
  add_output_options(*sub, options->output);
  sub->callback([options, &action] {
    action = [options] {
      require_fixed_hosts(options->job);
      refuse_cluster(options->job);
      require_file_of_root(options->job, options->output.file);
      const auto task = make_running_task(options->job);
      return run_ranks(options->job, task, [&](const Place& place) {
        const auto metrics = torch_host().evaluate(task, options->checkpoint, place);
        if (place.rank == 0) write_result(options->output, metrics);
      });
    };
  });
}

// Throws Error for a file whose name promises another format than the one that export writes.
void require_safetensors(const std::string& file) {
  const auto ending = fs::path(file).extension().string();
  for (const char* other :
       {".gguf", ".ggml", ".pt", ".pth", ".pt2", ".bin", ".onnx", ".npz", ".h5"}) {
    if (ending != other) continue;
    fail("command",
         "perigee export writes safetensors, but {} names a file of another format: end it in "
         ".safetensors, or write a folder of Hugging Face (--hf), which converters read",
         file);
  }
}

void add_export(CLI::App& app, Action& action) {
  struct Options {
    std::string file, adapter;
    int64_t shard_bytes = 5'000'000'000;
    train::ExportFolder folder;
  };
  auto options = std::make_shared<Options>();
  auto* sub = add_command(app, "export",
                          "full weights as one safetensors file, under the module's own names, or "
                          "as a folder of Hugging Face; or the adapters alone",
                          {"perigee export runs/gpt -o gpt.safetensors",
                           "perigee export runs/llama --adapter llama-adapter",
                           "perigee export runs/llama --hf llama-tuned --shard-size 2GB"});
  sub->add_option("CHECKPOINT", options->folder.checkpoint, "a run's folder or a checkpoint")
      ->required();
  auto* to = sub->add_option_group("destination");
  to->add_option("-o,--output", options->file, "the file to write");
  auto* folder = to->add_option("--hf", options->folder.folder,
                                "the folder to write: config.json and weights with their names in "
                                "model.folder, for runs with model.kind = \"hf\"");
  to->add_option("--adapter", options->adapter,
                 "the folder to write: adapter_config.json and adapter_model.safetensors as PEFT "
                 "reads them, for runs with the method lora; the other destinations get its "
                 "adapters merged into the weights");
  to->require_option(1);
  add_integer(*sub, "--shard-size", options->shard_bytes,
              "with --hf: most bytes of a file (200MB, 5GB); default 5GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(positive())
      ->needs(folder);
  sub->add_option("--dtype", options->folder.dtype,
                  "with --hf: type of the weights; default: their types in model.folder")
      ->check(CLI::IsMember({"float64", "float32", "bfloat16", "float16"}))
      ->needs(folder);
  sub->callback([options, &action] {
    action = [options] {
      if (!options->adapter.empty()) {
        torch_host().export_adapter(options->folder.checkpoint, options->adapter);
        log::info("wrote the folder {}", options->adapter);
        return 0;
      }
      std::string merged;
      if (options->folder.folder.empty()) {
        require_safetensors(options->file);
        merged = torch_host().export_weights(options->folder.checkpoint, options->file);
        log_written(options->file);
      } else {
        options->folder.shard_bytes = options->shard_bytes;
        merged = torch_host().export_folder(options->folder);
        log::info("wrote the folder {}", options->folder.folder);
      }
      if (!merged.empty()) log::info("{}", merged);
      return 0;
    };
  });
}

}  // namespace

void add_training_commands(CLI::App& app, Action& action) {
  add_train(app, action);
  add_profile(app, action);
  add_evaluate(app, action);
  add_export(app, action);
}

}  // namespace perigee::command
