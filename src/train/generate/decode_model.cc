#include "train/generate/decode_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "capture/models/hf/architecture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights/merge.h"
#include "train/generate/decode_graph.h"
#include "train/generate/decode_plan.h"
#include "train/output/run_folder.h"
#include "train/plan/task_plan.h"
#include "train/ranks/share.h"
#include "train/task/open_model.h"

namespace perigee::train {
namespace {

constexpr int64_t kFilled = 64;  // most tokens that one run of the filling program reads

// Returns the task with texts of `context` tokens.
Task with_context(Task task, int64_t context) {
  task.job = completed(task);
  if (context > 0) task.job.data.sequence = context;
  return task;
}

// Returns the task on one rank, with one text as its batch.
Task on_one_rank(Task task) {
  task.strategy = "auto";
  task.plan_file.clear();
  task.world = 1;
  task.world_given = true;
  task.job.batch.global = 1;
  task.job.batch.micro = 1;
  return task;
}

// Returns the batch with which a model of text is captured.
Batch example_of(int64_t texts, int64_t tokens) {
  Batch batch;
  for (const char* name : {"tokens", "positions"}) {
    batch[name] = at::zeros({texts, tokens}, at::kLong);
  }
  return batch;
}

// Returns the checkpoint at `given`, a run or a checkpoint; "": the newest of the job's run. Returns
// "" where that run has no checkpoint and the job names files of weights.
std::string checkpoint_of(const job::Job& job, const std::string& given) {
  const auto& run = checkpoint_run(job);
  const bool files = given.empty() && !job.train.weights.empty() &&
                     checkpoint::newest_checkpoint(run).empty();
  return files ? "" : checkpoint::find_checkpoint(given.empty() ? run : given);
}

// Returns whether a kind of model reads the input "positions" where its batch has it.
bool takes_positions(std::string_view kind) {
  return kind == "gpt" || kind == "llama" || kind == "moe" || kind == "hf";
}

// Returns the windows of attention layers that see only the last tokens, by scope.
std::map<std::string, int64_t> windows_of(const job::Job& job) {
  std::map<std::string, int64_t> windows;
  if (job.model.kind != "hf") return windows;
  const auto all = hf::read_architecture(job.model.text("folder")).windows;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] > 0) windows[fmt::format("blocks.{}.attn", i)] = all[i];
  }
  return windows;
}

void check_context(const job::Job& job) {
  if (!job.model.values.contains("positions")) return;
  const auto positions = job.model.integer("positions");
  if (job.data.sequence <= positions) return;
  fail("generate",
       "the context is at most the number of the model's positions (model.positions = {}), but "
       "got {}",
       positions, job.data.sequence);
}

// Returns the plan of the task's training graph.
plan::Plan training_plan(const Task& task, int64_t ranks) {
  if (ranks > 1 || task.strategy_given || !task.plan_file.empty()) return plan_task(task).plan;
  plan::Plan plan;
  plan.mesh.axes = {{"data", 1}};
  return plan;
}

}  // namespace

void require_text_model(const graph::Graph& evaluation, std::string_view kind) {
  if (evaluation.find_input("tokens") &&
      evaluation.find_output(graph::Output::Kind::result, "logits")) {
    return;
  }
  fail("generate", "the model must take \"tokens\" and give \"logits\", but {} does not", kind);
}

DecodeModel open_decode_model(const Task& given, const GeneratorOptions& options, int64_t ranks) {
  const auto task = with_context(given, options.context);
  const auto& job = task.job;
  check_context(job);
  DecodeModel model;
  auto source = open_model(on_one_rank(task));
  if (model.checkpoint = checkpoint_of(job, options.checkpoint); !model.checkpoint.empty()) {
    source = source->with(checkpoint::adapters_of_run(checkpoint::run_of(model.checkpoint),
                                                      checkpoint::Checkpoint(model.checkpoint)));
  }
  const auto& captured = source->at(1, /*evaluation=*/true);
  const auto& whole = captured.graph;
  model.tied = captured.tied;
  require_text_model(whole, job.model.kind);
  model.context = whole.type(whole.find_input("tokens")->value).shape.at(1);
  const CacheShape shape = {options.slots, model.context, windows_of(job)};
  // Within a window no mask is part of the graph.
  int64_t filled = kFilled;
  for (const auto& [scope, window] : shape.windows) filled = std::min(filled, window);
  graph::Graph extend, fill;
  if (takes_positions(job.model.kind)) {
    extend = source->evaluation_of(example_of(options.slots, 1)).graph;
    fill = source->evaluation_of(example_of(1, filled)).graph;
    // Experts of few tokens have room for all of them.
    for (const auto* graph : {&extend, &fill}) {
      if (model.uncached.empty()) model.uncached = obstacle_to_caches(*graph);
    }
  } else {
    model.uncached = "does not take positions";
  }
  if (!model.uncached.empty()) {
    model.extending = whole;
  } else {
    model.extending = with_caches(std::move(extend), shape);
    model.filling = with_caches(std::move(fill), shape);
  }
  model.plan = decode_plan(model.extending,
                           options.trained ? *options.trained : training_plan(task, ranks));
  if (model.plan.mesh.size() != ranks) {
    fail("generate", "the plan is for {} ranks, but there are {}: start as many (--nproc)",
         model.plan.mesh.size(), ranks);
  }
  return model;
}

DecodeModel share(DecodeModel model, exec::Group& group) {
  if (group.size() == 1) return model;
  std::string text;
  if (group.index() == 0) {
    const nlohmann::json value = {{"extending", graph::print(model.extending)},
                                  {"filling", graph::print(model.filling)},
                                  {"plan", plan::print(model.plan)},
                                  {"tied", model.tied},
                                  {"uncached", model.uncached},
                                  {"checkpoint", model.checkpoint},
                                  {"context", model.context}};
    const auto packed = nlohmann::json::to_msgpack(value);
    text.assign(packed.begin(), packed.end());
  }
  text = share_text(std::move(text), group);
  if (group.index() == 0) return model;
  const auto value = nlohmann::json::from_msgpack(text);
  const auto text_of = [&](const char* name) { return value[name].get<std::string>(); };
  return {.extending = graph::parse(text_of("extending")),
          .filling = graph::parse(text_of("filling")),
          .plan = plan::parse(text_of("plan"), "rank 0's plan"),
          .tied = value["tied"].get<std::map<std::string, std::string>>(),
          .uncached = text_of("uncached"),
          .checkpoint = text_of("checkpoint"),
          .context = value["context"].get<int64_t>()};
}

}  // namespace perigee::train
