#include "train/generate/generator.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "base/log_format.h"
#include "capture/models/hf/architecture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/stored.h"
#include "checkpoint/weights/initial_weights.h"
#include "checkpoint/weights/merge.h"
#include "compile/compile.h"
#include "exec/executor.h"
#include "exec/memory/allocator.h"
#include "exec/tensor.h"
#include "profile/database.h"
#include "profile/traces.h"
#include "train/generate/decode_graph.h"
#include "train/measure/profile_path.h"
#include "train/output/run_folder.h"
#include "train/ranks/device.h"
#include "train/task/open_model.h"

namespace perigee::train {
namespace {

using Kind = compile::Binding::Kind;

constexpr int64_t kFilled = 64;  // most tokens that one run of the filling program reads

// Returns the task on one rank, with one text of `context` tokens as its batch.
Task single_rank(const Task& task, int64_t context) {
  auto single = task;
  single.job = completed(task);
  single.strategy = "auto";
  single.world = 1;
  single.world_given = true;
  single.job.batch.global = 1;
  single.job.batch.micro = 1;
  if (context > 0) single.job.data.sequence = context;
  return single;
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

std::vector<mesh::Range> whole_ranges(const std::vector<int64_t>& shape) {
  std::vector<mesh::Range> ranges;
  for (const auto size : shape) ranges.push_back({0, size});
  return ranges;
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

}  // namespace

struct Generator::Impl {
  // A program of a graph, and its inputs by name.
  struct Run {
    std::unique_ptr<exec::Executor> executor;
    Batch inputs;
  };

  Task task;
  std::shared_ptr<exec::Device> device;
  profile::Database database;
  profile::TraceDatabase traces;
  std::unique_ptr<exec::Communicator> communicator = exec::single_communicator();
  int64_t slots, context, vocab = 0;
  std::string uncached;
  Run extending;  // one token of each slot; without a cache: a whole text
  Run filling;    // tokens of one slot
  std::vector<std::vector<int64_t>> texts;
  std::map<std::string, std::string> tied;  // further names of parameters

  Impl(const Task& given, const GeneratorOptions& options);

  const job::Job& job() const { return task.job; }
  Run make_run(const graph::Graph& graph, const exec::Executor* lender);
  void read_weights(const std::optional<checkpoint::Checkpoint>& checkpoint);
  at::Tensor run(Run& run);
  at::Tensor whole_text(int64_t slot);
};

Generator::Impl::Impl(const Task& given, const GeneratorOptions& options)
    : task(single_rank(given, options.context)),
      device(open_device(job())),
      database(profile_of(job())),
      traces(database, static_cast<int>(job().cluster.threads), device),
      slots(options.slots),
      context(job().data.sequence),
      texts(static_cast<size_t>(options.slots)) {
  if (const auto& values = job().model.values; values.contains("positions")) {
    const auto positions = job().model.integer("positions");
    if (context > positions) {
      fail("generate",
           "the context is at most the number of the model's positions (model.positions = {}), but "
           "got {}",
           positions, context);
    }
  }
  auto source = open_model(task);
  std::optional<checkpoint::Checkpoint> checkpoint;
  if (const auto path = checkpoint_of(job(), options.checkpoint); !path.empty()) {
    checkpoint.emplace(path);
    source = source->with(checkpoint::adapters_of_run(checkpoint::run_of(path), *checkpoint));
  }
  const auto& captured = source->at(1, /*evaluation=*/true);
  const auto& whole = captured.graph;
  tied = captured.tied;
  const auto* logits = whole.find_output(graph::Output::Kind::result, "logits");
  if (!whole.find_input("tokens") || !logits) {
    fail("generate", "the model must take \"tokens\" and give \"logits\", but {} does not",
         job().model.kind);
  }
  context = whole.type(whole.find_input("tokens")->value).shape.at(1);
  vocab = whole.type(logits->value).shape.back();
  graph::Graph extend;
  if (takes_positions(job().model.kind)) {
    extend = source->evaluation_of(example_of(slots, 1)).graph;
    uncached = obstacle_to_caches(extend);
  } else {
    uncached = "does not take positions";
  }
  if (!uncached.empty()) {
    extending = make_run(whole, nullptr);
    // One document, where the data packs several into a sample.
    const auto positions = extending.inputs.find("positions");
    if (positions != extending.inputs.end()) positions->second.copy_(at::arange(context));
  } else {
    const CacheShape shape = {slots, context, windows_of(job())};
    extending = make_run(with_caches(std::move(extend), shape), nullptr);
    // Within a window no mask is part of the graph.
    int64_t filled = kFilled;
    for (const auto& [scope, window] : shape.windows) filled = std::min(filled, window);
    filling = make_run(with_caches(source->evaluation_of(example_of(1, filled)).graph, shape),
                       extending.executor.get());
    extending.inputs.at("slots").copy_(at::arange(slots));
  }
  read_weights(checkpoint);
}

Generator::Impl::Run Generator::Impl::make_run(const graph::Graph& graph,
                                               const exec::Executor* lender) {
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(graph);
  plan.mesh.axes = {{"data", 1}};
  compile::StepSpec spec;
  spec.optimizer = compile::kNoOptimizer;
  spec.evaluation = true;
  spec.borrow_weights = lender != nullptr;
  spec.results = {"logits"};
  Run run;
  for (const auto& input : graph.inputs) {
    if (input.kind != graph::Input::Kind::data) continue;
    const auto& type = graph.type(input.value);
    run.inputs[input.name] = at::zeros(type.shape, exec::scalar_type(type.dtype));
  }
  run.executor = std::make_unique<exec::Executor>(
      compile::compile(graph, plan, spec, 0, traces), *communicator, plan.mesh,
      exec::ExecutorOptions{.threads = static_cast<int>(job().cluster.threads),
                            .seed = static_cast<uint64_t>(job().seed),
                            .device = device,
                            .lender = lender});
  return run;
}

// Reads the checkpoint; nothing: the files of train.weights.
void Generator::Impl::read_weights(const std::optional<checkpoint::Checkpoint>& checkpoint) {
  const auto& executor = *extending.executor;
  std::vector<checkpoint::WantedTensor> wanted;
  std::vector<at::Tensor> targets;
  for (const auto kind : {Kind::parameter, Kind::buffer}) {
    for (const auto& name : executor.names(kind)) {
      if (is_cache(name)) continue;
      targets.push_back(executor.tensor(kind, name));
      wanted.push_back(
          {name, exec::dtype_of(targets.back().scalar_type()), targets.back().sizes().vec()});
      for (const auto& [other, first] : tied) {
        if (first == name) wanted.back().aliases.push_back(other);
      }
    }
  }
  if (!checkpoint) {
    const checkpoint::InitialWeights files(job().train.weights, job().model, wanted,
                                           /*partial=*/false);
    log::info("{} has no checkpoint: {}", checkpoint_run(job()), files.report());
    for (size_t i = 0; i < wanted.size(); ++i) {
      files.read(wanted[i].name, whole_ranges(wanted[i].shape), targets[i]);
    }
    return;
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    checkpoint::read_stored(
        *checkpoint,
        {wanted[i].name, wanted[i].dtype, wanted[i].shape, whole_ranges(wanted[i].shape)},
        targets[i]);
  }
}

// Returns the logits of all rows and tokens.
at::Tensor Generator::Impl::run(Run& run) {
  exec::StepInputs inputs;
  inputs.step = 1;
  inputs.data = [&](const std::string& name, int64_t) { return run.inputs.at(name); };
  run.executor->run(inputs);
  return run.executor->tensor(Kind::result, "logits");
}

// Computes a slot's text without a cache.
at::Tensor Generator::Impl::whole_text(int64_t slot) {
  const auto& text = texts[static_cast<size_t>(slot)];
  // Logits of a place ignore later tokens.
  std::copy(text.begin(), text.end(), extending.inputs.at("tokens").data_ptr<int64_t>());
  return run(extending).select(0, 0).select(0, std::ssize(text) - 1).cpu();
}

Generator::Generator(const Task& task, const GeneratorOptions& options) {
  exec::install_allocator();
  at::set_num_threads(static_cast<int>(task.job.cluster.threads));
  impl_ = std::make_unique<Impl>(task, options);
}

Generator::~Generator() = default;

int64_t Generator::slots() const { return impl_->slots; }
int64_t Generator::context() const { return impl_->context; }
int64_t Generator::vocab() const { return impl_->vocab; }
const std::string& Generator::uncached() const { return impl_->uncached; }
const std::vector<int64_t>& Generator::text(int64_t slot) const {
  return impl_->texts.at(static_cast<size_t>(slot));
}

at::Tensor Generator::fill(int64_t slot, std::span<const int64_t> text) {
  if (text.empty() || std::ssize(text) > impl_->context) {
    fail("generate", "a text has 1 to {} tokens (the model's context), but got {}", impl_->context,
         text.size());
  }
  auto& held = impl_->texts.at(static_cast<size_t>(slot));
  // The last token is computed again, for its logits.
  const auto common = std::min<int64_t>(std::ranges::mismatch(held, text).in1 - held.begin(),
                                        std::ssize(text) - 1);
  held.assign(text.begin(), text.end());
  if (!impl_->uncached.empty()) return impl_->whole_text(slot);
  auto& inputs = impl_->filling.inputs;
  auto* tokens = inputs.at("tokens").data_ptr<int64_t>();
  auto* positions = inputs.at("positions").data_ptr<int64_t>();
  auto* places = inputs.at("places").data_ptr<int64_t>();
  inputs.at("slots").fill_(slot);
  at::Tensor logits;
  const auto filled = inputs.at("tokens").size(1);
  for (int64_t first = common; first < std::ssize(text); first += filled) {
    const auto count = std::min<int64_t>(filled, std::ssize(text) - first);
    for (int64_t i = 0; i < filled; ++i) {
      tokens[i] = i < count ? text[static_cast<size_t>(first + i)] : 0;
      positions[i] = i < count ? first + i : 0;
      places[i] = i < count ? first + i : -1;
    }
    logits = impl_->run(impl_->filling).select(0, 0).select(0, count - 1);
  }
  return logits.cpu();
}

at::Tensor Generator::extend(std::span<const std::optional<int64_t>> added) {
  auto& impl = *impl_;
  if (std::ssize(added) != impl.slots) {
    fail("generate", "a token for each of {} slots is needed, but got {}", impl.slots,
         added.size());
  }
  for (int64_t slot = 0; slot < impl.slots; ++slot) {
    auto& text = impl.texts[static_cast<size_t>(slot)];
    const auto& token = added[static_cast<size_t>(slot)];
    if (!token) continue;
    if (std::ssize(text) >= impl.context) {
      fail("generate", "the text of slot {} has {} tokens, the model's context", slot, text.size());
    }
    text.push_back(*token);
  }
  if (!impl.uncached.empty()) {
    std::vector<at::Tensor> logits(added.size());
    at::Tensor any;
    for (size_t slot = 0; slot < added.size(); ++slot) {
      if (added[slot]) any = logits[slot] = impl.whole_text(static_cast<int64_t>(slot));
    }
    if (!any.defined()) return {};
    for (auto& row : logits) {
      if (!row.defined()) row = at::zeros_like(any);
    }
    return at::stack(logits);
  }
  auto* tokens = impl.extending.inputs.at("tokens").data_ptr<int64_t>();
  auto* positions = impl.extending.inputs.at("positions").data_ptr<int64_t>();
  auto* places = impl.extending.inputs.at("places").data_ptr<int64_t>();
  for (size_t slot = 0; slot < added.size(); ++slot) {
    tokens[slot] = added[slot].value_or(0);
    positions[slot] = added[slot] ? std::ssize(impl.texts[slot]) - 1 : 0;
    places[slot] = added[slot] ? positions[slot] : -1;
  }
  return impl.run(impl.extending).select(1, 0).cpu();
}

}  // namespace perigee::train
