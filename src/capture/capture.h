// Capture: a model becomes a graph. The model runs once on a device whose tensors have shapes and
// no memory; its ops, forward and backward, are recorded below autograd (src/README.md
// section 3).
//
//   auto net = perigee::deferred<Net>(1024);            // or any torch::nn::Module
//   auto captured = perigee::capture(*net, {{"tokens", tokens}, {"labels", labels}},
//                                    [&](const perigee::Batch& batch) {
//     auto logits = net->forward(batch.at("tokens"));
//     return perigee::Result{torch::nn::functional::cross_entropy(logits, batch.at("labels"))};
//   });
//
// Every function here may be called from any thread (one capture runs at a time). After an error,
// later captures in the process work. Errors are perigee::Error and name the op and its scope.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/headeronly/version.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/version.h"
#include "graph/graph.h"

namespace torch::nn {
class Module;  // <torch/nn/module.h> takes a compiler 3 s, which most users of this header spare
}

namespace perigee {

// Named tensors of one global microbatch, batch dim first. As an example only shape and dtype
// count: they may be CPU tensors or tensors without memory (device meta). Names become those of
// the graph's data inputs.
using Batch = std::map<std::string, at::Tensor>;

// How a loss depends on the samples of a batch, which decides how microbatches' losses combine.
enum class Reduction {
  proven,    // follows from the ops of the graph (shard/loss/classify_loss.h)
  mean,      // a mean over samples
  sum,       // a sum over samples
  weighted,  // a mean over samples with weights: divided by tensors that depend on data alone, of
             // which the averages over the microbatches of a step are taken
};

// The results of a model for a batch: a scalar loss (undefined in an evaluation without one), and
// tensors by name ("logits"), which become outputs of the graph.
struct Result {
  at::Tensor loss;
  std::map<std::string, at::Tensor> results = {};
  // A declaration counts where the loss has no proof. It is checked by number on the first step of
  // a run whose batch is cut.
  Reduction reduction = Reduction::proven;
};

using Forward = std::function<Result(const Batch&)>;

struct Captured {
  // Inputs: the module's parameters and buffers under their dotted names (a tensor that has several
  // names once, under its first), then the batch, then constants. A parameter that the loss does
  // not depend on has no gradient output.
  graph::Graph graph;
  // How the tensors of a module made by `deferred` get their first values: one `result` output for
  // each, by name. Random ops are keyed, so any rank can evaluate any part. Empty for other
  // modules, whose values are in their tensors.
  graph::Graph init;
  // Further names of inputs: {"head.weight", "embed.weight"}.
  std::map<std::string, std::string> tied;
};

// Records loss, its gradients for all parameters that require one, and new buffer values. The
// module keeps its mode (train or eval). Throws Error for: a loss that is no floating scalar or
// depends on no parameter; an op whose result's shape or value steers the model (item(), nonzero);
// an op without a shape function; a write to a parameter or to a tensor that is not registered.
Captured capture(torch::nn::Module& module, const Batch& example, const Forward& loss);

// Records the forward pass alone, in eval mode (restored afterwards) and without gradients.
Captured capture_evaluation(torch::nn::Module& module, const Batch& example,
                            const Forward& forward);

// A model that is not linked into the program.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;  // with the loss where the batch has the loss's fields
  // The fields of a batch that `forward` reads, in order, so that fields can be bound by order;
  // empty: by name alone.
  std::vector<std::string> inputs = {};
};

// Returns the name of the field at a position (from 0) where fields have no names.
inline std::string field_name(size_t place) { return "input." + std::to_string(place); }

// Loads a TorchScript file. Its `forward` gets the batch's tensors by the names of its arguments
// (those without a default are required) and returns the loss, a tuple whose first element is
// the loss, or a dict with "loss"; other tensors become results "output.1", ... or keep the dict's
// keys. Throws Error for a file that cannot be read and an argument that the batch lacks.
Model load_script(const std::string& path);

// Loads a shared library that exports
//     extern "C" void perigee_model(const char* config, perigee::Model* model);
// with `config` the job's [model] table as JSON. PERIGEE_MODEL(function) defines it from a
// `perigee::Model function(const std::string& config)`, with the versions that the library is
// built with. The library stays loaded. Throws Error with the loader's or the function's message,
// and for a library built with another version of Perigee or another minor version of LibTorch.
Model load_plugin(const std::string& path, const std::string& config);

namespace tracing {
void construct_deferred(const std::function<std::shared_ptr<torch::nn::Module>()>& make);
void report_plugin_error(const std::string& message);

// The explicit scopes of this thread's capture; nothing outside one.
class ScopeGuard {
 public:
  explicit ScopeGuard(const std::string& name);
  explicit ScopeGuard(const torch::nn::Module& module);
  ~ScopeGuard();
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  bool active_ = false;
};
}  // namespace tracing

// Returns a Net built without memory for its tensors: they have shapes, and remember how they are
// initialised. Accessing their values is an error. Throws the constructor's exceptions, and Error
// for an initialiser that depends on values (nn::init::sparse_).
template <class Net, class... Args>
std::shared_ptr<Net> deferred(Args&&... args) {
  std::shared_ptr<Net> net;
  tracing::construct_deferred([&]() -> std::shared_ptr<torch::nn::Module> {
    net = std::make_shared<Net>(std::forward<Args>(args)...);
    return net;
  });
  return net;
}

// Assigns ops that run while the guard lives to a scope: `name` below the enclosing guard, or the
// path of `module` in the captured module. Without guards, the scope of an op follows from the
// parameters that it uses and from its neighbours.
//   auto in_attention = perigee::scope("attention");
[[nodiscard]] inline tracing::ScopeGuard scope(const std::string& name) {
  return tracing::ScopeGuard(name);
}
[[nodiscard]] inline tracing::ScopeGuard scope(const torch::nn::Module& module) {
  return tracing::ScopeGuard(module);
}

}  // namespace perigee

// Exports the versions that a library is built with. A library that uses Perigee's C++ interface and
// has no PERIGEE_MODEL, such as a sampler's, has this instead.
#define PERIGEE_PLUGIN_VERSIONS                                                          \
  extern "C" const char* perigee_plugin_version() { return ::perigee::kVersion.data(); } \
  extern "C" const char* perigee_plugin_torch_version() { return TORCH_VERSION; }

#define PERIGEE_MODEL(function)                                                \
  PERIGEE_PLUGIN_VERSIONS                                                      \
  extern "C" void perigee_model(const char* config, ::perigee::Model* model) { \
    try {                                                                      \
      *model = function(config);                                               \
    } catch (const std::exception& error) {                                    \
      ::perigee::tracing::report_plugin_error(error.what());                   \
    } catch (...) {                                                            \
      ::perigee::tracing::report_plugin_error("an error of an unknown type");  \
    }                                                                          \
  }
