// The rows of the table of keys, except those of [model], [data],
// [cluster] and [profile]. A row defines its key completely.
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
      {.table = "batch",
       .name = "global",
       .field = FIELD(j.batch.global),
       .least = 1,
       .about = "Samples per optimizer step, over all ranks."},
      {.table = "batch",
       .name = "micro",
       .field = FIELD(j.batch.micro),
       .least = 1,
       .adjustable = true,
       .otherwise = "chosen by the planner",
       .about = "Samples per microbatch on one data rank; it divides `global`."},
      {.table = "batch",
       .name = "round",
       .field = FIELD(j.batch.round),
       .about = "Whether a step uses fewer samples than `global` where that is not a multiple of "
                "microbatches times data ranks: the largest such multiple (at least one sample on "
                "each rank), with a warning. Otherwise that is an error."},

      {.table = "optimizer",
       .name = "name",
       .field = FIELD(j.optimizer.name),
       .allowed = optim::optimizer_names(),
       .about = fmt::format("The optimizer: torch.optim's formulas, and for lion and muon those of "
                            "their papers. {} updates the matrices of hidden layers only; {} then "
                            "updates embeddings, heads and all other parameters.",
                            split.name, split.others)},
      {.table = "optimizer",
       .name = "lr",
       .field = FIELD(j.optimizer.lr),
       .least = 0,
       .adjustable = true,
       .about = "Peak learning rate."},
      {.table = "optimizer",
       .name = "weight_decay",
       .field = FIELD(j.optimizer.weight_decay),
       .least = 0,
       .adjustable = true,
       .about = fmt::format("Weight decay; decoupled from the gradient by {}.",
                            fmt::join(decoupled_optimizers(), ", "))},
      {.table = "optimizer",
       .name = "clip_norm",
       .field = FIELD(j.optimizer.clip_norm),
       .least = 0,
       .adjustable = true,
       .about = "Limit of the global gradient norm; larger gradients are scaled down to it. 0: no "
                "clipping."},
      {.table = "optimizer",
       .name = "apart",
       .field = FIELD(j.optimizer.apart),
       .about = "Whether a parameter that several groups match is an error; otherwise the first "
                "group applies."},

      {.table = "optimizer.group",
       .name = "match",
       .field = FIELD(g.match),
       .otherwise = "none: required",
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
       .otherwise = fmt::format("{} for embeddings, heads and parameters that are not matrices, "
                                "else {}",
                                split.others, split.name),
       .about = fmt::format("{}: which of the two updates these parameters.", split.name)},

      {.table = "lr_schedule",
       .name = "kind",
       .field = FIELD(j.lr_schedule.kind),
       .allowed = {"constant", "linear", "cosine", "inverse_sqrt", "wsd"},
       .about = "Shape of the learning rate after the warm-up."},
      {.table = "lr_schedule",
       .name = "warmup",
       .field = FIELD(j.lr_schedule.warmup),
       .least = 0,
       .otherwise = "20, or a tenth of `train.steps` where that is less",
       .about = "Steps in which the learning rate rises from `init_lr` to its peak."},
      {.table = "lr_schedule",
       .name = "min_lr",
       .field = FIELD(j.lr_schedule.min_lr),
       .least = 0,
       .otherwise = "a tenth of `optimizer.lr`",
       .about = "Final learning rate.",
       .needs = NEEDS("lr_schedule.kind other than \"constant\"",
                      j.lr_schedule.kind != "constant")},
      {.table = "lr_schedule",
       .name = "decay",
       .field = FIELD(j.lr_schedule.decay),
       .least = 1,
       .otherwise = "a tenth of `train.steps`",
       .about = "wsd: number of steps of the last phase, in which the learning rate falls.",
       .needs = NEEDS("lr_schedule.kind = \"wsd\"", j.lr_schedule.kind == "wsd")},
      {.table = "lr_schedule",
       .name = "init_lr",
       .field = FIELD(j.lr_schedule.init_lr),
       .least = 0,
       .about = "Learning rate at the start of the warm-up.",
       .needs = NEEDS("lr_schedule.warmup above 0", j.lr_schedule.warmup > 0)},
      {.table = "lr_schedule",
       .name = "steps",
       .field = FIELD(j.lr_schedule.steps),
       .least = 1,
       .otherwise = "`train.steps`",
       .about = "The step at which the learning rate reaches `min_lr` and becomes constant.",
       .needs = NEEDS("lr_schedule.kind other than \"constant\"",
                      j.lr_schedule.kind != "constant")},
      {.table = "lr_schedule",
       .name = "shape",
       .field = FIELD(j.lr_schedule.shape),
       .allowed = {"linear", "cosine", "exponential", "minus_sqrt"},
       .about = "wsd: shape of the learning rate in the last phase.",
       .needs = NEEDS("lr_schedule.kind = \"wsd\"", j.lr_schedule.kind == "wsd")},

      {.table = "weight_decay_schedule",
       .name = "start",
       .field = FIELD(j.weight_decay_schedule.start),
       .least = 0,
       .otherwise = "`optimizer.weight_decay` (no schedule)",
       .about = "Weight decay of the first step, annealed to `optimizer.weight_decay`. The weight "
                "decay of a group is scaled in the same proportion."},
      {.table = "weight_decay_schedule",
       .name = "steps",
       .field = FIELD(j.weight_decay_schedule.steps),
       .least = 1,
       .otherwise = "`train.steps`",
       .about = "The step at which the weight decay reaches `optimizer.weight_decay` and becomes "
                "constant.",
       .needs = NEEDS("weight_decay_schedule.start", j.weight_decay_schedule.start.has_value())},
      {.table = "weight_decay_schedule",
       .name = "shape",
       .field = FIELD(j.weight_decay_schedule.shape),
       .allowed = {"linear", "cosine"},
       .about = "Shape of the weight decay between the two values; cosine is half a period.",
       .needs = NEEDS("weight_decay_schedule.start", j.weight_decay_schedule.start.has_value())},

      {.table = "train",
       .name = "steps",
       .field = FIELD(j.train.steps),
       .least = 1,
       .adjustable = true,
       .about = "Number of optimizer steps."},
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
       .about = "Largest number of global batches in one validation."},
      {.table = "train",
       .name = "checkpoint_every",
       .field = FIELD(j.train.checkpoint_every),
       .least = 0,
       .about = "Steps between two checkpoints; 0: only one at the end."},
      {.table = "train",
       .name = "keep_checkpoints",
       .field = FIELD(j.train.keep_checkpoints),
       .least = 1,
       .about = "Number of checkpoints that are kept, the newest ones."},
      {.table = "train",
       .name = "checkpoint_target",
       .field = FIELD(j.train.checkpoint_target),
       .otherwise = "`train.output`",
       .about = "`s3://BUCKET/PREFIX`: checkpoints are written to this S3 service instead "
                "(runtime/runs.md)."},
      {.table = "train",
       .name = "checkpoint_when_stopped",
       .field = FIELD(j.train.checkpoint_when_stopped),
       .about = "Whether Ctrl-C or SIGTERM writes a checkpoint before the job ends."},
      {.table = "train",
       .name = "stop_if_not_finite",
       .field = FIELD(j.train.stop_if_not_finite),
       .about = "Whether a loss or gradients that are not finite end the job. Otherwise, and with "
                "`skip_bad_steps` above 0, any number of such steps is skipped."},
      {.table = "train",
       .name = "skip_bad_steps",
       .field = FIELD(j.train.skip_bad_steps),
       .least = 0,
       .about = "Bad steps in a row that are skipped: a step whose loss or gradients are not "
                "finite, or a spike by `on_spike`, changes nothing. One more ends the job."},
      {.table = "train",
       .name = "skip_steps",
       .field = FIELD(j.train.skip_steps),
       .otherwise = "none",
       .about = "Steps that change nothing, whatever their loss: `\"12, 40-45\"`."},
      {.table = "train",
       .name = "spike_loss",
       .field = FIELD(j.train.spike_loss),
       .least = 0,
       .about = "A step whose loss is above so many times the median of the last 32 good steps is "
                "a spike; 0: none is."},
      {.table = "train",
       .name = "spike_norm",
       .field = FIELD(j.train.spike_norm),
       .least = 0,
       .about = "The same for the norm of the gradients."},
      {.table = "train",
       .name = "on_spike",
       .field = FIELD(j.train.on_spike),
       .allowed = {"warn", "skip", "stop"},
       .about = "A spike is named in the log, and is skipped as a bad step, or ends the job."},
      {.table = "train",
       .name = "rerun",
       .field = FIELD(j.train.rerun),
       .about = "Whether a bad step or a spike is run a second time from the same state: exit "
                "status 16 where the second run is good (a transient fault), 17 where a step that "
                "is not skipped is bad both times."},
      {.table = "train",
       .name = "check_replicas",
       .field = FIELD(j.train.check_replicas),
       .least = 0,
       .about = "Steps between two comparisons of the weights and states that several ranks hold; "
                "a difference ends the job. 0: none."},
      {.table = "train",
       .name = "forward_only",
       .field = FIELD(j.train.forward_only),
       .about =
           "Whether a step is a forward pass only: no gradients, no optimizer, no checkpoints."},
      {.table = "train",
       .name = "check_gradients",
       .field = FIELD(j.train.check_gradients),
       .about = "Whether the first step's gradients are compared with those of one device before "
                "training begins (on the CPU, to rounding); with activation checkpointing also "
                "with those of the same plan without it, bit for bit. A difference ends the job."},
      {.table = "train",
       .name = "check_rtol",
       .field = FIELD(j.train.check_rtol),
       .least = 0,
       .otherwise = "1e-4 where `check_atol` is given, else the rounding of the dtype decides",
       .about = "With `check_gradients`: each element of a gradient, and the loss, may differ from "
                "one device's by `check_atol` + `check_rtol` times its absolute value, and so may "
                "each element of a parameter after the first step."},
      {.table = "train",
       .name = "check_atol",
       .field = FIELD(j.train.check_atol),
       .least = 0,
       .otherwise = "1e-4 where `check_rtol` is given, else the rounding of the dtype decides",
       .about = "The absolute part of that tolerance."},
      {.table = "train",
       .name = "early_stop_patience",
       .field = FIELD(j.train.early_stop_patience),
       .least = 0,
       .about = "Training ends after so many validations in a row whose loss is not below the best "
                "one less `early_stop_min_delta`; 0: it does not end early."},
      {.table = "train",
       .name = "early_stop_min_delta",
       .field = FIELD(j.train.early_stop_min_delta),
       .least = 0,
       .about = "Least decrease of the validation loss that counts."},
      {.table = "train",
       .name = "keep_best",
       .field = FIELD(j.train.keep_best),
       .about = "Whether the step with the lowest validation loss writes a checkpoint, which is "
                "kept beside the newest ones."},
      {.table = "train",
       .name = "weights",
       .field = FIELD(j.train.weights),
       .is_path = true,
       .otherwise = "the model's own initial values",
       .about = "Initial values of parameters and buffers: a safetensors file, an index of several "
                "(`.json`), or a folder of them. Names are the model's own, as `perigee export` "
                "writes them, or for the kinds gpt, llama and hf those of Hugging Face."},
      {.table = "train",
       .name = "adapter",
       .field = FIELD(j.train.adapter),
       .is_path = true,
       .otherwise = "none",
       .about = "Initial values of the adapters that the method `lora` adds: a folder with PEFT's "
                "adapter_config.json and adapter_model.safetensors, as `perigee export --adapter` "
                "writes it."},
      {.table = "train",
       .name = "initialise",
       .field = FIELD(j.train.initialise),
       .about = "Whether the model initialises parameters and buffers that `weights` lacks, and "
                "tensors there that are not of the model are ignored. Otherwise both are errors. "
                "In a job with `weights`, or of the kind hf, the default is false."},
      {.table = "train",
       .name = "progress",
       .field = FIELD(j.train.progress),
       .per_host = true,
       .about = "Whether a progress line is shown on a terminal, in addition to the log."},
      {.table = "train",
       .name = "samples",
       .field = FIELD(j.train.samples),
       .adjustable = true,
       .about =
           "Prompts of a language model. After each checkpoint the model continues them: in the "
           "log and in samples.jsonl (runtime/runs.md)."},
      {.table = "train",
       .name = "sample_tokens",
       .field = FIELD(j.train.sample_tokens),
       .least = 1,
       .adjustable = true,
       .about = "Largest number of tokens of each continuation.",
       .needs = NEEDS("train.samples", !j.train.samples.empty())},
      {.table = "train",
       .name = "tensorboard",
       .field = FIELD(j.train.tensorboard),
       .per_host = true,
       .about = "Whether the metrics are also written to `train.output` as an event file of "
                "TensorBoard (runtime/runs.md)."},
      {.table = "train",
       .name = "output",
       .field = FIELD(j.train.output),
       .per_host = true,
       .otherwise = "`runs/NAME`",
       .about =
           "Folder of metrics, checkpoints, plan and log, relative to the working directory."}};
}

}  // namespace

const std::vector<JobKey>& keys() {
  static const std::vector<JobKey> table = [] {
    auto all = top_keys();
    for (auto&& more : {model_keys(), data_keys(), other_keys(), cluster_keys()})
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
