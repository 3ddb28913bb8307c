#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "graph/graph.h"
#include "graph/identity/canonical.h"
#include "graph/text/text.h"

namespace perigee::graph {
namespace {

constexpr size_t most_lines = 10;

// Truncates a long line.
std::string shorten(std::string text) {
  constexpr size_t longest = 160;
  if (text.size() > longest) text = text.substr(0, longest - 3) + "...";
  return text;
}

class Difference {
 public:
  Difference(Graph a, Graph b) : a_(renumber(std::move(a))), b_(renumber(std::move(b))) {}

  std::string text() {
    compare(items(a_.scopes,
                  [](const Scope& s) {
                    return std::pair{"scope " + s.path, s.type};
                  }),
            items(b_.scopes, [](const Scope& s) {
              return std::pair{"scope " + s.path, s.type};
            }));
    compare(inputs(a_), inputs(b_));
    nodes();
    compare(outputs(a_), outputs(b_));
    if (lines_.empty()) lines_.push_back("the same parts in another order");
    std::string out;
    for (size_t i = 0; i < lines_.size(); ++i) {
      if (i + 1 == most_lines && lines_.size() > most_lines) {
        return out + fmt::format("... and {} more\n", lines_.size() - i);
      }
      out += lines_[i] + "\n";
    }
    return out;
  }

 private:
  using Items = std::vector<std::pair<std::string, std::string>>;

  template <class T, class F>
  static Items items(const std::vector<T>& list, F describe) {
    Items out;
    for (const auto& item : list) out.push_back(describe(item));
    return out;
  }

  static std::string type(const Graph& graph, ValueId v) {
    std::string out{name_of(graph.type(v).dtype)};
    out += '[';
    for (auto size : graph.type(v).shape)
      out += (out.back() == '[' ? "" : ", ") + std::to_string(size);
    return out + ']';
  }

  static Items inputs(const Graph& graph) {
    return items(graph.inputs, [&](const Input& input) {
      auto text = type(graph, input.value);
      if (!input.trainable) text += " frozen";
      if (!input.batched) text += " unbatched";
      if (!input.data.empty()) text += " with bytes " + digest(input.data).substr(0, 8);
      return std::pair{fmt::format("{} {}", name_of(input.kind), input.name), text};
    });
  }

  static Items outputs(const Graph& graph) {
    const auto names = value_names(graph);
    return items(graph.outputs, [&](const Output& output) {
      auto value = output.value.defined() ? names[output.value.index] : "nothing";
      return std::pair{fmt::format("output {} {}", name_of(output.kind), output.name), value};
    });
  }

  void compare(const Items& a, const Items& b) {
    const std::map<std::string, std::string> in_a(a.begin(), a.end()), in_b(b.begin(), b.end());
    for (const auto& [name, text] : a) {
      const auto other = in_b.find(name);
      if (other == in_b.end()) {
        lines_.push_back(shorten(fmt::format("{}: {}, only in the first graph", name, text)));
      } else if (other->second != text) {
        lines_.push_back(shorten(fmt::format("{}: {} became {}", name, text, other->second)));
      }
    }
    for (const auto& [name, text] : b) {
      if (!in_a.contains(name)) {
        lines_.push_back(shorten(fmt::format("{}: {}, only in the second graph", name, text)));
      }
    }
  }

  void nodes() {
    if (a_.nodes.size() != b_.nodes.size()) {
      lines_.push_back(fmt::format("{} nodes became {}", a_.nodes.size(), b_.nodes.size()));
    }
    // Operands by name, so that one more input does not make every node differ.
    const auto names_a = value_names(a_), names_b = value_names(b_);
    for (size_t i = 0; i < std::min(a_.nodes.size(), b_.nodes.size()); ++i) {
      const auto in_a = print_named(a_, a_.nodes[i], names_a);
      const auto in_b = print_named(b_, b_.nodes[i], names_b);
      if (in_a == in_b) continue;
      lines_.push_back(fmt::format("the first node that differs is number {}", i));
      lines_.push_back("  first:  " + shorten(in_a));
      lines_.push_back("  second: " + shorten(in_b));
      return;
    }
  }

  Graph a_, b_;
  std::vector<std::string> lines_;
};

}  // namespace

std::string difference(const Graph& a, const Graph& b) {
  return structural_hash(a) == structural_hash(b) ? "" : Difference(a, b).text();
}

}  // namespace perigee::graph
