#include "train/generate/generator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/fail.h"
#include "base/log_format.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/holdings.h"
#include "checkpoint/stored.h"
#include "checkpoint/weights/initial_weights.h"
#include "compile/compile.h"
#include "exec/executor.h"
#include "exec/memory/allocator.h"
#include "exec/op_threads.h"
#include "exec/tensor.h"
#include "profile/database.h"
#include "profile/traces.h"
#include "train/generate/decode_graph.h"
#include "train/generate/decode_plan.h"
#include "train/generate/rank_command.h"
#include "train/measure/profile_path.h"
#include "train/output/run_folder.h"
#include "train/ranks/device.h"
#include "train/ranks/share.h"
#include "train/ranks/wait_for_work.h"
#include "train/task/open_model.h"

namespace perigee::train {
namespace {

using Kind = compile::Binding::Kind;
using graph::Graph;
using graph::Input;

bool is_stored(const Input& input) {
  return input.kind == Input::Kind::parameter ||
         (input.kind == Input::Kind::buffer && !is_cache(input.name));
}

// The traces of a single rank.
struct OwnTraces {
  profile::Database database;
  profile::TraceDatabase traces;

  OwnTraces(const job::Job& job, const std::shared_ptr<exec::Device>& device)
      : database(profile_of(job)),
        traces(database, static_cast<int>(job.cluster.threads), device) {}
};

// Returns the task without a strategy.
Task without_strategy(Task task) {
  task.strategy = "auto";
  task.strategy_given = false;
  task.plan_file.clear();
  return task;
}

Connection single_connection(const job::Job& job) {
  Connection made;
  made.device = open_device(job);
  made.communicator = made.tensors = exec::single_communicator();
  return made;
}

}  // namespace

struct Generator::Impl {
  // A program of a graph, and its inputs by name.
  struct Run {
    std::unique_ptr<exec::Executor> executor;
    Batch inputs;
  };

  job::Job job;
  Connection connection;
  std::shared_ptr<exec::Group> group;  // all ranks
  std::unique_ptr<OwnTraces> own;      // nullptr: `traces` are another's
  compile::TraceSource& traces;
  int64_t slots;
  DecodeModel model;
  Run extending;  // one token of each slot; without a cache: a whole text
  Run filling;    // tokens of one slot
  std::vector<std::vector<int64_t>> texts;

  Impl(const Task& task, const GeneratorOptions& options, Connection met,
       compile::TraceSource* given);

