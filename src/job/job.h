// The job: what to train, on what, and how long (runtime/jobs.md; runtime/job.md lists
// every key). The strategy defines how the work is spread over devices.
//
// One table has every key's type, default, limits and description (job/keys.h). A field's initial
// value is its key's default; where that default follows from other keys, the field starts as "not
// given" (0, "" or -1, as its comment says) and complete() fills it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace perigee::job {

// A key's value.
using Value =
    std::variant<bool, int64_t, double, std::string, std::vector<double>, std::vector<std::string>>;

// One tensor of a batch, as the script of a model describes it; dim 0, the samples, is not
// in `shape`.
struct BatchField {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t classes = 0;  // integers: values are in [0, classes)
  // Synthetic integers: number of leading elements of the sample's sequence to skip.
  int64_t shift = 0;
  bool operator==(const BatchField&) const = default;
};

struct ModelConfig {
  // one of model_kinds() (model_kinds.h); "": the application's own module
  std::string kind;
  std::string dtype = "float32";    // of the parameters: float64, float32, bfloat16
  std::vector<std::string> frozen;  // patterns of parameters not trained (base/text/match.h)
  // The kind's own keys, every one of them after complete(). An integer that is not given and does
  // not follow from the job is 0: `vocab` with a SentencePiece tokenizer, which train/ loads.
  std::map<std::string, Value> values;
  // kinds "plugin" and "lua": [model.options], handed to the plugin or script
  std::map<std::string, Value> options;
  std::string around;           // script of functions around the model; "": none
  std::string unpack = "dict";  // how a batch's fields reach the model: dict (by name), sequence
  // Kind "lua": a batch's fields, which train/ reads from the script.
  std::vector<BatchField> fields;

  // Returns one of the kind's own keys. Throws Error when the kind has no such key of that type.
  bool flag(std::string_view key) const;
  int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  const std::string& text(std::string_view key) const;
  bool operator==(const ModelConfig&) const = default;
};

// One of several sources that are mixed ([[data.sources]]).
struct SourceConfig {
  std::string name;   // "": its number, "source 1"
  double weight = 1;  // its samples' share is weight / (the sum of all weights)
  // Exactly one of these four, as in DataConfig.
  std::vector<std::string> text, tokens, jsonl, conversations;
  std::string document;  // key "template"; "": that of DataConfig

  std::vector<std::string> files;  // those of the patterns, in their order
  bool operator==(const SourceConfig&) const = default;
};

struct DataConfig {
  // Exactly one of these six or `sources`; without any, synthetic. Files are
  // patterns (base/files/glob.h).
  std::vector<std::string> text;
  std::vector<std::string> tokens;
  std::vector<std::string> jsonl;          // a document a line
  std::vector<std::string> conversations;  // a conversation a line
  std::vector<std::string> tensors;
  bool synthetic = false;
  std::vector<SourceConfig> sources;
  std::string document = "{text}";     // key "template": of a line of `jsonl`
  std::string chat_template;           // file; "": that of the tokenizer's folder
  std::string end_of_text;             // token after each document; "": the tokenizer's
  std::string broken_lines = "error";  // lines that give no document: error, skip
  std::string pack = "stream";         // how documents become samples: stream, documents, none
  int64_t shuffle_buffer = 0;          // samples that are shuffled with each other; 0: all
  std::string objective = "causal";    // the labels: causal, masked, classification
  std::string token_type = "uint16";   // of token files: uint16, uint32
  std::string tokenizer = "bytes";     // or a SentencePiece model file
  int64_t sequence = 256;              // tokens of a sample
  double validation = 0.05;            // share held out, in [0, 1)
  // The model's inputs that are batches, by name or by place among them in the order of their names
  // ("0"); the others are the same for all samples. Empty: all are batches.
  std::vector<std::string> batched;
  std::string sampler = "shuffle";  // one of sampler_names(), or a library (.so) with one
  // File i belongs to data rank i modulo their number, and each rank draws samples from its own
  // files only (EPL's file slicing); the data of a rank then depend on the number of ranks.
  bool slice_files = false;
  // Files beyond a multiple of the data ranks: share (no file is sliced), deal, drop.
  std::string left_over = "share";

  // The files of all sources, in the order of the patterns and sorted within each.
  std::vector<std::string> files;

  std::vector<std::string> batched_names;  // `batched` without places, which train/ looks up

  // Returns the sources of tokens: `sources`, or the one that the keys above describe; nothing
  // where samples are tensors or synthetic.
  std::vector<SourceConfig> token_sources() const;

  // Returns whether the input of that name is a batch.
  bool is_batched(std::string_view input) const;
  bool operator==(const DataConfig&) const = default;
};

// Returns the built-in orders of samples: shuffle, sequential, random.
const std::vector<std::string>& sampler_names();

