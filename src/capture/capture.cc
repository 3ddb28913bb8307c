#include "capture/capture.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/fail.h"
#include "capture/deferred.h"
#include "capture/device/device.h"
#include "capture/device/dtype.h"
#include "capture/record/active.h"
#include "capture/record/canonical.h"
#include "capture/record/lock.h"
#include "shard/loss/classify_loss.h"

namespace perigee {
namespace {

using graph::Input;
using graph::Output;
using tracing::Session;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

void declare_module(Session& session, torch::nn::Module& module) {
  session.scopes.declare(module);
  for (const auto& parameter : module.named_parameters()) {
    session.twins.declare(session, Input::Kind::parameter, parameter.key(), parameter.value());
  }
  for (const auto& buffer : module.named_buffers()) {
    session.twins.declare(session, Input::Kind::buffer, buffer.key(), buffer.value());
  }
}

Batch declare_batch(Session& session, const Batch& example) {
  Batch batch;
  for (const auto& [name, tensor] : example) {
    if (!tensor.defined()) fail("capture", "an example has tensors, but \"{}\" is undefined", name);
    if (session.graph.find_input(name)) {
      fail("capture", "a batch's tensors have names that no parameter has, but got \"{}\"", name);
    }
    batch[name] = session.input(Input::Kind::data, name, tensor);
  }
  return batch;
}

void add_output(Session& session, Output::Kind kind, const std::string& name,
                graph::ValueId value) {
  session.graph.outputs.push_back({kind, name, value});
}

// Returns the tensor in the session: a model may return a parameter itself.
at::Tensor of_session(Session& session, const at::Tensor& tensor) {
  return tensor.is_cpu() ? session.twins.get(session, tensor) : tensor;
}

// Returns the loss as a scalar tensor. Throws Error where it is none.
at::Tensor checked_loss(Session& session, at::Tensor loss) {
  if (!loss.defined()) {
    fail(
        "capture",
        "training needs the loss of a forward pass, a scalar, but the model gives none (a script's "
        "`forward` returns it as `loss`)");
  }
  loss = of_session(session, loss);
  if (loss.numel() != 1 || !loss.is_floating_point()) {
    fail("capture", "a loss is one floating number, but got {}[{}]",
         c10::toString(loss.scalar_type()), fmt::join(loss.sizes(), ", "));
  }
  return loss.dim() == 0 ? loss : loss.reshape({});
}

void add_gradients(Session& session, const at::Tensor& loss) {
  std::vector<const tracing::Twins::Base*> trainable;
  torch::autograd::variable_list parameters;
  for (const auto& base : session.twins.bases()) {
    if (base.kind != Input::Kind::parameter || !base.original.requires_grad()) continue;
    trainable.push_back(&base);
    parameters.push_back(base.twin);
  }
  if (!loss.requires_grad()) {
    fail("capture",
         "a loss depends on a parameter that requires a gradient, but this one depends "
         "on none of {}",
         parameters.size());
  }
  session.phase = graph::Phase::backward;
  const auto gradients = torch::autograd::grad({loss}, parameters, {}, false, false, true);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    add_output(session, Output::Kind::gradient, trainable[i]->name, session.value_of(gradients[i]));
  }
}

void add_new_values(Session& session) {
  for (const auto& base : session.twins.bases()) {
    const auto value = session.value_of(base.twin);
    if (value == base.input || !base.input.defined()) continue;
    if (base.kind == Input::Kind::buffer) {
      add_output(session, Output::Kind::buffer, base.name, value);
    } else if (base.name.empty() && session.twins.is_local(base.original)) {
      continue;
    } else if (base.name.empty()) {
      fail("capture",
           "a model may write to its parameters' and buffers' values only, but the "
           "forward pass changes a tensor of shape [{}] that is neither: register it with "
           "register_buffer",
           fmt::join(base.original.sizes(), ", "));
    } else if (base.original.requires_grad()) {
      fail("capture",
           "only the optimizer writes to a parameter, but the forward pass changes "
           "\"{}\": freeze it or make it a buffer",
           base.name);
    } else {
      for (auto& input : session.graph.inputs) {
        if (input.name == base.name) input.kind = Input::Kind::buffer;
      }
      add_output(session, Output::Kind::buffer, base.name, value);
    }
  }
}

void add_results(Session& session, const Result& result) {
  for (const auto& [name, tensor] : result.results) {
    if (!tensor.defined()) fail("capture", "results are tensors, but \"{}\" is undefined", name);
    if (name == "loss" || name == "grad_norm") {
      fail("capture", "\"{}\" is a figure of each step: give the model's result another name",
           name);
    }
    add_output(session, Output::Kind::result, name, session.value_of(of_session(session, tensor)));
  }
}

graph::Graph declared(graph::Graph graph, Reduction reduction) {
  switch (reduction) {
    case Reduction::proven:
      return graph;
    case Reduction::mean:
      return shard::with_declaration(std::move(graph), shard::Declared::mean);
    case Reduction::sum:
      return shard::with_declaration(std::move(graph), shard::Declared::sum);
    case Reduction::weighted:
      return shard::with_declaration(std::move(graph), shard::Declared::weighted);
  }
  return graph;
}

Captured run(torch::nn::Module& module, const Batch& example, const Forward& forward,
             bool training) {
  const tracing::CaptureLock lock;
  tracing::register_device();
  Session session(Session::Purpose::capture);
  Captured captured;
  session.guarded([&] {
    const Session::Active active(session);
    const at::AutoGradMode gradients(training);
    declare_module(session, module);
    const auto batch = declare_batch(session, example);
    const auto result = forward(batch);
    add_results(session, result);
    if (training || result.loss.defined()) {
      const auto loss = checked_loss(session, result.loss);
      add_output(session, Output::Kind::loss, "loss", session.value_of(loss));
      if (training) add_gradients(session, loss);
    }
    if (session.graph.outputs.empty()) {
      fail("capture", "a forward pass has a loss or results, but the model gives none");
    }
    add_new_values(session);
    captured.graph = declared(session.finish(), result.reduction);
  });
  NamedTensors tensors;
  for (const auto& base : session.twins.bases()) {
    if (!base.name.empty()) tensors.emplace_back(base.name, base.original);
  }
  captured.init = tracing::init_graph(tensors);
  captured.tied = {session.twins.tied.begin(), session.twins.tied.end()};
  graph::verify(captured.graph);
  return captured;
}

// Puts a module and its submodules into evaluation mode, and restores their modes when it ends.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : module_(module), was_(module.is_training()) {
    for (const auto& part : module.modules(/*include_self=*/false)) {
      were_.emplace_back(part, part->is_training());
    }
    module.eval();
  }
  ~EvaluationMode() {
    module_.train(was_);
    for (const auto& [part, training] : were_) {
      // Parents come first, since train() also changes the modules below.
      if (training != part->is_training()) part->train(training);
    }
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> were_;
};

}  // namespace

Captured capture(torch::nn::Module& module, const Batch& example, const Forward& loss) {
  return run(module, example, loss, true);
}

Captured capture_evaluation(torch::nn::Module& module, const Batch& example,
                            const Forward& forward) {
  const EvaluationMode evaluation(module);
  return run(module, example, forward, false);
}

namespace tracing {

ScopeGuard::ScopeGuard(const std::string& name) : active_(Session::current() != nullptr) {
  if (active_) Session::current()->scopes.push(name);
}

ScopeGuard::ScopeGuard(const torch::nn::Module& module) : active_(Session::current() != nullptr) {
  if (active_) Session::current()->scopes.push(module);
}

ScopeGuard::~ScopeGuard() {
  if (active_) Session::current()->scopes.pop();
}

}  // namespace tracing
}  // namespace perigee
