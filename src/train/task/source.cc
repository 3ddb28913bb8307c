#include "train/task/source.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>

#include "base/fail.h"
#include "shard/loss/classify_loss.h"
#include "shard/loss/sample_count.h"

namespace perigee {

ModelSource::ModelSource(std::shared_ptr<torch::nn::Module> module, Batch example, Forward forward,
                         std::vector<std::string> batched)
    : module_(std::move(module)),
      example_(std::move(example)),
      forward_(std::move(forward)),
      batched_(std::move(batched)) {
  if (!module_) fail("capture", "a model's source needs a module, but it is null");
  if (!forward_) fail("capture", "a model's source needs a forward function, but it is empty");
  if (example_.empty()) fail("capture", "a batch needs at least one tensor, but it has none");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : example_) names.push_back(name);
  for (const auto& name : batched_) {
    if (example_.contains(name)) continue;
    fail("job", "data.batched names inputs of the model ({}), but got \"{}\"{}",
         fmt::join(names, ", "), name, did_you_mean(name, names));
  }
}

bool ModelSource::is_batched(const std::string& name) const {
  return batched_.empty() || std::find(batched_.begin(), batched_.end(), name) != batched_.end();
}

void ModelSource::check(const Job& job) const {
  for (const auto& [name, tensor] : example_) {
    if (is_batched(name) == job.data.is_batched(name)) continue;
    fail("job",
         "the model's source and data.batched must agree, but \"{}\" is a batch for {} alone", name,
         is_batched(name) ? "the source" : "the job");
  }
}

// Returns the example with `samples` as dim 0 of the batched tensors; the result has no memory.
Batch ModelSource::resized(int64_t samples) const {
  Batch result;
  for (const auto& [name, tensor] : example_) {
    auto sizes = tensor.sizes().vec();
    if (is_batched(name)) {
      if (sizes.empty()) {
        fail("capture",
             "dim 0 of a batch's tensors is the samples, but {} is a scalar: where it is the same "
             "for all samples, leave it out of data.batched",
             name);
      }
      sizes[0] = samples;
    }
    result[name] = at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(tensor.dtype()));
  }
  return result;
}

int64_t ModelSource::samples() const {
  const auto first = std::find_if(example_.begin(), example_.end(),
                                  [&](const auto& item) { return is_batched(item.first); });
  return first->second.dim() > 0 ? first->second.size(0) : 1;
}

Captured ModelSource::evaluation_of(const Batch& batch) const {
  return adapted(capture_evaluation(*module_, batch, forward_));
}

Captured ModelSource::captured(int64_t samples, bool evaluation) const {
  const auto batch = resized(samples);
  auto captured = evaluation ? capture_evaluation(*module_, batch, forward_)
                             : capture(*module_, batch, forward_);
  for (auto& input : captured.graph.inputs) {
    input.batched = input.kind != graph::Input::Kind::data || is_batched(input.name);
  }
  return captured;
}

namespace {

bool is_declared(const graph::Graph& graph) {
  return std::ranges::any_of(graph.nodes,
                             [](const auto& node) { return node.op == "perigee::reduction"; });
}

// Returns the class of the loss of a graph of several samples. Where numbers or constants may depend
// on their number, the graph of twice the samples tells.
shard::LossClass proof_of(const graph::Graph& graph,
                          const std::function<graph::Graph(int64_t samples)>& capture) {
  auto proof = shard::classify_loss(graph);
  if (proof.kind == shard::LossKind::mixed || !shard::may_have_sample_count(graph)) return proof;
  const bool likely = shard::seems_to_have_sample_count(graph);
  const auto samples = shard::samples_of(graph);
  try {
    auto by_two = shard::classify_loss(graph, capture(2 * samples));
    // Without a likely number, graphs with other ops are no reason to refuse the loss unchecked.
    if (likely || by_two.comparable) return by_two;
    proof.declared = proof.coupling.empty();
    if (proof.declared) proof.ended = by_two.ended;
  } catch (const Error&) {
    if (!likely) return proof;
    proof.kind = shard::LossKind::mixed;
    proof.ended = fmt::format(
        "the loss, which has a factor or divisor that may be the number of samples, {}, and the "
        "model cannot be captured with {} to tell",
        samples, 2 * samples);
  }
  return proof;
}

}  // namespace

graph::Graph ModelSource::with_proof_of_two(graph::Graph graph, bool evaluation) const {
  if (is_declared(graph)) return graph;
  const auto capture = [&](int64_t samples) { return captured(samples, evaluation).graph; };
  const auto here = shard::classify_loss(graph);
  if (shard::samples_of(graph) > 1) {
    const auto proof = proof_of(graph, capture);
    const bool same = here.kind == proof.kind && !proof.declared;
    return same ? graph : shard::with_proof(std::move(graph), proof);
  }
  graph::Graph two;
  try {
    two = capture(2);
  } catch (const Error&) {
    return graph;  // a model of one sample
  }
  const auto proof = proof_of(two, capture);
  if (here.kind == proof.kind && here.divisors == proof.divisors && !proof.declared) return graph;
  const bool same_nodes = std::ranges::equal(
      graph.nodes, two.nodes,
      [](const auto& a, const auto& b) { return a.op == b.op && a.outputs == b.outputs; });
  if (!proof.divisors.empty() && !same_nodes) return graph;
  return shard::with_proof(std::move(graph), proof);
}

Captured ModelSource::adapted(Captured captured) const {
  if (!adapters_) return captured;
  captured.graph = graph::adapt(std::move(captured.graph), *adapters_);
  captured.init = graph::with_first_values(std::move(captured.init), captured.graph, *adapters_);
  return captured;
}

std::shared_ptr<const ModelSource> ModelSource::with(
    const std::optional<graph::Adapters>& adapters) const {
  auto source = std::make_shared<ModelSource>(*this);
  if (adapters == adapters_) return source;
  if (adapters_) fail("adapters", "a model has one set of adapters, but a second is added");
  source->adapters_ = adapters;
  for (auto* last : {&source->training_, &source->evaluation_}) {
    if (!last->captured) continue;
    last->captured = std::make_shared<Captured>(source->adapted(*last->captured));
  }
  return source;
}

const Captured& ModelSource::at(int64_t samples, bool evaluation) const {
  auto& last = evaluation ? evaluation_ : training_;
  if (!last.captured || last.samples != samples) {
    auto captured = this->captured(samples, evaluation);
    captured.graph = with_proof_of_two(std::move(captured.graph), evaluation);
    last.captured = std::make_shared<Captured>(adapted(std::move(captured)));
    last.samples = samples;
  }
  return *last.captured;
}

}  // namespace perigee
