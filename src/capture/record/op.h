// The recorder's information about an op, looked up once.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace perigee::tracing {

class Session;

// Replaces every defined tensor in the value by f(tensor): a tensor, a list, a list of optionals.
template <class F>
void each_tensor(c10::IValue& value, F f) {
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return;
    auto replaced = f(value.toTensor());
    if (!replaced.is_same(value.toTensor())) value = std::move(replaced);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? f(tensor) : tensor);
    }
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec()) {
      list.push_back(tensor && tensor->defined() ? std::optional(f(*tensor)) : tensor);
    }
    value = std::move(list);
  }
}

// Arguments of one recorded call. Tensors are those of the capture device, or CPU tensors that
// LibTorch made of numbers.
class Values {
 public:
  Values(const c10::FunctionSchema& schema, std::span<const c10::IValue> values)
      : schema_(schema), values_(values) {}

  const c10::IValue& operator[](size_t i) const { return values_[i]; }
  size_t size() const { return values_.size(); }
  const c10::FunctionSchema& schema() const { return schema_; }

  at::Tensor tensor(size_t i) const;  // undefined where it is None
  std::vector<int64_t> ints(size_t i) const { return values_[i].toIntVector(); }
  int64_t integer(size_t i) const { return values_[i].toInt(); }
  bool boolean(size_t i) const { return values_[i].toBool(); }
  double number(size_t i) const { return values_[i].toScalar().toDouble(); }

 private:
  const c10::FunctionSchema& schema_;
  std::span<const c10::IValue> values_;
};

// Returns tensors on the meta device, shaped as the op's results (lists flattened); undefined
// where a result does not exist. The tensors in `values` are on the meta device.
using Shape = std::vector<at::Tensor> (*)(const Values& values);

// The call as it happened: `results` are meta tensors as Shape gives them.
struct Recorded {
  const struct Op& op;
  Values values;
  std::vector<at::Tensor> results;
};

// Writes the call to the session's graph in canonical form. Returns one value for each result.
using Canonical = std::vector<graph::ValueId> (*)(Session& session, const Recorded& call);

struct Op {
  std::string name;  // "aten::add.Tensor"
  const c10::OperatorHandle handle;
  Shape shape = nullptr;          // or by its Meta kernel, or, where pointwise, by broadcasting
  Canonical canonical = nullptr;  // or under its own name
  bool has_meta = false, pointwise = false, random = false;
  const char* refusal = nullptr;  // why it cannot be in a graph

  explicit Op(const c10::OperatorHandle& handle);
};

// Returns the op's information; created on first use.
const Op& op_of(const c10::OperatorHandle& handle);

// Tables, by op name; nullptr where there is no entry.
Shape find_shape(const std::string& name);          // shapes.cc
Canonical find_canonical(const std::string& name);  // canonical.cc
Canonical find_random(const std::string& name);     // random.cc
const char* find_refusal(const std::string& name);  // refused.cc

// Returns the results' shapes. Throws Error for an op without a shape function.
std::vector<at::Tensor> infer_shapes(const Session& session, const Op& op, const Values& values);

// Writes the call under its own name, with canonical arguments.
std::vector<graph::ValueId> emit_call(Session& session, const Recorded& call);

}  // namespace perigee::tracing
