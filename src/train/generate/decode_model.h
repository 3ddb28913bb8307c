// The graphs with which a language model generates text, with their plans.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "exec/comm/communicator.h"
#include "graph/graph.h"
#include "plan/plan.h"
#include "train/task/task.h"

namespace perigee::train {

struct GeneratorOptions {
  std::string checkpoint;  // "": the newest of train.output
  int64_t slots = 1;       // texts at once
  int64_t context = 0;     // most tokens of a text; 0: data.sequence of the job
  // Plan of the training graph; nullptr: made by the task's strategy.
  const plan::Plan* trained = nullptr;
};

// Throws Error for a graph without the input "tokens" and the result "logits". `kind`: the model's.
void require_text_model(const graph::Graph& evaluation, std::string_view kind);

struct DecodeModel {
  graph::Graph extending;  // one token of each slot; without caches: one whole text
  graph::Graph filling;    // tokens of one slot; without caches: empty
  plan::Plan plan;         // of `extending`
  std::map<std::string, std::string> tied;  // further names of parameters
  std::string uncached;                     // "", or why the model cannot use caches
  std::string checkpoint;                   // "": the files of train.weights
  int64_t context = 0;
};

// Opens the task's model with the adapters of the checkpoint. On several ranks, or where the task
// names a strategy or a plan, its weights are placed as that plan of the training graph places them
// (decode_plan.h). Throws Error for a model without the input "tokens" and the result "logits".
DecodeModel open_decode_model(const Task& task, const GeneratorOptions& options, int64_t ranks);

// Returns rank 0's model on every rank of the group. All ranks call it.
DecodeModel share(DecodeModel model, exec::Group& group);

}  // namespace perigee::train
