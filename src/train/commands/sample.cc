#include "train/commands/sample.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <random>

#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/stored.h"
#include "checkpoint/weights/merge.h"
#include "compile/compile.h"
#include "exec/executor.h"
#include "exec/memory/allocator.h"
#include "profile/database.h"
#include "profile/traces.h"
#include "text/tokenizer.h"
#include "train/measure/profile_path.h"
#include "train/output/run_folder.h"
#include "train/ranks/device.h"
#include "train/task/open_model.h"

namespace perigee::train {
namespace {

using Kind = compile::Binding::Kind;

// Draws a token from logits [v].
int64_t draw(const at::Tensor& logits, const SampleOptions& options, std::mt19937_64& random) {
  if (options.temperature == 0) return logits.argmax().item<int64_t>();
  auto scores = logits.to(at::kDouble) / options.temperature;
  if (options.top_k > 0 && options.top_k < scores.numel()) {
    const auto least = std::get<0>(scores.topk(options.top_k)).min();
    scores = scores.masked_fill(scores < least, -std::numeric_limits<double>::infinity());
  }
  const auto chances = scores.softmax(-1);
  auto left = std::generate_canonical<double, 53>(random);
  const auto* chance = chances.data_ptr<double>();
  for (int64_t i = 0; i < chances.numel(); ++i) {
    left -= chance[i];
    if (left < 0) return i;
  }
  return chances.argmax().item<int64_t>();
}

Task single_rank(const Task& task) {
  auto single = task;
  single.job = completed(task);
  single.strategy = "auto";
  single.world = 1;
  single.world_given = true;
  single.job.batch.global = 1;
  single.job.batch.micro = 1;
  return single;
}

}  // namespace

void sample_text(const Task& task, const SampleOptions& options,
                 const std::function<void(std::string_view)>& print) {
  const auto single = single_rank(task);
  const auto& job = single.job;
  exec::install_allocator();
  at::set_num_threads(static_cast<int>(job.cluster.threads));
  auto device = open_device(job);
  profile::Database database(profile_of(job));
  profile::TraceDatabase traces(database, static_cast<int>(job.cluster.threads), device);
  const auto path = checkpoint::find_checkpoint(options.checkpoint.empty() ? checkpoint_run(job)
                                                                           : options.checkpoint);
  const checkpoint::Checkpoint checkpoint(path);
  const auto source = open_model(single)->with(
      checkpoint::adapters_of_run(checkpoint::run_of(path), checkpoint));
  const auto& captured = source->at(1, true);
  const auto* tokens_input = captured.graph.find_input("tokens");
  if (!tokens_input || !captured.graph.find_output(graph::Output::Kind::result, "logits")) {
    fail("sample", "the model must take \"tokens\" and give \"logits\", but {} does not",
         job.model.kind);
  }
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(captured.graph);
  plan.mesh.axes = {{"data", 1}};
  compile::StepSpec spec;
  spec.optimizer = "none";
  spec.evaluation = true;
  spec.results = {"logits"};
  const auto communicator = exec::single_communicator();
  exec::Executor executor(
      compile::compile(captured.graph, plan, spec, 0, traces), *communicator, plan.mesh,
      {static_cast<int>(job.cluster.threads), static_cast<uint64_t>(job.seed), std::move(device)});
  for (const auto kind : {Kind::parameter, Kind::buffer}) {
    for (const auto& name : executor.names(kind)) {
      const auto target = executor.tensor(kind, name);
      const auto* binding = executor.program().find(kind, name);
      const auto& type = executor.program().values[binding->value.index].type;
      checkpoint::read_stored(checkpoint, {name, type.dtype, binding->shape, binding->ranges},
                              target);
    }
  }

  const auto tokenizer = text::make_tokenizer(job.data.tokenizer);
  auto text = tokenizer->encode(options.prompt.empty() ? "\n" : options.prompt);
  print(options.prompt);
  const auto sequence = captured.graph.type(tokens_input->value).shape.at(1);
  auto tokens = at::zeros({1, sequence}, at::kLong);
  auto labels = at::zeros({1, sequence}, at::kLong);
  std::mt19937_64 random(options.seed);
  std::string printed = tokenizer->decode(text);
  for (int64_t i = 0; i < options.tokens; ++i) {
    const auto length = std::min<int64_t>(sequence, static_cast<int64_t>(text.size()));
    std::copy(text.end() - length, text.end(),
              tokens.data_ptr<int64_t>());  // logits of this position ignore later ones
    exec::StepInputs inputs;
    inputs.step = 1;
    inputs.data = [&](const std::string& name, int64_t) {
      return name == "tokens" ? tokens : labels;
    };
    executor.run(inputs);
    const auto logits =
        executor.tensor(Kind::result, "logits").select(0, 0).select(0, length - 1).cpu();
    text.push_back(draw(logits, options, random));
    // All tokens are decoded together: a token may complete a character of earlier ones.
    const auto now = tokenizer->decode(text);
    if (now.ends_with("\xef\xbf\xbd") && i + 1 < options.tokens) continue;  // a part of one
    if (now.size() > printed.size()) print(std::string_view(now).substr(printed.size()));
    printed = now;
  }
  print("\n");
}

}  // namespace perigee::train
