// An exported model's graph in the form in which it is replayed. Its values, tensors and sizes, are
// numbered: each has a slot.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "capture/exported/autocast.h"

namespace perigee::exported {

struct Slot {
  int32_t index = -1;  // below 0: the value does not exist
};

// A size that is a multiple of the number of samples (samples/generalise.h).
struct SampleSize {
  int64_t multiple = 1;
};

using Item = std::variant<c10::IValue, Slot, SampleSize>;  // a constant, a value or a size

// An argument by its name in the op's schema.
struct Argument {
  std::string name;
  bool list = false;  // of the items; otherwise there is one
  std::vector<Item> items;
};

// A function of sizes and other numbers, which is evaluated and not recorded (numbers.h).
using NumberFunction = c10::IValue (*)(std::span<const c10::IValue> arguments);

struct Call {
  std::string target;  // the archive's name of the op: "torch.ops.aten.linear.default"
  std::string scope;   // dotted path of the module
  std::optional<c10::OperatorHandle> op;  // exactly one of these two
  NumberFunction function = nullptr;
  std::vector<Argument> arguments;   // of an op by name, of a function in order
  std::vector<Slot> outputs;         // lists flattened
  bool gradients = true;             // false: within torch.no_grad
  std::optional<Autocast> autocast;  // the innermost region of torch.autocast
};

struct Input {
  enum class Kind { batch, parameter, buffer, constant };
  Kind kind = Kind::batch;
  std::string name;  // of the argument of `forward`, or of the tensor
  Slot slot;
  std::vector<int64_t> sizes;  // -1: dim 0 of a batch, the samples of any number
  at::ScalarType type = at::kFloat;
};

// A result of the model, or a buffer's new value.
struct Output {
  std::string name;
  Slot slot;
};

struct Program {
  std::vector<Input> inputs;
  std::vector<Call> calls;
  std::vector<Output> results;                 // named as by outcome.h
  std::vector<Output> buffers;                 // new values
  std::map<std::string, std::string> modules;  // type by dotted path: "Linear"
  int32_t slots = 0;
  int64_t least_samples = 0, most_samples = -1;  // of a dynamic batch; -1: no limit
  // The sizes that values have in the export, by slot; -1: computed; empty for numbers.
  std::vector<std::vector<int64_t>> sizes;
};

}  // namespace perigee::exported