struct BatchConfig {
  int64_t global = 32;  // samples per optimizer step, over all ranks
  int64_t micro = 0;    // samples per microbatch on one data rank; 0: the planner chooses
  // Whether a step has fewer samples than `global` where that does not divide over microbatches and
  // data ranks (but at least one on each), instead of none.
  bool round = false;
  bool operator==(const BatchConfig&) const = default;
};

// Options of some parameters.
struct ParameterGroup {
  std::vector<std::string> match;  // patterns of parameter names (base/text/match.h)
  std::optional<double> lr;        // peak learning rate; absent: the optimizer's
  std::optional<double> weight_decay;
  std::string name;  // muon: "muon" or "adamw", which updates them; "": muon decides
  bool operator==(const ParameterGroup&) const = default;
};

struct OptimizerConfig {
  std::string name = "adamw";  // one of optim::optimizer_names()
  double lr = 3e-4;            // peak
  double weight_decay = 0.1;
  // Keys that are attributes of optimizers (optim/description.h), "betas", "eps", ...: every one of
  // them after complete().
  std::map<std::string, Value> options;
  double clip_norm = 1.0;              // limit of the global gradient norm; 0: no clipping
  std::vector<ParameterGroup> groups;  // a parameter is in the first that matches
  bool apart = false;                  // whether a parameter that several groups match is an error
  bool operator==(const OptimizerConfig&) const = default;
};

struct LrSchedule {
  std::string kind = "cosine";   // constant, linear, cosine, inverse_sqrt, wsd
  int64_t warmup = -1;           // steps; -1: min(20, steps / 10)
  double min_lr = -1;            // -1: optimizer.lr / 10
  int64_t decay = 0;             // wsd: steps of the last phase; 0: max(1, steps / 10)
  double init_lr = 0;            // learning rate at the start of the warm-up
  int64_t steps = 0;             // steps until min_lr is reached, warm-up included; 0: train.steps
  std::string shape = "linear";  // wsd: of the last phase; linear, cosine, exponential, minus_sqrt
  bool operator==(const LrSchedule&) const = default;
};

// The weight decay is annealed from `start` to optimizer.weight_decay; a group's own weight decay
// in the same proportion.
struct WeightDecaySchedule {
  std::optional<double> start;   // absent: the weight decay is constant
  int64_t steps = 0;             // length of the schedule; 0: train.steps
  std::string shape = "linear";  // linear, cosine
  bool operator==(const WeightDecaySchedule&) const = default;
};

struct TrainConfig {
  int64_t steps = 200;
  int64_t log_every = 10;
  int64_t validate_every = 100;    // 0: never
  int64_t validate_batches = 16;   // most global batches of one validation
  int64_t checkpoint_every = 100;  // 0: only at the end
  int64_t keep_checkpoints = 3;
  std::string checkpoint_target;         // s3://BUCKET/PREFIX; "": output
  bool checkpoint_when_stopped = false;  // write one before Ctrl-C or SIGTERM ends the job
  bool stop_if_not_finite = true;        // a loss that is not finite ends the job
  // A bad step has a loss or gradients that are not finite, or is a spike that `on_spike` skips.
  int64_t skip_bad_steps = 0;     // bad steps in a row that change nothing; one more ends the job
  std::string skip_steps;         // steps that change nothing: "12, 40-45"
  double spike_loss = 0;          // a loss above so many running medians is a spike; 0: none is
  double spike_norm = 0;          // the same for the norm of the gradients
  std::string on_spike = "warn";  // warn, skip, stop
  bool rerun = false;             // a bad step is run a second time from the same state
  int64_t check_replicas = 1000;  // steps between two comparisons of replicated tensors; 0: none
  bool forward_only = false;      // steps are forward passes: no gradients, no optimizer
  bool check_gradients = false;   // first compare a step's gradients with one device's
  // Elements may then differ by check_atol + check_rtol * |one device's|; one that is absent is 1e-4
  // where the other is given. Both absent: to the rounding of the dtype.
  std::optional<double> check_rtol, check_atol;
  // Validations in a row without a loss below the best one less `early_stop_min_delta` after which
  // training ends; 0: it does not end early.
  int64_t early_stop_patience = 0;
  double early_stop_min_delta = 0;
  bool keep_best = false;  // keep the checkpoint with the lowest validation loss
  std::string weights;     // safetensors file of first values; "": the model's own
  std::string adapter;     // folder of PEFT with the adapters' first values; "": the method's own
  // The model initialises parameters that `weights` lacks; false: these are an error.
  bool initialise = true;
  std::vector<std::string> samples;  // prompts that are continued after each checkpoint
  int64_t sample_tokens = 64;        // most tokens of each continuation
  bool progress = true;              // a terminal shows a line of progress
  bool tensorboard = false;          // the metrics are also written to an event file of TensorBoard
  std::string output;                // relative to the working directory; "": runs/NAME
  bool operator==(const TrainConfig&) const = default;
};

