// Commands that run ranks: train, evaluate, sample, export.
#include <cctype>
#include <csignal>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "command.h"
#include "host.h"
#include "task.h"

namespace perigee::command {
namespace {

volatile std::sig_atomic_t stop_asked = 0;

// The first signal asks the rank to stop between two steps; the second ends it.
void ask_to_stop(int signal) {
  stop_asked = 1;
  std::signal(signal, SIG_DFL);
}

// Returns true for the error of a rank that waits for one that failed, which tells the reason
// itself.
bool is_peers_fault(std::string_view message) {
  const auto failed = message.find(" failed: ");
  if (failed != std::string_view::npos && failed > 0 && std::isdigit(message[failed - 1]))
    return true;  // "rank 3 failed: "
  return message.find("Connection closed by peer") != std::string_view::npos ||
         message.find("Connection reset by peer") != std::string_view::npos;
}

// Runs one rank and turns its error into a message and a status.
int guarded_rank(const Place& place, bool own_launcher, const std::function<void()>& body) {
  std::signal(SIGTERM, ask_to_stop);
  std::signal(SIGINT, ask_to_stop);
  const auto prefix = place.world > 1 ? fmt::format("rank {}", place.rank) : std::string();
  log::set_sink(log::standard_sink(prefix));
  try {
    body();
    std::fflush(stdout);
    return 0;
  } catch (const Error& error) {
    if (own_launcher && place.world == place.local_world && is_peers_fault(error.what()))
      return kStoppedByPeer;
    std::fprintf(stderr, "perigee: %s%s\n", prefix.empty() ? "" : (prefix + ": ").c_str(),
                 error.what());
    return static_cast<int>(error.status());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perigee: %s%s\n", prefix.empty() ? "" : (prefix + ": ").c_str(),
                 error.what());
    return 1;
  }
}

// Runs `body` as one rank of another launcher, or forks the ranks of this host.
int run_ranks(const JobOptions& options, const train::Task& task,
              const std::function<void(const Place&)>& body) {
  torch_host();  // loaded before the fork: its pages are shared
  if (const auto place = job::place_from_environment()) {
    return guarded_rank(*place, false, [&] { body(*place); });
  }
  return launch(launch_options(options, task), [&](const Place& place) {
    return guarded_rank(place, true, [&] { body(place); });
  });
}

void add_train(CLI::App& app, Action& action) {
  struct Options {
    JobOptions job;
    std::string resume;
    bool overwrite = false;
  };
  auto options = std::make_shared<Options>();
  auto* sub = app.add_subcommand("train", "plan, launch the ranks, train");
  sub->add_option("JOB", options->job.file, "a job (TOML), or a strategy script that names its job")
      ->required();
  add_job_options(*sub, options->job);
  auto* resume = sub->add_flag(
      "--resume{newest}", options->resume,
      "[DIR] continue from the newest complete checkpoint of train.output, or of DIR");
  sub->add_flag("--overwrite", options->overwrite, "empty an output folder that holds another run")
      ->excludes(resume);
  sub->callback([options, &action] {
    action = [options] {
      auto task = make_task(options->job, job::place_from_environment());
      task.resume = !options->resume.empty();
      if (options->resume != "newest") task.resume_from = options->resume;
      task.overwrite = options->overwrite;
      return run_ranks(options->job, task, [&](const Place& place) {
        torch_host().train(task, place, [] { return stop_asked != 0; });
      });
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
  auto* sub =
      app.add_subcommand("evaluate", "forward only, from a checkpoint, with any parallelism");
  sub->add_option("JOB", options->job.file, "a job (TOML), or a strategy script that names its job")
      ->required();
  sub->add_option("--checkpoint", options->checkpoint,
                  "a run or a checkpoint; default: the newest of train.output");
  add_job_options(*sub, options->job);
  add_output_options(*sub, options->output);
  sub->callback([options, &action] {
    action = [options] {
      const auto task = make_task(options->job, job::place_from_environment());
      return run_ranks(options->job, task, [&](const Place& place) {
        const auto metrics = torch_host().evaluate(task, options->checkpoint, place);
        if (place.rank == 0) write_result(options->output, metrics);
      });
    };
  });
}

void add_sample(CLI::App& app, Action& action) {
  struct Options {
    JobOptions job;
    train::SampleOptions sample;
  };
  auto options = std::make_shared<Options>();
  auto* sub = app.add_subcommand("sample", "generate text from a checkpoint");
  sub->add_option("JOB", options->job.file, "a job (TOML) of a language model")->required();
  sub->add_option("--checkpoint", options->sample.checkpoint,
                  "a run or a checkpoint; default: the newest of train.output");
  sub->add_option("--prompt", options->sample.prompt, "what the text begins with");
  sub->add_option("--tokens", options->sample.tokens, "how many tokens to generate; default 256")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--temperature", options->sample.temperature,
                  "0: always the likeliest token; default 1")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--top-k", options->sample.top_k, "draw among the k likeliest tokens; 0: all")
      ->check(CLI::NonNegativeNumber);
  sub->add_option("--seed", options->sample.seed, "of the draws; default 0");
  sub->add_option("--set", options->job.sets, "override one job key: a.b=VALUE; repeatable")
      ->expected(1)
      ->take_all();
  sub->callback([options, &action] {
    action = [options] {
      const auto task = make_task(options->job, std::nullopt);
      torch_host().sample(task, options->sample, [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      });
      return 0;
    };
  });
}

void add_export(CLI::App& app, Action& action) {
  struct Options {
    std::string checkpoint, file;
  };
  auto options = std::make_shared<Options>();
  auto* sub = app.add_subcommand(
      "export", "full weights as one safetensors file, under the module's own names");
  sub->add_option("CHECKPOINT", options->checkpoint, "a run's folder or a checkpoint")->required();
  sub->add_option("-o,--output", options->file, "the file to write")->required();
  sub->callback([options, &action] {
    action = [options] {
      torch_host().export_weights(options->checkpoint, options->file);
      return 0;
    };
  });
}

}  // namespace

void add_training_commands(CLI::App& app, Action& action) {
  add_train(app, action);
  add_evaluate(app, action);
  add_sample(app, action);
  add_export(app, action);
}

}  // namespace perigee::command
