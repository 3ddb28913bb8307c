#include "capture/record/session.h"

#include <ATen/ATen.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/SequenceNumber.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <atomic>

#include "base/fail.h"
#include "capture/device/dtype.h"
#include "capture/device/tensor.h"
#include "capture/record/active.h"
#include "graph/ops.h"

namespace perigee::tracing {
namespace {

bool is_embedding_op(std::string_view op) {
  return op == "aten::embedding" || op == "aten::embedding_renorm" ||
         op == "aten::_embedding_bag" || op == "aten::_embedding_bag_forward_only";
}

namespace functional = at::functionalization::impl;

thread_local Session* current_session = nullptr;

uint64_t new_session_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

// TorchScript knows the modules that run: "TOP(Net)::forward", "layers(Sequential)::forward", ...
// Returns nothing outside of it.
std::optional<std::string> script_path() {
  const auto modules = torch::jit::currentModuleHierarchy();
  if (modules.empty()) return std::nullopt;
  std::string path;
  for (const std::string& entry : modules) {
    const auto name = entry.substr(0, entry.find('('));
    if (name == "TOP" || name.empty()) continue;
    path += (path.empty() || name[0] == '.' ? "" : ".") + name;
  }
  return path;
}

graph::Arg scalar_of(const at::Tensor& tensor) {
  c10::impl::ExcludeDispatchKeyGuard plain(
      c10::DispatchKeySet({c10::DispatchKey::DeferredInit, c10::DispatchKey::Functionalize}));
  const auto scalar = tensor.item();
  if (scalar.isBoolean()) return scalar.toBool();
  if (scalar.isIntegral(false)) return scalar.toLong();
  return scalar.toDouble();
}

bool is_view(const graph::Node& node) {
  return node.op == "perigee::reshape" || graph::is_view(node.op);
}

std::string view_key(const graph::Node& node, const graph::TensorType& type) {
  auto key = fmt::format("{}{}", static_cast<int>(node.phase), node.op);
  const auto put = [&](const auto& value) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, graph::ValueId>) {
      key += fmt::format("%{}", value.index);
    } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
      key += fmt::format("{}", value);
    } else if constexpr (std::is_arithmetic_v<T>) {
      key += fmt::format("{}", value);
    }
  };
  for (const auto& [name, arg] : node.args) {
    key += name;
    std::visit(put, arg);
  }
  return key + fmt::format("{}{}", type.shape, graph::name_of(type.dtype));
}

}  // namespace

Session::Session(Purpose purpose)
    : id(new_session_id()), purpose(purpose), first_sequence_(at::sequence_number::peek()) {}

Session* Session::current() { return current_session; }

Session& session_for(const c10::OperatorHandle& op) {
  if (current_session) return *current_session;
  fail("capture",
       "a tensor of a capture is only good inside it, but {} got one: the model must not keep "
       "tensors from one forward pass to the next outside of its buffers",
       c10::toString(op.operator_name()));
}

Session::Active::Active(Session& session)
    : outer_(std::exchange(current_session, &session)),
      keys_(c10::DispatchKeySet({c10::DispatchKey::DeferredInit, c10::DispatchKey::Functionalize})),
      views_(true),
      threading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
  // Sequence numbers are counted per thread.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

Session::Active::~Active() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(threading_);
  current_session = outer_;
}

std::vector<graph::ValueId> Session::emit(
    std::string op, Arguments arguments,
    const std::vector<std::optional<graph::TensorType>>& types) {
  graph::Node node{std::move(op), std::move(arguments), {}, "", phase, -1};
  const auto node_id = static_cast<graph::NodeId>(graph.nodes.size());
  if (is_view(node)) {
    const auto [it, fresh] = views_.try_emplace(view_key(node, *types[0]), node_id);
    if (!fresh) return graph.nodes[it->second].outputs;
  }
  auto& hint = hints_.emplace_back();
  hint.parameters = parameter_scope(node.op, node);
  hint.exact = scopes.mark();
  link(node, node_id);
  for (const auto& type : types) {
    graph::ValueId value;
    if (type) {
      value = graph.add_value(*type);
      graph.values[value.index].producer = node_id;
      graph.values[value.index].result = static_cast<int32_t>(node.outputs.size());
    }
    node.outputs.push_back(value);
  }
  // Values computed only from one module's parameters are evidence for that module.
  bool alone = hint.parameters >= 0;
  node.each_operand([&](graph::ValueId v) { alone = alone && value_scopes_[v.index] >= 0; });
  value_scopes_.resize(graph.values.size(), alone ? hint.parameters : -1);
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().outputs;
}

const graph::Node* Session::producer(graph::ValueId value, std::string_view op) const {
  const auto node = graph.values[value.index].producer;
  return node >= 0 && graph.nodes[node].op == op ? &graph.nodes[node] : nullptr;
}

graph::ValueId Session::emit_one(std::string op, Arguments arguments, graph::TensorType type) {
  return emit(std::move(op), std::move(arguments), {std::move(type)})[0];
}

Scopes::Id Session::parameter_scope(const std::string& op, const graph::Node& node) const {
  Scopes::Id scope = -1;
  node.each_operand([&](graph::ValueId v) {
    auto of_value = value_scopes_[v.index];
    if (of_value < 0) return;
    // A tied weight is evidence for the embedding only in an embedding op.
    if (scopes.is_embedding(of_value) && !is_embedding_op(op)) {
      for (const auto& [other, first] : twins.tied) {
        const auto holder = scopes.holder(other);
        if (scopes.holder(first) == of_value && !scopes.is_embedding(holder)) of_value = holder;
      }
    }
    scope = scopes.common(scope, of_value);
  });
  return scope;
}

