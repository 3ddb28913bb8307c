// The rows of the table of keys, except those of [model]. A row defines its key completely.
#include "job/table.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "optim/optimizers.h"

namespace perigee::job {
namespace {

std::vector<JobKey> top_keys() {
  return {{.table = "",
           .name = "name",
           .field = FIELD(j.name),
           .per_host = true,
           .otherwise = "the file's name without its ending",
           .about = "Name of the run."},
          {.table = "",
           .name = "seed",
           .field = FIELD(j.seed),
           .least = 0,
           .about = "Seed of initial weights, dropout and the order of samples."},
          {.table = "",
           .name = "strategy",
           .field = FIELD(j.strategy),
           .is_path = true,
           .about =
               "How the work is spread over devices: \"auto\", a strategy script, or the bare name "
               "of a shipped one."}};
}

// The optimizer that updates only some parameters and leaves the others to a second optimizer.
const optim::Description& split_optimizer() {
  return *std::ranges::find_if(optim::optimizers(),
                               [](const auto& optimizer) { return !optimizer.others.empty(); });
}

std::vector<std::string_view> decoupled_optimizers() {
  std::vector<std::string_view> names;
  for (const auto& optimizer : optim::optimizers()) {
    if (optimizer.decoupled_decay) names.push_back(optimizer.name);
  }
  return names;
}

std::vector<JobKey> other_keys() {
  const auto& split = split_optimizer();
  return {
      {.table = "data",
       .name = "text",
       .field = FIELD(j.data.text),
       .is_path = true,
       .about = "Text files (patterns), as one long text."},
      {.table = "data",
       .name = "tokens",
       .field = FIELD(j.data.tokens),
       .is_path = true,
       .about = "Files of raw little-endian token ids (patterns)."},
      {.table = "data",
       .name = "tensors",
       .field = FIELD(j.data.tensors),
       .is_path = true,
       .about = "safetensors files (patterns) whose tensors, one row a sample, are bound to the "
                "model's inputs by name."},
      {.table = "data",
       .name = "synthetic",
       .field = FIELD(j.data.synthetic),
       .otherwise = "true without text, tokens and tensors",
       .about = "Random samples in place of files."},
      {.table = "data",
       .name = "token_type",
       .field = FIELD(j.data.token_type),
       .allowed = {"uint16", "uint32"},
       .about = "Type of the ids in `tokens`."},
      {.table = "data",
       .name = "tokenizer",
       .field = FIELD(j.data.tokenizer),
       .is_path = true,
       .about = "\"bytes\", or a SentencePiece model file."},
      {.table = "data",
       .name = "sequence",
       .field = FIELD(j.data.sequence),
       .least = 1,
       .about = "Tokens of a sample."},
      {.table = "data",
       .name = "sampler",
       .field = FIELD(j.data.sampler),
       .is_path = true,
       .about = "Order of the training samples of files: \"shuffle\" (each once an epoch), "
                "\"sequential\", \"random\" (any of them, each time), or a library (.so) that "
                "exports `int64_t perigee_sampler(int64_t sample, int64_t count, uint64_t seed)`, "
                "which returns the place in [0, count) of the run's sample."},
      {.table = "data",
       .name = "validation",
       .field = FIELD(j.data.validation),
       .least = 0,
       .less_than = 1,
       .about = "Share of the data that is held back."},
      {.table = "data",
       .name = "batched",
       .field = FIELD(j.data.batched),
       .otherwise = "all",
       .about = "The model's inputs whose dim 0 is the samples, by name, or by place in the order "
                "of their names (\"0\"). The others are the same for all samples: every rank and "
                "microbatch gets them whole."},
      {.table = "data",
       .name = "slice_files",
       .field = FIELD(j.data.slice_files),
       .about =
           "Whether each data rank has files of its own, file i rank i modulo their number, and "
           "draws its samples from them alone. What is trained on then depends on how many "
           "ranks there are. With fewer files than data ranks samples are shared out as "
           "usual, with a warning."},
      {.table = "data",
       .name = "left_over",
       .field = FIELD(j.data.left_over),
       .allowed = {"share", "deal", "drop"},
       .about = "slice_files: what becomes of files beyond a multiple of the data ranks. share: no "
                "file is sliced, all samples are shared out; deal: some ranks have one more; drop: "
                "they are left out."},

      {.table = "batch",
       .name = "global",
       .field = FIELD(j.batch.global),
       .least = 1,
       .about = "Samples per optimizer step, over all ranks."},
      {.table = "batch",
       .name = "micro",
       .field = FIELD(j.batch.micro),
       .least = 1,
       .otherwise = "chosen by the planner",
       .about = "Samples per microbatch on one data rank; it divides `global`."},
      {.table = "batch",
       .name = "round",
       .field = FIELD(j.batch.round),
       .about =
           "Where `global` does not divide over microbatches and data ranks: whether a step has "
           "as many samples as do (at least one on each rank), with a warning. Otherwise that "
           "is an error."},

      {.table = "optimizer",
       .name = "name",
       .field = FIELD(j.optimizer.name),
       .allowed = optim::optimizer_names(),
       .about = fmt::format("The optimizer, by torch.optim's formulas; lion and muon by their "
                            "papers'. {} updates the matrices of hidden layers, and {} embeddings, "
                            "heads and all other parameters.",
                            split.name, split.others)},
      {.table = "optimizer",
       .name = "lr",
       .field = FIELD(j.optimizer.lr),
       .least = 0,
       .about = "Peak learning rate."},
      {.table = "optimizer",
       .name = "weight_decay",
       .field = FIELD(j.optimizer.weight_decay),
       .least = 0,
       .about = fmt::format("Weight decay; decoupled from the gradient by {}.",
                            fmt::join(decoupled_optimizers(), ", "))},
      {.table = "optimizer",
       .name = "clip_norm",
       .field = FIELD(j.optimizer.clip_norm),
       .least = 0,
       .about = "Largest norm of all gradients together; 0: no clipping."},
      {.table = "optimizer",
       .name = "apart",
       .field = FIELD(j.optimizer.apart),
       .about =
           "Whether a parameter that several groups match is an error; otherwise the first has "
           "it."},

      {.table = "optimizer.group",
       .name = "match",
       .field = FIELD(g.match),
       .otherwise = "none, it must be given",
       .about = "Patterns of parameter names; a parameter is in the first group that matches."},
      {.table = "optimizer.group",
       .name = "lr",
       .field = FIELD(g.lr),
       .least = 0,
       .otherwise = "the optimizer's",
       .about = "Peak learning rate of these parameters."},
      {.table = "optimizer.group",
       .name = "weight_decay",
       .field = FIELD(g.weight_decay),
       .least = 0,
       .otherwise = "the optimizer's",
       .about = "Weight decay of these parameters."},
      {.table = "optimizer.group",
       .name = "name",
       .field = FIELD(g.name),
       .allowed = {"", std::string(split.name), std::string(split.others)},
       .otherwise = fmt::format("{} for embeddings, heads and parameters that are no matrices, "
                                "else {}",
                                split.others, split.name),
       .about = fmt::format("{}: which of the two updates these parameters.", split.name)},

      {.table = "lr_schedule",
       .name = "kind",
       .field = FIELD(j.lr_schedule.kind),
       .allowed = {"constant", "linear", "cosine", "inverse_sqrt", "wsd"},
       .about = "How the learning rate falls after the warm-up."},
      {.table = "lr_schedule",
       .name = "warmup",
       .field = FIELD(j.lr_schedule.warmup),
       .least = 0,
       .otherwise = "20, or a tenth of `train.steps` where that is less",
       .about = "Steps in which the learning rate rises from 0 to its peak."},
      {.table = "lr_schedule",
       .name = "min_lr",
       .field = FIELD(j.lr_schedule.min_lr),
       .least = 0,
       .otherwise = "a tenth of `optimizer.lr`",
       .about = "Where the learning rate ends."},
      {.table = "lr_schedule",
       .name = "decay",
       .field = FIELD(j.lr_schedule.decay),
       .least = 1,
       .otherwise = "a tenth of `train.steps`",
       .about = "wsd: steps of the last phase, in which the learning rate falls."},
      {.table = "lr_schedule",
       .name = "init_lr",
       .field = FIELD(j.lr_schedule.init_lr),
       .least = 0,
       .about = "Where the learning rate rises from in the warm-up."},
      {.table = "lr_schedule",
       .name = "steps",
       .field = FIELD(j.lr_schedule.steps),
       .least = 1,
       .otherwise = "`train.steps`",
       .about = "The step at which the learning rate has fallen to `min_lr`, where it stays."},
      {.table = "lr_schedule",
       .name = "shape",
       .field = FIELD(j.lr_schedule.shape),
       .allowed = {"linear", "cosine", "exponential", "minus_sqrt"},
       .about = "wsd: how the learning rate falls in the last phase."},

      {.table = "weight_decay_schedule",
       .name = "start",
       .field = FIELD(j.weight_decay_schedule.start),
       .least = 0,
       .otherwise = "`optimizer.weight_decay`: it stays",
       .about = "Weight decay of the first step, annealed to `optimizer.weight_decay`; "
                "that of a group in the same proportion."},
      {.table = "weight_decay_schedule",
       .name = "steps",
       .field = FIELD(j.weight_decay_schedule.steps),
       .least = 1,
       .otherwise = "`train.steps`",
       .about = "The step at which it is there, and from which it stays."},
      {.table = "weight_decay_schedule",
       .name = "shape",
       .field = FIELD(j.weight_decay_schedule.shape),
       .allowed = {"linear", "cosine"},
       .about = "Along a line, or half a cosine."},

      {.table = "train",
       .name = "steps",
       .field = FIELD(j.train.steps),
       .least = 1,
       .about = "Optimizer steps."},
      {.table = "train",
       .name = "log_every",
       .field = FIELD(j.train.log_every),
       .least = 1,
       .about = "Steps between two lines of the log."},
      {.table = "train",
       .name = "validate_every",
       .field = FIELD(j.train.validate_every),
       .least = 0,
       .about = "Steps between two validations; 0: none."},
      {.table = "train",
       .name = "validate_batches",
       .field = FIELD(j.train.validate_batches),
       .least = 1,
       .about = "Most global batches of one validation."},
      {.table = "train",
       .name = "checkpoint_every",
       .field = FIELD(j.train.checkpoint_every),
       .least = 0,
       .about = "Steps between two checkpoints; 0: only one at the end."},
      {.table = "train",
       .name = "keep_checkpoints",
       .field = FIELD(j.train.keep_checkpoints),
       .least = 1,
       .about = "Newest checkpoints that are kept."},
      {.table = "train",
       .name = "checkpoint_when_stopped",
       .field = FIELD(j.train.checkpoint_when_stopped),
       .about = "Whether Ctrl-C or SIGTERM writes a checkpoint before the job ends."},
      {.table = "train",
       .name = "stop_if_not_finite",
       .field = FIELD(j.train.stop_if_not_finite),
       .about = "Whether a loss that is not finite ends the job."},
      {.table = "train",
       .name = "forward_only",
       .field = FIELD(j.train.forward_only),
       .about = "Whether steps are forward passes alone: no gradients, no optimizer, no "
                "checkpoints."},
      {.table = "train",
       .name = "check_gradients",
       .field = FIELD(j.train.check_gradients),
       .about =
           "Whether the first step's gradients are compared before training begins, on the CPU: "
           "with one device's, to rounding, and where scopes are recomputed with those of the same "
           "plan "
           "without that, to the bit; a difference ends the job."},
      {.table = "train",
       .name = "weights",
       .field = FIELD(j.train.weights),
       .is_path = true,
       .otherwise = "the model's own first values",
       .about =
           "A safetensors file with first values of parameters and buffers by name, as `perigee "
           "export` writes it."},
      {.table = "train",
       .name = "initialise",
       .field = FIELD(j.train.initialise),
       .about = "Whether what `weights` does not have begins as the model says. Otherwise every "
                "parameter and buffer comes from there or from a checkpoint (`--resume`); one that "
                "is missing is an error."},
      {.table = "train",
       .name = "progress",
       .field = FIELD(j.train.progress),
       .per_host = true,
       .about = "Whether a terminal shows a line of progress beside the log's lines."},
      {.table = "train",
       .name = "output",
       .field = FIELD(j.train.output),
       .per_host = true,
       .otherwise = "`runs/NAME`",
       .about = "Folder of metrics, checkpoints, plan and log, relative to the working directory."},

      {.table = "cluster",
       .name = "device",
       .field = FIELD(j.cluster.device),
       .allowed = {"cpu", "cuda"},
       .otherwise = "cuda when present",
       .about = "What the ranks compute on."},
      {.table = "cluster",
       .name = "ranks",
       .field = FIELD(j.cluster.ranks),
       .least = 1,
       .per_host = true,
       .otherwise = "all local devices, 1 for cpu",
       .about = "Number of ranks, where neither a launcher nor `--nproc` says it."},
      {.table = "cluster",
       .name = "threads",
       .field = FIELD(j.cluster.threads),
       .least = 1,
       .per_host = true,
       .about = "Threads of one rank's CPU work."},
      {.table = "cluster",
       .name = "deterministic",
       .field = FIELD(j.cluster.deterministic),
       .about = "On a GPU: only kernels whose results are bit-equal from run to run, slower ones "
                "where needed; an op without one is an error. A CPU's always are."},
      {.table = "cluster",
       .name = "timeout",
       .field = FIELD(j.cluster.timeout),
       .more_than = 0,
       .per_host = true,
       .about = "Seconds after which a rank that does not answer ends the job."},
      {.table = "cluster",
       .name = "devices",
       .field = FIELD(j.cluster.devices),
       .per_host = true,
       .otherwise = "all that the process may see",
       .about = "Which GPUs of a host its ranks take, in this order (\"0,2\"). A host has as many "
                "ranks as are listed where nothing else says how many, also on the CPU."},
      {.table = "cluster",
       .name = "in_process",
       .field = FIELD(j.cluster.in_process),
       .per_host = true,
       .about =
           "Whether the ranks are threads of one process, which exchange by way of its memory: "
           "for trying a strategy out on one device."},
      {.table = "cluster",
       .name = "file",
       .field = FIELD(j.cluster.file),
       .is_path = true,
       .per_host = true,
       .otherwise = "this machine",
       .about = "Cluster description, for planning only."},
      {.table = "cluster",
       .name = "profile",
       .field = FIELD(j.cluster.profile),
       .is_path = true,
       .per_host = true,
       .otherwise = "that of the user's cache folder",
       .about = "Profile database: what ops take, measured by `perigee profile`."},

      {.table = "profile",
       .name = "parallel",
       .field = FIELD(j.profile.parallel),
       .per_host = true,
       .about = "Whether `perigee profile` measures ops on all ranks at once, as they run in "
                "training; otherwise on rank 0 while the others wait."},
      {.table = "profile",
       .name = "again",
       .field = FIELD(j.profile.remeasure),
       .per_host = true,
       .about = "Whether `perigee profile` measures what is known, too."}};
}

}  // namespace

const std::vector<JobKey>& keys() {
  static const std::vector<JobKey> table = [] {
    auto all = top_keys();
    for (auto&& more : {model_keys(), other_keys()})
      all.insert(all.end(), more.begin(), more.end());
    const auto options = optimizer_option_keys();
    const auto clip = std::ranges::find_if(
        all, [](const JobKey& key) { return key.table == "optimizer" && key.name == "clip_norm"; });
    all.insert(clip, options.begin(), options.end());
    return all;
  }();
  return table;
}

}  // namespace perigee::job
