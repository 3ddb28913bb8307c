#include "capture/record/twins.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

#include "base/fail.h"
#include "capture/deferred.h"
#include "capture/device/tensor.h"
#include "capture/device/views.h"
#include "capture/record/session.h"

namespace perigee::tracing {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Pointers to nodes of autograd: of LibTorch 2.11 the first, of 2.15 the second.
template <class Node>
std::weak_ptr<Node> weak(const std::shared_ptr<Node>& node) {
  return node;
}
template <class Node>
c10::weak_intrusive_ptr<Node> weak(const c10::intrusive_ptr<Node>& node) {
  return c10::weak_intrusive_ptr<Node>(node);
}

// Returns a number that changes where the tensor's memory is written.
uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

struct Bytes {
  int64_t begin, end;
};

// Returns the part of its storage from a tensor's first to its last element.
Bytes bytes_of(const at::Tensor& tensor) {
  const auto geometry = Geometry::of(tensor);
  const auto size = static_cast<int64_t>(tensor.itemsize());
  return {geometry.offset * size, (geometry.offset + geometry.span()) * size};
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto x = bytes_of(a), y = bytes_of(b);
  return x.begin < y.end && y.begin < x.end;
}

// Returns whether tensors of the same memory read its bits as the same numbers.
bool same_numbers(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

}  // namespace

Twins::~Twins() {
  for (const auto& base : bases_) {
    if (base.restore_accumulator) base.restore_accumulator();
  }
}

void Twins::add(Base base) {
  base.storage = base.original.storage();
  by_storage_.emplace(base.storage.unsafeGetStorageImpl(), bases_.size());
  by_twin_.emplace(base.twin.unsafeGetTensorImpl(), bases_.size());
  bases_.push_back(std::move(base));
}

// Parameters are declared first, so that a buffer that is part of one finds it.
void Twins::declare(Session& session, graph::Input::Kind kind, const std::string& name,
                    const at::Tensor& tensor) {
  const auto geometry = Geometry::of(tensor);
  const auto [begin, end] = by_storage_.equal_range(storage_of(tensor));
  for (auto it = begin; it != end; ++it) {
    const auto& base = bases_[it->second];
    const auto other = Geometry::of(base.original);
    if (geometry == other && same_numbers(tensor, base.original)) {
      tied.emplace_back(name, base.name);
      return;
    }
    if (!overlap(tensor, base.original)) continue;
    if (kind == graph::Input::Kind::parameter || !find(tensor).defined()) {
      fail("capture",
           "\"{}\" and \"{}\" share memory, which two {} can only do as the same tensor or as a "
           "buffer that is a view of the other with its type, but got shapes {}[{}] and {}[{}]",
           base.name, name, "parameters or buffers", c10::toString(base.original.scalar_type()),
           fmt::join(other.sizes, ", "), c10::toString(tensor.scalar_type()),
           fmt::join(geometry.sizes, ", "));
    }
    return;
  }
  Base base{tensor, session.input(kind, name, tensor), name, kind};
  base.input = session.value_of(base.twin);
  if (kind == graph::Input::Kind::parameter) {
    session.graph.inputs.back().trainable = tensor.requires_grad();
    base.twin.requires_grad_(tensor.requires_grad());
  }
  if (base.twin.requires_grad() && tensor.is_leaf()) {
    namespace autograd = torch::autograd::impl;
    const auto own = weak(autograd::try_get_grad_accumulator(tensor));
    const auto leaf = autograd::grad_accumulator(base.twin);
    autograd::set_grad_accumulator(tensor, weak(leaf));
    // It keeps the twin's accumulator.
    base.restore_accumulator = [tensor, leaf, own] { autograd::set_grad_accumulator(tensor, own); };
  }
  add(std::move(base));
}

void Twins::bind(const at::Tensor& original, const at::Tensor& twin) { add({original, twin, ""}); }

const Twins::Base* Twins::base_of(const at::Tensor& tensor) const {
  const auto [begin, end] = by_storage_.equal_range(storage_of(tensor));
  if (begin == end) return nullptr;
  const auto& first = bases_[begin->second];
  if (std::next(begin) == end && !first.is_constant()) return &first;
  for (auto it = begin; it != end; ++it) {
    const auto& base = bases_[it->second];
    // Memory that was written since the constant was made has other numbers now.
    if (base.is_constant() && version_of(base.original) != base.version) continue;
    if (overlap(tensor, base.original)) return &base;
  }
  return nullptr;
}

at::Tensor Twins::find(const at::Tensor& original) const {
  const Base* base = base_of(original);
  if (!base) return {};
  const bool same_tensor = base->original.is_same(original);
  if (same_tensor) return base->twin;
  if (base->original.dtype() != original.dtype()) return {};
  auto twin = base->twin;
  if (twin.requires_grad() && !original.requires_grad()) twin = twin.detach();
  const auto from = Geometry::of(base->original), to = Geometry::of(original);
  if (from != to) twin = strided_view(twin, from, to);
  if (!twin.defined()) return twin;
  if (base->original.is_conj() != original.is_conj()) twin = twin.conj();
  if (base->original.is_neg() != original.is_neg()) twin = twin._neg_view();
  return twin;
}

bool Twins::have_memory_of(const at::Tensor& tensor) const {
  const Base* base = base_of(tensor);
  if (!base) return false;
  return find(tensor).defined() || (!base->is_constant() && overlap(tensor, base->original));
}

at::Tensor Twins::get(Session& session, const at::Tensor& original) {
  if (auto found = find(original); found.defined()) return found;
  if (base_of(original)) {
    fail("capture",
         "a tensor that shares memory with another must be a view of it with its type (make others "
         "in the forward pass), but got {}[{}] with strides [{}]{}",
         c10::toString(original.scalar_type()), fmt::join(original.sizes(), ", "),
         fmt::join(original.strides(), ", "), session.where());
  }
  const auto value = is_deferred(original) ? inline_deferred(session, original)
                                           : session.constant(original);
  Base base{original, session.wrap(value, meta_tensor(original.sizes(), original.scalar_type())),
            ""};
  base.input = value;
  base.version = version_of(original);
  add(base);
  return base.twin;
}

at::Tensor Twins::original_of(const at::Tensor& twin) const {
  const auto found = by_twin_.find(twin.unsafeGetTensorImpl());
  return found == by_twin_.end() ? at::Tensor() : bases_[found->second].original;
}

void Twins::mark_local(const at::Tensor& tensor) {
  if (const auto* storage = storage_of(tensor)) local_.try_emplace(storage, tensor);
}

bool Twins::is_local(const at::Tensor& tensor) const { return local_.contains(storage_of(tensor)); }

}  // namespace perigee::tracing