struct ClusterConfig {
  std::string device;          // cpu, cuda; "": cuda when present
  int64_t ranks = 0;           // 0: the command's rules (runtime/command_line.md)
  int64_t threads = 0;         // of one rank's CPU work; 0: train/task/threads.h
  bool deterministic = false;  // on a GPU: kernels that are bit-equal from run to run; a CPU's are
  bool tf32 = false;           // on a GPU: float32 products and convolutions round to TF32
  std::string graphs = "false";     // on a GPU: steps are replayed CUDA graphs: auto, true, false
  double timeout = 60;              // seconds after which a rank that does not answer ends the job
  std::string devices;              // which GPUs of a host its ranks take, "0,2"; "": all
  bool in_process = false;          // ranks are threads of one process
  std::string messages = "device";  // between stages: device (NCCL on a GPU), gloo
  std::string communicator = "auto";  // between processes: auto, shared (memory), gloo
  std::string file;                   // cluster description, for planning only; "": this machine
  std::string profile;                // profile database; "": the user's, in the cache folder
  bool operator==(const ClusterConfig&) const = default;
};

// How `perigee profile` measures.
struct ProfileConfig {
  bool parallel = true;  // ops on all ranks at once, as they run in training; else on rank 0 alone
  bool remeasure = false;  // key "again": measure also ops whose times the profile has
  bool operator==(const ProfileConfig&) const = default;
};

// A table with the options of another system ([megatron], [epl.pipeline]), which replaces a
// strategy. runtime/perigee/NAME.lua defines its keys.
struct Dialect {
  std::string name;  // megatron, epl, ...; "": there is none
  std::string text;  // the table as TOML, with its head
  std::string file;  // of the job
  // "file:line:column: " by key ("a.b", "a.2" in a list, "": the head).
  std::map<std::string, std::string> places;
  bool operator==(const Dialect& other) const { return name == other.name && text == other.text; }
};

// Sentences about keys that have other values than their defaults, but no effect in their job, and
// about files of weights that are not read:
// complete() makes them, make_plan() logs them. They name places in files, so that equal jobs may
// have different ones.
struct JobWarnings {
  std::vector<std::string> sentences;
  bool operator==(const JobWarnings&) const { return true; }
};

struct Job {
  std::string name;  // "": the file's name without its ending, or "job"
  int64_t seed = 1234;
  std::string strategy = "auto";  // "auto", a shipped strategy's name, or a script's path
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  OptimizerConfig optimizer;
  LrSchedule lr_schedule;
  WeightDecaySchedule weight_decay_schedule;
  TrainConfig train;
  ClusterConfig cluster;
  ProfileConfig profile;
  Dialect dialect;
  JobWarnings warnings;

  // Reads a job file, changes it by `overrides` ("a.b=VALUE", as --set) and completes it. Paths
  // become relative to the working directory. Throws Error with file, line and column.
  static Job load(const std::string& path, std::span<const std::string> overrides = {});

  // The same for a text; paths in it are relative to the folder of `file`, which need not exist.
  static Job parse(std::string_view text, const std::string& file,
                   std::span<const std::string> overrides = {});

  // Sets one key of a completed job ("a.b=VALUE"; VALUE is TOML, and a string where it is not), and
  // checks it by itself. Defaults that followed from the key's old value stay. Throws Error.
  void set(std::string_view assignment);

  // Sets the keys that are not given and follow from others (model values, files, output, ...), and
  // checks keys and their combinations. For jobs built in code, and after set. Throws Error.
  void complete();
  // Throws Error where the job has no model.kind, which only an application with a model of its own
  // may leave out. `file`: the job's, for the message.
  void require_model(const std::string& file) const;

  bool operator==(const Job&) const = default;
};

// Returns the GPUs that cluster.devices lists, in its order; an empty list: all. Throws Error
// unless it is a list of distinct numbers.
std::vector<int64_t> devices_of(const ClusterConfig& cluster);

// Returns the dialect's table as JSON text.
std::string to_json(const Dialect& dialect);

// Returns the job as TOML with every key. Paths but `train.output` are written relative to
// `folder`, in which the text will be a file; Job::load of it is the same job.
std::string to_toml(const Job& job, const std::string& folder = "");

// Returns, as "key: old became new", the keys that may not change when a run is resumed and did:
// those of model, data, batch and optimizer, seed and train.forward_only, without adjusted_keys.
std::vector<std::string> changed_keys(const Job& before, const Job& now);

// Returns, in the same form, the keys that may change when a run is resumed and change its losses:
// learning rates, weight decays, their schedules, clip_norm and train.steps.
std::vector<std::string> adjusted_keys(const Job& before, const Job& now);

// Returns path and value of each key that all ranks of a job must share, sorted by path: all but
// those that may differ from host to host (JobKey::per_host). Of paths only the file names count.
std::vector<std::pair<std::string, std::string>> shared_keys(const Job& job);

// Returns the reference page of all keys (runtime/job.md).
std::string reference();

}  // namespace perigee::job
