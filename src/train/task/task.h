// A task of the command: a job and the options of the command line. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "job/job.h"
#include "train/task/draw_options.h"

namespace perigee::train {

// A job and what the command line adds to it.
struct Task {
  job::Job job;
  // "auto", or the path of a strategy script.
  std::string strategy = "auto";
  // The command line names the strategy: a resumed run then does not use its own plan.
  bool strategy_given = false;
  std::string plan_file;       // "": the plan is made by the strategy
  std::string runtime_folder;  // Lua modules that scripts can require
  int64_t world = 1;
  bool world_given = false;  // by a launcher, --nproc or cluster.ranks
  int64_t hosts = 1;         // that the ranks are on, by --nodes
  // The launchers start ranks again after a failure, by what each knows of the run.
  bool restarts = false;
  double script_seconds = 5;
  int64_t script_megabytes = 256;
  // Receives, on rank 0, a Chrome trace of all ranks in the second step (or the only one), once
  // that step has run. Empty: nothing is recorded.
  std::function<void(const std::string& trace)> trace;
  bool plain = false;           // "auto" means data parallel over all ranks, without a search
  bool simulate_trace = false;  // simulate: fill SimulateResult::trace
  bool report = false;          // plan: fill PlanResult::report
  bool advice = false;          // simulate: list the changes that would make a step shorter
  bool resume = false;
  std::string resume_from;  // a run or a checkpoint; "": train.output
  bool overwrite = false;   // with `resume`: begin anew where no checkpoint is complete
  // Whether the ranks have been started before, and a random id of the command, the same on all
  // hosts that restart together (train::has_begun); "": no launcher has started them.
  bool restarted = false;
  std::string invocation;
  // Called on rank 0 with the path of log.txt once the run's folder is open. May be empty.
  std::function<void(const std::string& path)> open_log;
};

// Options of `perigee profile`.
struct ProfileOptions {
  // Budget of all measurements, in seconds. Ops that it leaves out keep estimated times.
  double seconds = 120;
  bool remeasure = false;              // measure ops that have times, too
  std::string export_to, import_from;  // JSON files ("perigee.profile/1")
};

// Called with the number of the plan, from 1, and how many of its `all` parts are measured.
using ProfileProgress = std::function<void(int64_t plan, int64_t done, int64_t all)>;

// Options of `perigee sample`.
struct SampleOptions {
  std::string checkpoint;            // "": the newest of train.output
  std::vector<std::string> prompts;  // empty: one, which is a line's end
  int64_t tokens = 256;              // after each prompt
  int64_t context = 0;               // most tokens that the model reads; 0: data.sequence
  std::vector<std::string> stops;    // texts that end a text and are no part of it
  DrawOptions draw;                  // the seed of prompt k is draw.seed + k
};

// Options of `perigee chat`.
struct ChatOptions {
  SampleOptions sample;       // without prompts; `tokens` of an answer at most
  std::string template_file;  // "": the chat template in the tokenizer's folder
  std::string system;         // a first message of the role "system"; "": none
};

// Where the messages of `perigee chat` come from and its answers go to.
struct ChatIo {
  // Returns the user's next message; nothing: the conversation ends.
  std::function<std::optional<std::string>()> read;
  std::function<void(std::string_view)> print;
};

// Options of `perigee serve`.
struct ServeOptions {
  SampleOptions sample;  // without prompts; what requests leave out, `tokens` for conversations
  std::string template_file;  // "": the chat template in the tokenizer's folder
  std::string model;          // its id; "": the job's name
  std::string host = "127.0.0.1";
  int port = 0;          // 0: any that is free
  std::string token;     // that clients prove; "": none
  int64_t slots = 8;     // texts at once
  int64_t waiting = 64;  // requests that wait for a slot, at most
  double seconds = 600;  // most time of a request
};

// What `perigee serve` tells the command, and asks it.
struct ServeIo {
  std::function<void(int port)> listening;
  std::function<bool()> ended;  // asked every 100 ms; true: the server ends
};

}  // namespace perigee::train