// Autograd numbers its nodes as the forward pass makes them, just before the op runs; in the
// backward pass the running node's number leads back to that op.
void Session::link(graph::Node& node, graph::NodeId id) {
  auto& hint = hints_.back();
  if (const auto running = torch::autograd::get_current_node()) {
    const auto sequence = running->sequence_nr() - first_sequence_;
    graph::NodeId forward = sequence < forward_nodes_.size() ? forward_nodes_[sequence] : -1;
    if (phase == graph::Phase::forward) {
      // A gradient inside the forward pass: same scope, no link.
      if (forward >= 0 && hint.exact < 0) hint.exact = hints_[forward].parameters;
    } else {
      node.forward_node = last_backward_ = forward;
    }
  } else if (phase == graph::Phase::backward) {
    // The engine adds up gradients between two nodes.
    node.forward_node = last_backward_;
  } else if (hint.exact < 0) {
    if (const auto path = script_path()) hint.exact = scopes.add(*path, "Scope");
  }
  const auto made = at::sequence_number::peek() - first_sequence_;
  if (phase != graph::Phase::forward || made == 0) return;
  if (forward_nodes_.size() < made) {
    forward_nodes_.resize(made, id);
  } else if (auto& first = forward_nodes_.back();
             first_of_call_ <= first && is_view(graph.nodes[first]) && !is_view(node)) {
    first = id;  // views that functionalisation makes anew come before the op itself
  }
}

graph::ValueId Session::constant(const at::Tensor& tensor) {
  if (tensor.dim() == 0 && !tensor.is_complex()) {
    return emit_one("perigee::full", {{"value", scalar_of(tensor)}}, type_of(tensor));
  }
  // Read below everything that the session puts above the CPU.
  c10::impl::ExcludeDispatchKeyGuard plain(
      c10::DispatchKeySet({c10::DispatchKey::DeferredInit, c10::DispatchKey::Functionalize}));
  const auto bytes = tensor.detach().resolve_conj().resolve_neg().contiguous();
  return constant_bytes(type_of(tensor), {static_cast<const char*>(bytes.const_data_ptr()),
                                          static_cast<size_t>(bytes.nbytes())});
}

graph::ValueId Session::constant_bytes(const graph::TensorType& type, std::string bytes) {
  const auto value = graph.add_input(graph::Input::Kind::constant,
                                     fmt::format("constant.{}", constants_++), type);
  graph.inputs.back().data = std::move(bytes);
  value_scopes_.resize(graph.values.size(), -1);
  return value;
}

at::Tensor Session::input(graph::Input::Kind kind, const std::string& name,
                          const at::Tensor& like) {
  const auto value = graph.add_input(kind, name, type_of(like));
  const bool of_module = kind == graph::Input::Kind::parameter ||
                         kind == graph::Input::Kind::buffer;
  value_scopes_.resize(graph.values.size(), of_module ? scopes.holder(name) : -1);
  return wrap(value, meta_tensor(like.sizes(), like.scalar_type()));
}

at::Tensor Session::wrap(graph::ValueId value, const at::Tensor& meta) const {
  return functional::to_functional_tensor(make_capture_tensor(meta, value, id));
}

graph::ValueId Session::value_of(const at::Tensor& tensor) const {
  if (functional::isFunctionalTensor(tensor)) {
    // Pending writes are ops of the device, not of the model.
    c10::impl::ExcludeDispatchKeyGuard below_mode(c10::DispatchKey::DeferredInit);
    functional::sync(tensor);
  }
  const auto* impl = captured(tensor);
  if (!impl || impl->session() != id) {
    fail("capture", "a tensor must come from this capture, but got one of shape [{}] on {}{}{}",
         fmt::join(tensor.sizes(), ", "), tensor.device().str(),
         impl ? " that an earlier or outer capture made" : "", where());
  }
  return impl->value();
}

// nn::MultiheadAttention asks whether its three inputs are equal, to choose between two ways to the
// same result. Different values may differ in their elements, so the answer then selects the
// general way.
std::optional<bool> Session::known_equal(const at::Tensor& a, const at::Tensor& b) const {
  if (!captured(a) || !captured(b)) return std::nullopt;
  if (a.sizes() != b.sizes()) return false;
  if (value_of(a) == value_of(b)) return true;
  if (a.is_floating_point() && a.dim() == 3) return false;
  return std::nullopt;
}

std::string Session::where() const {
  if (const auto marked = scopes.mark(); marked > 0) {
    return fmt::format(" in scope \"{}\"", scopes.path(marked));
  }
  for (size_t i = hints_.size(); i-- > 0;) {
    const auto& hint = hints_[i];
    const auto scope = hint.exact >= 0 ? hint.exact : hint.parameters;
    if (scope < 0 || graph.nodes[i].phase != graph::Phase::forward) continue;
    return hint.exact >= 0 ? fmt::format(" in scope \"{}\"", scopes.path(scope))
                           : fmt::format(" in or after scope \"{}\"", scopes.path(scope));
  }
  return " in scope \"\"";
}

graph::Graph Session::finish() {
  graph.scopes = scopes.list();
  scopes.assign(graph, hints_);
  return graph::eliminate_dead_code(std::move(graph));
}

std::string Session::take_error() {
  const auto error = error_ ? std::exchange(error_, nullptr) : std::current_exception();
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  } catch (const std::exception& e) {
    return e.what();
  }
}

void Session::rethrow() {
  try {
    std::rethrow_exception(error_);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    fail("capture", "the model must run on tensors without values, but LibTorch says: {}{}",
         error.what_without_backtrace(), where());
  } catch (const std::exception& error) {
    fail("capture", "the model must run without errors, but got: {}{}", error.what(), where());
  }
}

}  // namespace perigee::tracing
