#include "tests/capture/support.h"

#include <torch/nn/module.h>

#include "base/error.h"
#include "tests/capture/support_draws.h"

namespace perigee::test {
namespace {

// The module under test with its floating inputs as parameters.
struct Harness : torch::nn::Module {
  Harness(const std::shared_ptr<torch::nn::Module>& layer, std::vector<at::Tensor> tensors)
      : inputs(std::move(tensors)) {
    if (layer) register_module("layer", layer);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].is_floating_point()) continue;
      inputs[i] = register_parameter("input" + std::to_string(i), inputs[i].clone());
    }
  }
  std::vector<at::Tensor> inputs;
};

}  // namespace

exec::Tensors inputs_of(torch::nn::Module& module, const Captured& captured, const Batch& batch) {
  exec::Tensors tensors(batch.begin(), batch.end());
  for (const auto& p : module.named_parameters()) tensors[p.key()] = p.value().detach().clone();
  for (const auto& b : module.named_buffers()) tensors[b.key()] = b.value().detach().clone();
  for (const auto& [other, first] : captured.tied) tensors.erase(other);
  return tensors;
}

exec::Tensors evaluate(torch::nn::Module& module, const Captured& captured, const Batch& batch) {
  return exec::evaluate(captured.graph, inputs_of(module, captured, batch));
}

exec::Tensors eager(torch::nn::Module& module, const Batch& batch, const Forward& forward) {
  at::globalContext().setSDPUseFlash(false);  // has no second derivative
  const auto result = forward(batch);
  exec::Tensors tensors;
  for (const auto& [name, tensor] : result.results) tensors[name] = tensor.detach();
  tensors["loss"] = result.loss.detach();
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  for (const auto& p : module.named_parameters()) {
    if (!p.value().requires_grad()) continue;
    names.push_back(p.key());
    parameters.push_back(p.value());
  }
  const auto gradients = torch::autograd::grad({result.loss}, parameters, {}, false, false, true);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) tensors["gradient:" + names[i]] = gradients[i].detach();
  }
  for (const auto& b : module.named_buffers()) tensors["buffer:" + b.key()] = b.value().clone();
  return tensors;
}

std::string difference(const exec::Tensors& expected, const exec::Tensors& got, double tolerance) {
  for (const auto& [name, tensor] : got) {
    const auto found = expected.find(name);
    if (found == expected.end()) return name + " is not in the eager run";
    const auto &a = found->second, &b = tensor;
    if (a.sizes() != b.sizes()) return name + " has another shape";
    if (a.scalar_type() != b.scalar_type()) return name + " has another dtype";
    if (a.numel() == 0) continue;
    const auto wide = [](const at::Tensor& t) { return t.is_complex() ? at::view_as_real(t) : t; };
    const auto x = wide(a).to(torch::kFloat64), y = wide(b).to(torch::kFloat64);
    const double error = (x - y).abs().max().item<double>() / (1 + x.abs().max().item<double>());
    if (!(error <= tolerance)) return name + " differs by " + std::to_string(error * 1e12) + "e-12";
  }
  for (const auto& [name, tensor] : expected) {
    const bool compared = name.rfind("buffer:", 0) != 0;
    if (compared && !got.contains(name)) return name + " is not in the graph";
  }
  return "";
}

void check_parity(torch::nn::Module& module, const Batch& batch, const Forward& forward,
                  double tolerance) {
  const auto captured = capture(module, batch, forward);
  // A buffer without a new value keeps its old value.
  exec::Tensors got = evaluate(module, captured, batch);
  for (const auto& b : module.named_buffers()) {
    if (!captured.tied.contains(b.key())) got.try_emplace("buffer:" + b.key(), b.value().clone());
  }
  exec::Tensors expected;
  {
    const ReplayedDraws draws(captured.graph);
    expected = eager(module, batch, forward);
    CHECK(draws.all_taken());
  }
  for (const auto& [other, first] : captured.tied) expected.erase("gradient:" + other);
  const auto text = graph::print(captured.graph);
  INFO(text.substr(0, 20000));
  CHECK(difference(expected, got, tolerance) == "");
  for (const auto& node : captured.graph.nodes) {
    CHECK(node.op.find("_.") == std::string::npos);
    CHECK(node.op.back() != '_');
    CHECK(node.op.find("as_strided") == std::string::npos);
  }
}

LayerModel model_of(const Layer& layer) {
  auto harness = std::make_shared<Harness>(layer.module, layer.inputs);
  Batch batch;
  for (size_t i = 0; i < layer.inputs.size(); ++i) {
    if (!layer.inputs[i].is_floating_point()) batch["input" + std::to_string(i)] = layer.inputs[i];
  }
  auto forward = [harness, run = layer.run](const Batch& batch) {
    std::vector<at::Tensor> in;
    for (size_t i = 0; i < harness->inputs.size(); ++i) {
      const auto found = batch.find("input" + std::to_string(i));
      in.push_back(found == batch.end() ? harness->inputs[i].alias() : found->second);
    }
    Result result;
    const auto outputs = run(in);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& y = outputs[i];
      result.results["y" + std::to_string(i)] = y;
      if (!y.is_floating_point() || !y.requires_grad()) continue;
      const auto mixed = (y.sin() + 0.5 * y * y).sum();
      result.loss = result.loss.defined() ? result.loss + mixed : mixed;
    }
    return result;
  };
  return {harness, batch, forward};
}

void check_layer(const Layer& layer, double tolerance) {
  INFO(layer.name);
  const auto model = model_of(layer);
  try {
    check_parity(*model.module, model.batch, model.forward, tolerance);
  } catch (const Error& error) {
    FAIL_CHECK(layer.name << ": " << error.what());
  } catch (const c10::Error& error) {
    FAIL_CHECK(layer.name << ": " << error.what_without_backtrace());
  }
}

at::Tensor normal(at::IntArrayRef sizes) {
  static auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  return torch::randn(sizes, generator, torch::kFloat64);
}

at::Tensor uniform(at::IntArrayRef sizes) { return normal(sizes).sigmoid(); }

at::Tensor integers(int64_t below, at::IntArrayRef sizes) {
  return (uniform(sizes) * double(below)).floor().to(torch::kLong);
}

}  // namespace perigee::test
