// Twins: the capture tensors that stand for the CPU tensors that a model already has. Tensors that
// share memory share one twin, through views.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace perigee::tracing {

class Session;

class Twins {
 public:
  Twins() = default;
  ~Twins();  // gives the originals their own places in autograd's graph back
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;

  // Adds an input for a parameter or buffer, unless its memory already has one: then it becomes
  // another name of that input (`tied`) or a view of it. Throws Error for two that overlap in part,
  // and for a parameter that is part of another.
  void declare(Session& session, graph::Input::Kind kind, const std::string& name,
               const at::Tensor& tensor);

  // Binds a tensor without memory of its own to a capture tensor (deferred construction).
  void bind(const at::Tensor& original, const at::Tensor& twin);

  // Returns the twin, or an undefined tensor where the tensor's memory has none or the tensor is no
  // view of the one that has it, of the same type.
  at::Tensor find(const at::Tensor& original) const;

  // Returns whether the tensor has a twin or shares memory with a tensor whose values may change
  // after the capture.
  bool have_memory_of(const at::Tensor& tensor) const;

  // Returns the twin; a tensor that has none becomes a constant of the graph.
  at::Tensor get(Session& session, const at::Tensor& original);

  // Returns the CPU tensor that `bind` gave this twin, or an undefined tensor.
  at::Tensor original_of(const at::Tensor& twin) const;

  // Marks memory that was allocated during the session: writing to it is no side effect.
  void mark_local(const at::Tensor& tensor);
  bool is_local(const at::Tensor& tensor) const;

  struct Base {
    at::Tensor original;
    at::Tensor twin;
    std::string name;  // "" for constants
    graph::Input::Kind kind = graph::Input::Kind::constant;
    graph::ValueId input;
    uint32_t version = 0;  // of a constant's memory when it was made
    c10::Storage storage;  // held, so that its address is not used again
    // Of a trainable parameter, which has its twin's gradient accumulator until this is called, so
    // that a model can call autograd::grad for its own parameter.
    std::function<void()> restore_accumulator = {};

    // Returns whether it is part of a tensor that the model has not registered.
    bool is_constant() const {
      return name.empty() && kind == graph::Input::Kind::constant && input.defined();
    }
  };
  const std::vector<Base>& bases() const { return bases_; }

  std::vector<std::pair<std::string, std::string>> tied;  // (another name, first name)

 private:
  const Base* base_of(const at::Tensor& tensor) const;
  void add(Base base);

  std::vector<Base> bases_;
  std::unordered_multimap<const c10::StorageImpl*, size_t> by_storage_;
  std::unordered_map<const c10::TensorImpl*, size_t> by_twin_;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> local_;
};

}  // namespace perigee::tracing
