#include "exec/ops/op.h"

#include "base/fail.h"

namespace perigee::exec {

Op op_of(const graph::Graph& graph, const graph::Node& node) {
  Op op{.name = node.op, .args = node.args, .outputs = {}};
  int32_t next = 0;
  const auto count = [&](graph::ValueId& v) {
    if (v.defined()) v.index = next++;
  };
  for (auto& [name, arg] : op.args) {
    if (auto* v = std::get_if<graph::ValueId>(&arg)) {
      count(*v);
    } else if (auto* list = std::get_if<std::vector<graph::ValueId>>(&arg)) {
      for (auto& v : *list) count(v);
    }
  }
  for (auto v : node.outputs) {
    op.outputs.push_back(v.defined() ? std::optional(graph.type(v)) : std::nullopt);
  }
  return op;
}

Op op_of(const compile::OpInstance& instance) {
  Op op{.name = instance.op, .args = instance.args, .outputs = {}};
  op.outputs.assign(instance.outputs.begin(), instance.outputs.end());
  return op;
}

const graph::Arg* Arguments::find(std::string_view name) const {
  for (const auto& [key, arg] : op_.args) {
    if (key == name) return std::holds_alternative<std::monostate>(arg) ? nullptr : &arg;
  }
  return nullptr;
}

template <class T>
T Arguments::required(std::string_view name, const std::optional<T>& otherwise) const {
  if (!otherwise) fail("exec", "{} needs the argument \"{}\", but got none", op_.name, name);
  return *otherwise;
}

namespace {

[[noreturn]] void wrong_type(const std::string& op, std::string_view name,
                             std::string_view wanted) {
  fail("exec", "argument \"{}\" of {} must be {}, but got another type", name, op, wanted);
}

}  // namespace

int Arguments::optional_operand(std::string_view name) const {
  const auto* arg = find(name);
  if (!arg) return -1;
  if (const auto* v = std::get_if<graph::ValueId>(arg)) return v->index;
  wrong_type(op_.name, name, "a tensor");
}

int Arguments::operand(std::string_view name) const {
  const int position = optional_operand(name);
  return position >= 0 ? position : required<int>(name, std::nullopt);
}

std::vector<int> Arguments::operands(std::string_view name) const {
  const auto* arg = find(name);
  if (!arg) return {};
  const auto* list = std::get_if<std::vector<graph::ValueId>>(arg);
  if (!list) wrong_type(op_.name, name, "a list of tensors");
  std::vector<int> positions;
  for (auto v : *list) positions.push_back(v.index);
  return positions;
}

double Arguments::number(std::string_view name, std::optional<double> otherwise) const {
  const auto* arg = find(name);
  if (!arg) return required(name, otherwise);
  if (const auto* v = std::get_if<double>(arg)) return *v;
  if (const auto* v = std::get_if<int64_t>(arg)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<bool>(arg)) return *v ? 1 : 0;
  wrong_type(op_.name, name, "a number");
}

int64_t Arguments::integer(std::string_view name, std::optional<int64_t> otherwise) const {
  const auto* arg = find(name);
  if (!arg) return required(name, otherwise);
  if (const auto* v = std::get_if<int64_t>(arg)) return *v;
  if (const auto* v = std::get_if<bool>(arg)) return *v ? 1 : 0;
  wrong_type(op_.name, name, "an integer");
}

bool Arguments::flag(std::string_view name, std::optional<bool> otherwise) const {
  const auto* arg = find(name);
  if (!arg) return required(name, otherwise);
  if (const auto* v = std::get_if<bool>(arg)) return *v;
  if (const auto* v = std::get_if<int64_t>(arg)) return *v != 0;
  wrong_type(op_.name, name, "a bool");
}

std::string Arguments::text(std::string_view name, std::optional<std::string> otherwise) const {
  const auto* arg = find(name);
  if (!arg) return required(name, otherwise);
  if (const auto* v = std::get_if<std::string>(arg)) return *v;
  wrong_type(op_.name, name, "a string");
}

std::vector<int64_t> Arguments::integers(std::string_view name) const {
  const auto* arg = find(name);
  if (!arg) return {};
  if (const auto* v = std::get_if<std::vector<int64_t>>(arg)) return *v;
  wrong_type(op_.name, name, "a list of integers");
}

const graph::TensorType& Arguments::type(size_t output) const {
  if (!wanted(output)) {
    fail("exec", "{} needs the type of its result {}, but got none", op_.name, output);
  }
  return *op_.outputs[output];
}

}  // namespace perigee::exec
