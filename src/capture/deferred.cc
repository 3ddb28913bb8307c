#include "capture/deferred.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/ranges.h>

#include <map>

#include "base/fail.h"
#include "capture/capture.h"
#include "capture/device/device.h"
#include "capture/device/tensor.h"
#include "capture/record/active.h"
#include "capture/record/lock.h"
#include "capture/record/op.h"
#include "graph/ops.h"

namespace perigee::tracing {
namespace {

// Returns a CPU tensor with the geometry of `like` and no memory.
at::Tensor make_fake(const at::Tensor& like) {
  const auto bytes = static_cast<int64_t>(
      at::detail::computeStorageNbytes(like.sizes(), like.strides(), like.itemsize()));
  auto storage = c10::Storage(c10::make_intrusive<DeferredStorage>(bytes));
  auto fake = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  fake.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return fake;
}

// Copies the nodes of an init graph that the requested values depend on; `emit` adds one node.
class Copier {
 public:
  Copier(Session& session, const graph::Graph& from) : session_(session), from_(from) {}

  graph::ValueId copy(graph::ValueId v) {
    const auto [it, fresh] = done_.try_emplace(v.index);
    if (!fresh) return it->second;
    const auto& value = from_.values[v.index];
    const auto copied = value.producer < 0 ? input(v) : node(v, from_.nodes[value.producer]);
    return done_[v.index] = copied;
  }

 private:
  graph::ValueId input(graph::ValueId v) {
    for (const auto& input : from_.inputs) {
      if (input.value == v) return session_.constant_bytes(from_.type(v), input.data);
    }
    fail("capture", "an init graph has constant inputs only, but got value {}", v.index);
  }

  graph::ValueId node(graph::ValueId v, graph::Node node) {
    if (graph::is_random(node.op)) {
      fail("capture",
           "a random tensor that is neither parameter nor buffer would change in every step: "
           "register it with register_buffer, but got one of shape [{}]{}",
           fmt::join(from_.type(v).shape, ", "), session_.where());
    }
    std::vector<std::optional<graph::TensorType>> types;
    for (auto output : node.outputs) {
      types.push_back(output.defined() ? std::optional(from_.type(output)) : std::nullopt);
    }
    const auto outputs = node.outputs;
    node.each_operand([&](graph::ValueId& operand) { operand = copy(operand); });
    const auto made = session_.emit(node.op, std::move(node.args), types);
    for (size_t r = 0; r < outputs.size(); ++r) done_[outputs[r].index] = made[r];
    return done_[v.index];
  }

  Session& session_;
  const graph::Graph& from_;
  std::map<int32_t, graph::ValueId> done_;
};

// Appends a graph to another. Returns the offset of its value indices.
int32_t append(graph::Graph& into, const graph::Graph& from, int part) {
  const auto values = static_cast<int32_t>(into.values.size());
  const auto nodes = static_cast<graph::NodeId>(into.nodes.size());
  int64_t keys = 0;
  for (const auto& node : into.nodes) keys = std::max(keys, node.get<int64_t>("key", 0));
  for (auto value : from.values) {
    if (value.producer >= 0) value.producer += nodes;
    into.values.push_back(std::move(value));
  }
  for (auto input : from.inputs) {
    if (part > 0) input.name = fmt::format("{}.{}", input.name, part);
    input.value.index += values;
    into.inputs.push_back(std::move(input));
  }
  for (auto node : from.nodes) {
    node.each_operand([&](graph::ValueId& v) { v.index += values; });
    for (auto& [name, arg] : node.args) {
      if (name == "key" && graph::is_random(node.op)) std::get<int64_t>(arg) += keys;
    }
    for (auto& output : node.outputs) {
      if (output.defined()) output.index += values;
    }
    into.nodes.push_back(std::move(node));
  }
  return values;
}

}  // namespace

DeferredStorage::DeferredStorage(int64_t bytes)
    : c10::StorageImpl(use_byte_size_t(), c10::SymInt(bytes), c10::DataPtr(nullptr, at::kCPU),
                       c10::GetDefaultCPUAllocator(), false) {
  release_data_and_set_meta_custom_data_ptr_error_msg_(
      "[capture] a module made by perigee::deferred has no values, but an op reads or writes one "
      "of its tensors");
}

const DeferredStorage* deferred_storage(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  return dynamic_cast<const DeferredStorage*>(tensor.storage().unsafeGetStorageImpl());
}

void call_on_fakes(Session& session, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  for (size_t i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    each_tensor(value, [&](const at::Tensor& tensor) {
      return tensor.is_cpu() ? session.twins.get(session, tensor) : tensor;
    });
    if (value.isDevice() && value.toDevice().is_cpu()) value = capture_device;
  }
  op.callBoxed(stack);
  for (size_t i = first; i < stack->size(); ++i) {
    each_tensor((*stack)[i], [&](const at::Tensor& result) {
      if (!result.is_privateuseone()) return result;
      auto original = session.twins.original_of(result);
      if (!original.defined()) {
        original = make_fake(result);
        session.twins.bind(original, result);
      } else if (schema.name() == "aten::requires_grad_") {
        original.set_requires_grad(result.requires_grad());
      } else if (is_deferred(original)) {
        original.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
      }
      return original;
    });
  }
}

graph::ValueId inline_deferred(Session& session, const at::Tensor& tensor) {
  const auto* storage = deferred_storage(tensor);
  return Copier(session, *storage->init).copy(storage->value);
}

graph::Graph init_graph(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  graph::Graph graph;
  std::map<const graph::Graph*, int32_t> offsets;
  for (const auto& [name, tensor] : tensors) {
    const auto* storage = deferred_storage(tensor);
    if (!storage) continue;
    const auto* from = storage->init.get();
    if (!offsets.contains(from)) {
      offsets[from] = append(graph, *from, static_cast<int>(offsets.size()));
    }
    const graph::ValueId value{storage->value.index + offsets[from]};
    if (graph.type(value).shape != tensor.sizes().vec()) {
      fail("capture", "a deferred parameter is a whole tensor, but \"{}\" is a view [{}] of [{}]",
           name, fmt::join(tensor.sizes(), ", "), fmt::join(graph.type(value).shape, ", "));
    }
    graph.outputs.push_back({graph::Output::Kind::result, name, value});
  }
  graph.scopes = {{"", "Init"}};
  return graph::eliminate_dead_code(std::move(graph));
}

void construct_deferred(const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
  const CaptureLock lock;
  register_device();
  Session session(Session::Purpose::deferred);
  session.guarded([&] {
    const Session::Active active(session);
    const auto module = make();
    std::vector<std::pair<DeferredStorage*, graph::ValueId>> made;
    for (const auto& base : session.twins.bases()) {
      auto* storage = dynamic_cast<DeferredStorage*>(base.storage.unsafeGetStorageImpl());
      if (storage && !storage->init) made.emplace_back(storage, session.value_of(base.twin));
    }
    const auto init = std::make_shared<const graph::Graph>(std::move(session.graph));
    for (auto& [storage, value] : made) {
      storage->init = init;
      storage->value = value;
    }
  });
}

}  // namespace perigee::tracing
