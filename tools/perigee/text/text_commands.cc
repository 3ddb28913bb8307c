// Commands that generate text: sample, chat, serve.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <thread>

#include "../command.h"
#include "../host.h"
#include "../secret.h"
#include "../task.h"
#include "base/log_format.h"
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

// The signals that end a server. Until it listens they end the process, as without it.
class EndingSignals {
 public:
  EndingSignals() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, signal);
    // Threads that start later inherit the mask: the signals wait for this class's thread.
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { wait(); });
  }
  ~EndingSignals() {
    over_ = true;
    thread_.join();
  }

  void listening() { listening_ = true; }
  bool came() const { return came_; }

 private:
  void wait() {
    constexpr timespec kTurn = {.tv_sec = 0, .tv_nsec = 100'000'000};
    while (!over_) {
      const int signal = sigtimedwait(&signals_, nullptr, &kTurn);
      if (signal < 0) continue;
      if (!listening_) {
        std::signal(signal, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
        raise(signal);
      }
      came_ = true;
    }
  }

  sigset_t signals_;
  std::atomic<bool> over_ = false, listening_ = false, came_ = false;
  std::thread thread_;
};

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
  sub->add_option(
         "--tokens", serve.sample.tokens,
         "most tokens of an answer where a request for a conversation names none; default 256")
      ->check(positive());
  sub->add_option("--template", serve.template_file,
                  "a Jinja file; default: the chat template in the tokenizer's folder");
  sub->add_option("--name", serve.model, "the model's id; default: the job's name");
  sub->add_option("--host", serve.host,
                  "the interface to listen on; default 127.0.0.1. Others need a token");
  sub->add_option("--port", serve.port, "0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->default_str(std::to_string(kPort));
  sub->add_option("--token-file", options->token_file,
                  "a file with the token that clients send; default: PERIGEE_TOKEN");
  sub->add_option("--slots", serve.slots, "texts that are generated at once; default 8")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--queue", serve.waiting, "requests that wait for a slot, at most; default 64")
      ->check(CLI::Range(0, 4096));
  sub->add_option("--time-limit", serve.seconds, "most seconds of a request; default 600")
      ->check(positive());
  sub->callback([options, &action] {
    action = [options] {
      auto& serve = options->serve;
      serve.token = given_secret(options->token_file, kServerToken);
      const auto task = make_task(options->job, std::nullopt);
      if (serve.model.empty()) serve.model = task.job.name;
      EndingSignals signals;
      const auto listening = [&](int port) {
        signals.listening();
        const bool v6 = serve.host.find(':') != std::string::npos;
        std::printf("http://%s%s%s:%d/v1\n", v6 ? "[" : "", serve.host.c_str(), v6 ? "]" : "",
                    port);
        std::fflush(stdout);
        log::info("the model is \"{}\"; Ctrl-C ends the server", serve.model);
      };
      torch_host().serve(task, serve, {listening, [&] { return signals.came(); }});
      return 0;
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
