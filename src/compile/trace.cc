#include "compile/trace.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>
#include <type_traits>

namespace perigee::compile {

namespace {

void append(std::string& text, int64_t number) {
  fmt::format_to(std::back_inserter(text), "{}", number);
}

template <class T>
void append_list(std::string& text, const std::vector<T>& list) {
  text += '[';
  for (size_t k = 0; k < list.size(); ++k) {
    if (k) text += ',';
    fmt::format_to(std::back_inserter(text), "{}", list[k]);
  }
  text += ']';
}

void append(std::string& text, const graph::TensorType& type) {
  text += graph::name_of(type.dtype);
  append_list(text, type.shape);
}

void append(std::string& text, const graph::Arg& arg) {
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          text += "None";
        } else if constexpr (std::is_same_v<T, graph::ValueId>) {
          text += '%';
          append(text, int64_t{value.index});
        } else if constexpr (std::is_same_v<T, std::vector<graph::ValueId>>) {
          text += '[';
          for (auto v : value) {
            text += '%';
            append(text, int64_t{v.index});
          }
          text += ']';
        } else if constexpr (std::is_same_v<T, double>) {
          fmt::format_to(std::back_inserter(text), "{:.17g}d", value);
        } else if constexpr (std::is_same_v<T, std::string>) {
          fmt::format_to(std::back_inserter(text), "\"{}\"", value);
        } else if constexpr (std::is_same_v<T, graph::DType>) {
          text += graph::name_of(value);
        } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
          for (bool b : value) text += b ? '1' : '0';
        } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t>) {
          fmt::format_to(std::back_inserter(text), "{}", value);
        } else {
          append_list(text, value);
        }
      },
      arg);
}

// Returns whether an argument decides only which random numbers are drawn, not allocations.
bool is_irrelevant(std::string_view name) {
  return name == "key" || name == "random_key" || name == "global" || name == "begin" ||
         name == "batch_dim" || name == "batch_run";
}

}  // namespace

std::string key(const OpInstance& instance) {
  std::string text = instance.op;
  text += '(';
  for (const auto& [name, arg] : instance.args) {
    if (is_irrelevant(name)) continue;
    text += name;
    text += '=';
    append(text, arg);
    text += ' ';
  }
  text += ')';
  for (size_t k = 0; k < instance.operands.size(); ++k) {
    append(text, instance.operands[k]);
    append_list(text, instance.operand_strides[k]);
    text += ' ';
  }
  text += "->";
  for (const auto& type : instance.outputs) {
    if (type) {
      append(text, *type);
    } else {
      text += '_';
    }
    text += ' ';
  }
  return text;
}

}  // namespace perigee::compile