  bool cached() const { return model.uncached.empty(); }
  Run make_run(const Graph& graph, const plan::Plan& plan, const exec::Executor* lender);
  void read_weights();
  at::Tensor run(Run& run);
  at::Tensor whole_text(int64_t slot);
  at::Tensor fill(int64_t slot, std::span<const int64_t> text);
  at::Tensor extend(std::span<const std::optional<int64_t>> added);
};

Generator::Impl::Impl(const Task& task, const GeneratorOptions& options, Connection met,
                      compile::TraceSource* given)
    : job(completed(task)),
      connection(std::move(met)),
      group(everyone(*connection.communicator)),
      own(given ? nullptr : std::make_unique<OwnTraces>(job, connection.device)),
      traces(given ? *given : own->traces),
      slots(options.slots),
      texts(static_cast<size_t>(options.slots)) {
  exec::install_allocator();
  exec::set_op_threads(static_cast<int>(job.cluster.threads));
  const bool root = group->index() == 0;
  const auto open = [&] { model = open_decode_model(task, options, group->size()); };
  wait_for_work(*group, job, root ? std::function<void()>(open) : nullptr);
  model = share(std::move(model), *group);
  extending = make_run(model.extending, model.plan, nullptr);
  if (cached()) {
    filling = make_run(model.filling, plan_of_graph(model.filling, model.plan),
                       extending.executor.get());
    extending.inputs.at("slots").copy_(at::arange(slots));
  } else if (const auto positions = extending.inputs.find("positions");
             positions != extending.inputs.end()) {
    // One document, where the data packs several into a sample.
    positions->second.copy_(at::arange(model.context));
  }
  read_weights();
}

Generator::Impl::Run Generator::Impl::make_run(const Graph& graph, const plan::Plan& plan,
                                               const exec::Executor* lender) {
  compile::StepSpec spec;
  spec.optimizer = compile::kNoOptimizer;
  spec.evaluation = true;
  spec.borrow_weights = lender != nullptr;
  spec.results = {"logits"};
  Run run;
  for (const auto& input : graph.inputs) {
    if (input.kind != Input::Kind::data) continue;
    const auto& type = graph.type(input.value);
    run.inputs[input.name] = at::zeros(type.shape, exec::scalar_type(type.dtype));
  }
  auto program = compile::compile(graph, plan, spec, group->index(), traces);
  compile::verify(program);
  run.executor = std::make_unique<exec::Executor>(
      std::move(program), *connection.tensors, plan.mesh,
      exec::ExecutorOptions{.threads = static_cast<int>(job.cluster.threads),
                            .seed = static_cast<uint64_t>(job.seed),
                            .device = connection.device,
                            .lender = lender});
  return run;
}

// Reads this rank's parts from the checkpoint or, without one, from the files of train.weights.
void Generator::Impl::read_weights() {
  const auto& executor = *extending.executor;
  const auto& graph = model.extending;
  std::optional<checkpoint::Checkpoint> checkpoint;
  std::optional<checkpoint::InitialWeights> files;
  if (!model.checkpoint.empty()) {
    checkpoint.emplace(model.checkpoint);
  } else {
    std::vector<checkpoint::WantedTensor> wanted;
    for (const auto& input : graph.inputs) {
      if (!is_stored(input)) continue;
      const auto& type = graph.type(input.value);
      wanted.push_back({input.name, type.dtype, type.shape});
      for (const auto& [other, first] : model.tied) {
        if (first == input.name) wanted.back().aliases.push_back(other);
      }
    }
    files.emplace(job.train.weights, job.model, wanted, /*partial=*/false);
    if (group->index() == 0) {
      log::info("{} has no checkpoint: {}", checkpoint_run(job), files->report());
    }
  }
  for (const auto& binding : executor.program().bindings) {
    const auto* input = graph.find_input(binding.name);
    const bool weight = binding.kind == Kind::parameter || binding.kind == Kind::buffer;
    if (!weight || !input || !is_stored(*input)) continue;
    const auto target = executor.tensor(binding);
    auto part = checkpoint::part_of_binding(executor.program(), binding);
    const auto& shape = graph.type(input->value).shape;
    for (auto d = part.ranges.size(); d < shape.size(); ++d) part.ranges.push_back({0, shape[d]});
    if (checkpoint) {
      checkpoint::read_stored(*checkpoint, std::move(part), target);
    } else {
      files->read(binding.name, part.ranges, target);
    }
  }
  if (files) {
    log::debug("rank {} has read {} of {} bytes of the tensors in {}", group->index(),
               files->bytes_read(), files->bytes(), job.train.weights);
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
  // The next run writes its logits to the same memory.
  return run(extending).select(0, 0).select(0, std::ssize(text) - 1).cpu().clone();
}

at::Tensor Generator::Impl::fill(int64_t slot, std::span<const int64_t> text) {
  auto& held = texts[static_cast<size_t>(slot)];
  // The last token is computed again, for its logits.
  const auto common = std::min<int64_t>(std::ranges::mismatch(held, text).in1 - held.begin(),
                                        std::ssize(text) - 1);
  held.assign(text.begin(), text.end());
  if (!cached()) return whole_text(slot);
  auto& inputs = filling.inputs;
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
    logits = run(filling).select(0, 0).select(0, count - 1);
  }
  return logits.cpu();
}

at::Tensor Generator::Impl::extend(std::span<const std::optional<int64_t>> added) {
  for (size_t slot = 0; slot < added.size(); ++slot) {
    if (added[slot]) texts[slot].push_back(*added[slot]);
  }
  if (!cached()) {
    std::vector<at::Tensor> logits(added.size());
    at::Tensor any;
    for (size_t slot = 0; slot < added.size(); ++slot) {
      if (added[slot]) any = logits[slot] = whole_text(static_cast<int64_t>(slot));
    }
    if (!any.defined()) return {};
    for (auto& row : logits) {
      if (!row.defined()) row = at::zeros_like(any);
    }
    return at::stack(logits);
  }
  auto* tokens = extending.inputs.at("tokens").data_ptr<int64_t>();
  auto* positions = extending.inputs.at("positions").data_ptr<int64_t>();
  auto* places = extending.inputs.at("places").data_ptr<int64_t>();
  for (size_t slot = 0; slot < added.size(); ++slot) {
    tokens[slot] = added[slot].value_or(0);
    positions[slot] = added[slot] ? std::ssize(texts[slot]) - 1 : 0;
    places[slot] = added[slot] ? positions[slot] : -1;
  }
  return run(extending).select(1, 0).cpu();
}

Generator::Generator(const Task& task, const GeneratorOptions& options)
    : impl_(std::make_unique<Impl>(without_strategy(task), options,
                                   single_connection(completed(task)), nullptr)) {}

Generator::Generator(const Task& task, const GeneratorOptions& options, Connection connection,
                     compile::TraceSource& traces)
    : impl_(std::make_unique<Impl>(task, options, std::move(connection), &traces)) {}

Generator::~Generator() = default;

int64_t Generator::slots() const { return impl_->slots; }
int64_t Generator::context() const { return impl_->model.context; }
int64_t Generator::vocab() const {
  const auto& graph = impl_->model.extending;
  const auto* logits = graph.find_output(graph::Output::Kind::result, "logits");
  return graph.type(logits->value).shape.back();
}
const std::string& Generator::uncached() const { return impl_->model.uncached; }
const std::vector<int64_t>& Generator::text(int64_t slot) const {
  return impl_->texts.at(static_cast<size_t>(slot));
}

at::Tensor Generator::fill(int64_t slot, std::span<const int64_t> text) {
  if (text.empty() || std::ssize(text) > context()) {
    fail("generate", "a text has 1 to {} tokens (the model's context), but got {}", context(),
         text.size());
  }
  if (slot < 0 || slot >= slots()) {
    fail("generate", "a slot is below {}, but got {}", slots(), slot);
  }
  share({RankCommand::Kind::fill, slot, {text.begin(), text.end()}}, *impl_->group);
  return impl_->fill(slot, text);
}

at::Tensor Generator::extend(std::span<const std::optional<int64_t>> added) {
  if (std::ssize(added) != slots()) {
    fail("generate", "a token for each of {} slots is needed, but got {}", slots(), added.size());
  }
  RankCommand command{RankCommand::Kind::extend};
  for (int64_t slot = 0; slot < slots(); ++slot) {
    const auto& token = added[static_cast<size_t>(slot)];
    command.tokens.push_back(token.value_or(RankCommand::kNothing));
    if (!token || std::ssize(text(slot)) < context()) continue;
    fail("generate", "the text of slot {} has {} tokens, the model's context", slot,
         text(slot).size());
  }
  share(std::move(command), *impl_->group);
  return impl_->extend(added);
}

void Generator::wait(const std::function<void()>& work) {
  share({RankCommand::Kind::wait}, *impl_->group);
  wait_for_work(*impl_->group, impl_->job, work);
}

void Generator::end() { share({RankCommand::Kind::end}, *impl_->group); }

void Generator::serve_commands() {
  while (true) {
    const auto command = share(RankCommand{}, *impl_->group);
    switch (command.kind) {
      case RankCommand::Kind::fill:
        impl_->fill(command.slot, command.tokens);
        break;
      case RankCommand::Kind::extend: {
        std::vector<std::optional<int64_t>> added;
        for (const auto token : command.tokens) {
          added.push_back(token == RankCommand::kNothing ? std::nullopt : std::optional(token));
        }
        impl_->extend(added);
        break;
      }
      case RankCommand::Kind::wait:
        wait_for_work(*impl_->group, impl_->job, nullptr);
        break;
      case RankCommand::Kind::end:
        return;
    }
  }
}

}  // namespace perigee::train
