// Commands that generate text: sample, chat, serve.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "../command.h"
#include "../host.h"
#include "../ranks/run_ranks.h"
#include "../secret.h"
#include "../task.h"
#include "base/log_format.h"
#include "base/text/utf8.h"
#include "relay_input.h"

namespace perigee::command {
namespace {

// Text to standard output at once. Tokens may end within a character, or make none.
class Output {
 public:
  void add(std::string_view text) { write(valid_.add(text)); }
  void end() { write(valid_.end()); }

 private:
  static void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  Utf8Stream valid_;
};

void add_model_options(CLI::App& sub, JobOptions& job, train::SampleOptions& sample) {
  sub.add_option("JOB", job.file, "a job (TOML) of a language model")->required();
  sub.add_option("--checkpoint", sample.checkpoint,
                 "a run or a checkpoint; default: the newest of train.output");
  add_integer(sub, "--context", sample.context,
              "most tokens that the model reads; default: data.sequence")
      ->check(positive());
  sub.add_option("--temperature", sample.draw.temperature,
                 "0: always the likeliest token; default 1")
      ->check(CLI::NonNegativeNumber);
  add_integer(sub, "--top-k", sample.draw.top_k, "draw among the k likeliest tokens; 0: all")
      ->check(CLI::NonNegativeNumber);
  sub.add_option("--top-p", sample.draw.top_p,
                 "draw among the likeliest tokens whose probabilities add up to p; default 1")
      ->check(CLI::Range(0.0, 1.0));
  sub.add_option("--repetition-penalty", sample.draw.repetition_penalty,
                 "above 1: tokens that the text has become less likely; default 1")
      ->check(positive());
  add_integer(sub, "--seed", sample.draw.seed, "of the draws; default 0");
  add_texts(sub, "--stop", sample.stops, "a text that ends the output; repeatable")
      ->check([](const std::string& text) { return text.empty() ? "the text is empty" : ""; });
  add_job_options(sub, job);
}

// Returns the task of a command that generates text. Without an option about ranks or their plan, the
// model is on one rank, whatever the job's strategy is.
train::Task text_task(const JobOptions& options) {
  refuse_cluster(options);
  require_fixed_hosts(options);
  const bool spreads = options.nproc > 0 || options.nodes > 1 || !options.strategy.empty() ||
                       !options.plan.empty();
  if (spreads) return make_task(options, job::place_from_environment());
  auto task = make_task(options, std::nullopt);
  task.strategy = "auto";
  task.strategy_given = false;
  task.world = 1;
  task.world_given = true;
  return task;
}

// Runs `body` on the task's ranks; a single one is this process. A signal ends all.
int generate(const JobOptions& options, const train::Task& task,
             const std::function<void(const Place&)>& body,
             const RankOptions& ranks = {.stops_between_steps = false}) {
  if (task.world > 1) return run_ranks(options, task, body, ranks);
  body({});
  return 0;
}

void add_sample(CLI::App& app, Action& action) {
  struct Options {
    JobOptions job;
    train::SampleOptions sample;
  };
  auto options = std::make_shared<Options>();
  auto* sub = add_command(app, "sample", "generate text from a checkpoint",
                          {"perigee sample job.toml --prompt \"Hello\" --tokens 200",
                           "perigee sample job.toml --temperature 0.7 --top-k 40",
                           "perigee sample job.toml --prompt \"One\" --prompt \"Two\" --top-p 0.9",
                           "perigee sample job.toml --nproc 2 --strategy tensor_parallel"});
  add_model_options(*sub, options->job, options->sample);
  add_texts(*sub, "--prompt", options->sample.prompts,
            "what the text begins with; several are completed side by side");
  add_integer(*sub, "--tokens", options->sample.tokens, "how many tokens to generate; default 256")
      ->check(CLI::NonNegativeNumber);
  sub->callback([options, &action] {
    action = [options] {
      const auto task = text_task(options->job);
      return generate(options->job, task, [&](const Place& place) {
        Output output;
        torch_host().sample(task, options->sample, place,
                            [&](std::string_view text) { output.add(text); });
        output.end();
      });
    };
  });
}

void add_chat(CLI::App& app, Action& action) {
  struct Options {
    JobOptions job;
    train::ChatOptions chat;
  };
  auto options = std::make_shared<Options>();
  auto* sub = add_command(
      app, "chat", "talk to a model: a message on each line of standard input; /new begins again",
      {"perigee chat job.toml", "perigee chat job.toml --system \"Answer in one sentence.\""});
  add_model_options(*sub, options->job, options->chat.sample);
  add_integer(*sub, "--tokens", options->chat.sample.tokens,
              "most tokens of an answer; default 256")
      ->check(positive());
  sub->add_option("--system", options->chat.system, "a system message before the conversation");
  sub->add_option("--template", options->chat.template_file,
                  "a Jinja file; default: the chat template in the tokenizer's folder");
  sub->callback([options, &action] {
    action = [options] {
      const auto task = text_task(options->job);
      const bool asks = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
      std::optional<InputRelay> relay;
      if (task.world > 1 && !task.job.cluster.in_process && !job::place_from_environment()) {
        relay.emplace();
      }
      Output output;
      const auto read = [&]() -> std::optional<std::string> {
        std::string line;
        do {
          if (asks) output.add("> ");
          if (!std::getline(std::cin, line)) return std::nullopt;
        } while (line.empty());
        return line;
      };
      return generate(options->job, task, [&](const Place& place) {
        torch_host().chat(task, options->chat, place,
                          {read, [&](std::string_view text) { output.add(text); }});
        if (asks && place.rank == 0) output.add("\n");
        output.end();
      });
    };
  });
}

void add_serve(CLI::App& app, Action& action) {
  struct Options {
    JobOptions job;
    train::ServeOptions serve;
    std::string token_file;
  };
  constexpr int kPort = 8738;
  auto options = std::make_shared<Options>();
  auto& serve = options->serve;
  serve.port = kPort;
  auto* sub = add_command(
      app, "serve", "answer requests of OpenAI's API: completions and chat completions",
      {"perigee serve job.toml", "perigee serve job.toml --port 8000 --slots 16",
       "perigee serve job.toml --host 0.0.0.0 --token-file token.txt"});
  add_model_options(*sub, options->job, serve.sample);
  add_integer(*sub, "--tokens", serve.sample.tokens,
              "most tokens of an answer where a request for a conversation names none; default 256")
      ->check(positive());
  sub->add_option("--template", serve.template_file,
                  "a Jinja file; default: the chat template in the tokenizer's folder");
  sub->add_option("--name", serve.model, "the model's id; default: the job's name");
  sub->add_option("--host", serve.host,
                  "the interface to listen on; default 127.0.0.1. Others need a token");
  add_integer(*sub, "--port", serve.port, "0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->default_str(std::to_string(kPort));
  sub->add_option("--token-file", options->token_file,
                  "a file with the token that clients send; default: PERIGEE_TOKEN");
  add_integer(*sub, "--slots", serve.slots, "texts that are generated at once; default 8")
      ->check(CLI::Range(1, 1024));
  add_integer(*sub, "--queue", serve.waiting, "requests that wait for a slot, at most; default 64")
      ->check(CLI::Range(0, 4096));
  sub->add_option("--time-limit", serve.seconds, "most seconds of a request; default 600")
      ->check(positive());
  sub->callback([options, &action] {
    action = [options] {
      auto& serve = options->serve;
      serve.token = given_secret(options->token_file, kServerToken);
      const auto task = text_task(options->job);
      if (serve.model.empty()) serve.model = task.job.name;
      const auto listening = [&](int port) {
        stop_on_signals();
        const bool v6 = serve.host.find(':') != std::string::npos;
        std::printf("http://%s%s%s:%d/v1\n", v6 ? "[" : "", serve.host.c_str(), v6 ? "]" : "",
                    port);
        std::fflush(stdout);
        log::info("the model is \"{}\"; Ctrl-C ends the server", serve.model);
      };
      return generate(options->job, task,
                      [&](const Place& place) {
                        torch_host().serve(task, serve, place, {listening, stop_requested});
                      },
                      {.stops_between_steps = true});
    };
  });
}

}  // namespace

void add_text_commands(CLI::App& app, Action& action) {
  add_sample(app, action);
  add_chat(app, action);
  add_serve(app, action);
}

}  // namespace perigee::command
