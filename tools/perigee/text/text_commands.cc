// Commands that generate text: sample, chat.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>

#include "../command.h"
#include "../host.h"
#include "../task.h"
#include "base/text/utf8.h"

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
  sub.add_option("--context", sample.context,
                 "most tokens that the model reads; default: data.sequence")
      ->check(positive());
  sub.add_option("--temperature", sample.draw.temperature,
                 "0: always the likeliest token; default 1")
      ->check(CLI::NonNegativeNumber);
  sub.add_option("--top-k", sample.draw.top_k, "draw among the k likeliest tokens; 0: all")
      ->check(CLI::NonNegativeNumber);
  sub.add_option("--top-p", sample.draw.top_p,
                 "draw among the likeliest tokens whose probabilities add up to p; default 1")
      ->check(CLI::Range(0.0, 1.0));
  sub.add_option("--repetition-penalty", sample.draw.repetition_penalty,
                 "above 1: tokens that the text has become less likely; default 1")
      ->check(positive());
  sub.add_option("--seed", sample.draw.seed, "of the draws; default 0");
  sub.add_option("--stop", sample.stops, "a text that ends the output; repeatable")
      ->expected(1)
      ->take_all();
  sub.add_option("--set", job.sets, "override one job key: a.b=VALUE; repeatable")
      ->expected(1)
      ->take_all();
}

void add_sample(CLI::App& app, Action& action) {
  struct Options {
    JobOptions job;
    train::SampleOptions sample;
  };
  auto options = std::make_shared<Options>();
  auto* sub = add_command(
      app, "sample", "generate text from a checkpoint",
      {"perigee sample job.toml --prompt \"Hello\" --tokens 200",
       "perigee sample job.toml --temperature 0.7 --top-k 40",
       "perigee sample job.toml --prompt \"One\" --prompt \"Two\" --top-p 0.9"});
  add_model_options(*sub, options->job, options->sample);
  sub->add_option("--prompt", options->sample.prompts,
                  "what the text begins with; several are completed side by side")
      ->expected(1)
      ->take_all();
  sub->add_option("--tokens", options->sample.tokens, "how many tokens to generate; default 256")
      ->check(CLI::NonNegativeNumber);
  sub->callback([options, &action] {
    action = [options] {
      const auto task = make_task(options->job, std::nullopt);
      Output output;
      torch_host().sample(task, options->sample, [&](std::string_view text) { output.add(text); });
      output.end();
      return 0;
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
  sub->add_option("--tokens", options->chat.sample.tokens, "most tokens of an answer; default 256")
      ->check(positive());
  sub->add_option("--system", options->chat.system, "a system message before the conversation");
  sub->add_option("--template", options->chat.template_file,
                  "a Jinja file; default: the chat template in the tokenizer's folder");
  sub->callback([options, &action] {
    action = [options] {
      const auto task = make_task(options->job, std::nullopt);
      const bool asks = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
      Output output;
      const auto read = [&]() -> std::optional<std::string> {
        std::string line;
        do {
          if (asks) output.add("> ");
          if (!std::getline(std::cin, line)) return std::nullopt;
        } while (line.empty());
        return line;
      };
      torch_host().chat(task, options->chat,
                        {read, [&](std::string_view text) { output.add(text); }});
      if (asks) output.add("\n");
      output.end();
      return 0;
    };
  });
}

}  // namespace

void add_text_commands(CLI::App& app, Action& action) {
  add_sample(app, action);
  add_chat(app, action);
}

}  // namespace perigee::command
