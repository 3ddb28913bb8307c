// One capture, or one deferred construction: the growing graph, and the state of its tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture/record/scopes.h"
#include "capture/record/twins.h"
#include "graph/graph.h"

namespace perigee::tracing {

using Arguments = std::vector<std::pair<std::string, graph::Arg>>;

class Session {
 public:
  enum class Purpose { capture, deferred };

  explicit Session(Purpose purpose);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Returns the innermost session of this thread, or nullptr.
  static Session* current();

  // Makes a session current and LibTorch's dispatch keys go through it, until destroyed.
  class Active;

  // Appends a node; types of results that do not exist have no value. Scope, phase and forward node
  // are set here. A view that exists in this phase is reused. Returns one id for each type.
  std::vector<graph::ValueId> emit(std::string op, Arguments arguments,
                                   const std::vector<std::optional<graph::TensorType>>& types);
  graph::ValueId emit_one(std::string op, Arguments arguments, graph::TensorType type);

  // Returns the node that makes the value, where it is of that op, else nullptr.
  const graph::Node* producer(graph::ValueId value, std::string_view op) const;

  // Returns a CPU tensor's bytes as a constant input, or a scalar as perigee::full.
  graph::ValueId constant(const at::Tensor& tensor);
  graph::ValueId constant_bytes(const graph::TensorType& type, std::string bytes);

  // Appends an input. Returns its functional tensor, a leaf that requires no gradient.
  at::Tensor input(graph::Input::Kind kind, const std::string& name, const at::Tensor& like);

  // Returns a functional tensor that stands for the value.
  at::Tensor wrap(graph::ValueId value, const at::Tensor& meta) const;

  // Returns the value that a tensor of this session now has, pending writes included. Throws Error
  // for a tensor of another session or device.
  graph::ValueId value_of(const at::Tensor& tensor) const;

  // Returns whether two tensors are known to be equal (the same value) or different (shapes), and
  // nothing where that depends on their elements.
  std::optional<bool> known_equal(const at::Tensor& a, const at::Tensor& b) const;

  // Called before each op of the model.
  void begin_call() { first_of_call_ = static_cast<graph::NodeId>(graph.nodes.size()); }

  int64_t next_random_key() { return random_key_++; }

  // Returns the current scope for messages: ` in scope "blocks.0.attn"`.
  std::string where() const;

  // Runs f; turns LibTorch's exceptions, and those that passed through it, into perigee::Error.
  template <class F>
  void guarded(F f);
  void remember(std::exception_ptr error) {
    if (!error_) error_ = std::move(error);
  }

  // Returns and clears the message of the last op that threw; the caller adds the place to it. Call
  // it where that exception is caught.
  std::string take_error();

  const uint64_t id;
  const Purpose purpose;
  graph::Graph graph;
  Scopes scopes;
  Twins twins;
  graph::Phase phase = graph::Phase::forward;

  // Removes unused nodes and sets scopes. Outputs must be set.
  graph::Graph finish();

 private:
  Scopes::Id parameter_scope(const std::string& op, const graph::Node& node) const;
  void link(graph::Node& node, graph::NodeId id);
  [[noreturn]] void rethrow();

  std::vector<Scopes::Hint> hints_;           // of nodes
  std::vector<Scopes::Id> value_scopes_;      // of values made from one module's parameters alone
  std::vector<graph::NodeId> forward_nodes_;  // by autograd's sequence number - first_sequence_
  std::unordered_map<std::string, graph::NodeId> views_;  // by phase, op, arguments and type
  uint64_t first_sequence_;
  graph::NodeId last_backward_ = -1;
  graph::NodeId first_of_call_ = 0;
  int64_t random_key_ = 1;
  int constants_ = 0;
  std::exception_ptr error_;
};

// Returns the current session. Throws Error naming the op where there is none: a tensor outlived
// its capture.
Session& session_for(const c10::OperatorHandle& op);

template <class F>
void Session::guarded(F f) {
  try {
    f();
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    rethrow();
  }
}

}  // namespace perigee::tracing
