#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/text/base64.h"
#include "graph/graph.h"
#include "graph/text/text.h"

namespace perigee::graph {
namespace {

class Printer {
 public:
  // With `names`, values are written by name.
  explicit Printer(const Graph& graph, const std::vector<std::string>* names = nullptr)
      : graph_(graph), names_(names) {}

  void graph() {
    out_ += header;
    out_ += '\n';
    for (const auto& scope : graph_.scopes) {
      out_ += "scope ";
      word(scope.path);
      out_ += ' ';
      word(scope.type);
      out_ += '\n';
    }
    for (const auto& input : graph_.inputs) {
      out_ += "input ";
      out_ += name_of(input.kind);
      out_ += ' ';
      typed(input.value);
      out_ += " = ";
      word(input.name);
      if (!input.trainable) out_ += " frozen";
      if (!input.batched) out_ += " unbatched";
      if (!input.data.empty()) out_ += " base64:" + base64_encode(input.data);
      out_ += '\n';
    }
    dangling();
    for (const auto& n : graph_.nodes) {
      node(n);
      out_ += '\n';
    }
    for (const auto& output : graph_.outputs) {
      out_ += "output ";
      out_ += name_of(output.kind);
      out_ += ' ';
      value(output.value);
      out_ += " = ";
      word(output.name);
      out_ += '\n';
    }
  }

  void node(const Node& node) {
    const char* separator = "";
    for (auto output : node.outputs) {
      out_ += separator;
      typed(output);
      separator = ", ";
    }
    if (!node.outputs.empty()) out_ += " = ";
    word(node.op);
    out_ += '(';
    separator = "";
    for (const auto& [name, arg] : node.args) {
      out_ += separator;
      word(name);
      out_ += '=';
      std::visit([&](const auto& a) { argument(a); }, arg);
      separator = ", ";
    }
    out_ += ")   @";
    if (!node.scope.empty()) word(node.scope);
    out_ += node.phase == Phase::forward ? " forward" : " backward";
    if (node.forward_node >= 0) {
      out_ += " of ";
      forward_node(node.forward_node);
    }
  }

  std::string take() { return std::move(out_); }

 private:
  // Values that neither an input nor a node makes.
  void dangling() {
    std::vector<bool> made(graph_.values.size());
    const auto mark = [&](ValueId v) {
      if (v.defined() && v.index < static_cast<int32_t>(made.size())) made[v.index] = true;
    };
    for (const auto& input : graph_.inputs) mark(input.value);
    for (const auto& node : graph_.nodes) {
      for (auto output : node.outputs) mark(output);
    }
    for (int32_t i = 0; i < static_cast<int32_t>(made.size()); ++i) {
      if (made[i]) continue;
      out_ += "value ";
      typed({i});
      out_ += '\n';
    }
  }

  // A node is named by its first result, or by its position where it has none.
  void forward_node(NodeId id) {
    if (id < static_cast<NodeId>(graph_.nodes.size())) {
      for (auto output : graph_.nodes[id].outputs) {
        if (output.defined()) return value(output);
      }
    }
    out_ += '#';
    number(id);
  }

  void number(int64_t n) {
    const fmt::format_int text(n);
    out_.append(text.data(), text.size());
  }

  void value(ValueId v) {
    out_ += '%';
    if (!v.defined()) {
      out_ += '_';
    } else if (names_) {
      out_ += (*names_)[v.index];
    } else {
      number(v.index);
    }
  }

  void typed(ValueId v) {
    value(v);
    if (!v.defined()) return;
    out_ += ": ";
    if (v.index >= static_cast<int32_t>(graph_.values.size())) {
      out_ += '?';
      return;
    }
    const auto& type = graph_.type(v);
    out_ += name_of(type.dtype);
    list(type.shape, "");
  }

  void word(std::string_view text) {
    if (!is_word(text)) return quoted(text);
    out_ += text;
  }

  void quoted(std::string_view text) {
    out_ += '"';
    for (unsigned char c : text) {
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += static_cast<char>(c);
      } else if (c == '\n') {
        out_ += "\\n";
      } else if (c == '\t') {
        out_ += "\\t";
      } else if (c < 0x20 || c == 0x7f) {
        fmt::format_to(std::back_inserter(out_), "\\x{:02x}", c);
      } else {
        out_ += static_cast<char>(c);
      }
    }
    out_ += '"';
  }

  void argument(std::monostate) { out_ += "None"; }
  void argument(ValueId v) { value(v); }
  void argument(bool b) { out_ += b ? "true" : "false"; }
  void argument(int64_t n) { number(n); }
  void argument(const std::string& text) { quoted(text); }
  void argument(DType dtype) { out_ += name_of(dtype); }
  void argument(const std::vector<ValueId>& v) { list(v, ":value"); }
  void argument(const std::vector<int64_t>& v) { list(v, ""); }
  void argument(const std::vector<double>& v) { list(v, ":double"); }
  void argument(const std::vector<bool>& v) { list(v, ":bool"); }

  // The shortest digits that read back as the same number, always recognisable as a double.
  void argument(double d) {
    if (std::isnan(d)) {
      out_ += "nan";
      return;
    }
    const size_t start = out_.size();
    fmt::format_to(std::back_inserter(out_), "{}", d);
    if (out_.find_first_of(".ein", start) == std::string::npos) out_ += ".0";
  }

  template <class T>
  void list(const std::vector<T>& items, std::string_view type_of_empty) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += ", ";
      argument(static_cast<T>(items[i]));
    }
    out_ += ']';
    if (items.empty()) out_ += type_of_empty;
  }

  const Graph& graph_;
  const std::vector<std::string>* names_;
  std::string out_;
};

}  // namespace

std::string print(const Graph& graph) {
  Printer printer(graph);
  printer.graph();
  return printer.take();
}

std::string print(const Graph& graph, const Node& node) {
  Printer printer(graph);
  printer.node(node);
  return printer.take();
}

std::string print_named(const Graph& graph, const Node& node,
                        const std::vector<std::string>& names) {
  Printer printer(graph, &names);
  printer.node(node);
  return printer.take();
}

}  // namespace perigee::graph
