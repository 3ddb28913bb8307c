// TorchScript files as modules.
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/module.h>

#include "base/fail.h"
#include "capture/capture.h"

namespace perigee {
namespace {

namespace jit = torch::jit;

// The script's tensors under the names it gives them; the types of its modules as scopes.
class ScriptModule final : public torch::nn::Module {
 public:
  explicit ScriptModule(const jit::Module& script)
      : torch::nn::Module(script.type()->name() ? script.type()->name()->name() : "Script") {
    for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
      register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
    }
    for (const auto& buffer : script.named_buffers(/*recurse=*/false)) {
      register_buffer(buffer.name, buffer.value);
    }
    for (const auto& child : script.named_children()) {
      register_module(child.name, std::make_shared<ScriptModule>(child.value));
    }
  }
};

at::Tensor tensor_of(const c10::IValue& value, const std::string& what) {
  if (!value.isTensor()) {
    fail("capture", "a script's results are tensors, but {} is a {}", what, value.tagKind());
  }
  return value.toTensor();
}

Result result_of(const c10::IValue& value) {
  Result result;
  if (value.isTuple()) {
    const auto elements = value.toTuple()->elements().vec();
    for (size_t i = 0; i < elements.size(); ++i) {
      const auto name = fmt::format("output.{}", i);
      const auto tensor = tensor_of(elements[i], name);
      if (i == 0 && tensor.dim() == 0) {
        result.loss = tensor;
      } else {
        result.results[name] = tensor;
      }
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      const auto name = entry.key().toStringRef();
      const auto tensor = tensor_of(entry.value(), name);
      (name == "loss" ? result.loss : result.results[name]) = tensor;
    }
  } else {
    const auto tensor = tensor_of(value, "the output");
    (tensor.dim() == 0 ? result.loss : result.results["output"]) = tensor;
  }
  return result;
}

}  // namespace

Model load_script(const std::string& path) {
  auto script = std::make_shared<jit::Module>();
  try {
    *script = jit::load(path, at::kCPU);
  } catch (const c10::Error& error) {
    fail("capture", "\"{}\" must be a TorchScript file, but LibTorch says: {}", path,
         error.what_without_backtrace());
  } catch (const std::exception& error) {  // of the parser of its code, or out of memory
    fail("capture", "\"{}\" must be a TorchScript file, but LibTorch says: {}", path, error.what());
  }
  if (!script->find_method("forward")) {
    fail("capture", "the script of \"{}\" must have a method forward, but has none", path);
  }
  Model model;
  model.module = std::make_shared<ScriptModule>(*script);
  for (const auto& argument : script->get_method("forward").function().getSchema().arguments()) {
    if (argument.name() != "self") model.inputs.push_back(argument.name());
  }
  model.forward = [script, module = model.module, path](const Batch& batch) {
    script->train(module->is_training());
    const auto method = script->get_method("forward");
    std::vector<c10::IValue> inputs;
    for (const auto& argument : method.function().getSchema().arguments()) {
      if (argument.name() == "self") continue;
      const auto found = batch.find(argument.name());
      if (found != batch.end()) {
        inputs.emplace_back(found->second);
      } else if (argument.default_value()) {
        inputs.push_back(*argument.default_value());
      } else {
        fail("capture", "the forward of \"{}\" takes \"{}\", but the batch has none of that name",
             path, argument.name());
      }
    }
    // No profiling or fusion, which would read tensors without values.
    const jit::GraphOptimizerEnabledGuard as_written(false);
    return result_of(script->forward(std::move(inputs)));
  };
  return model;
}

}  // namespace perigee
