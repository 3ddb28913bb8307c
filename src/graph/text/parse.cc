#include <charconv>

#include "base/fail.h"
#include "base/text/base64.h"
#include "graph/graph.h"
#include "graph/text/text.h"

namespace perigee::graph {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Graph parse() {
    next_line();
    if (line_ != header) error("the first line is \"{}\"", header);
    while (next_line()) {
      if (line_.empty()) continue;
      if (accept("scope ")) {
        scope();
      } else if (accept("input ")) {
        input();
      } else if (accept("output ")) {
        output();
      } else if (accept("value ")) {
        define(-1, 0);
      } else {
        node();
      }
      if (at_ != line_.size()) error("nothing more belongs on this line");
    }
    finish();
    return std::move(graph_);
  }

 private:
  template <class... Args>
  [[noreturn]] void error(fmt::format_string<Args...> format, Args&&... args) const {
    auto got = line_.substr(std::min(at_, line_.size()), 40);
    fail("graph", "line {}: {}, but got \"{}\"", line_number_,
         fmt::format(format, std::forward<Args>(args)...), got);
  }

  bool next_line() {
    if (position_ >= text_.size()) {
      line_ = {};
      at_ = 0;
      return false;
    }
    const size_t end = std::min(text_.find('\n', position_), text_.size());
    line_ = text_.substr(position_, end - position_);
    position_ = end + 1;
    at_ = 0;
    ++line_number_;
    return true;
  }

  bool accept(std::string_view token) {
    if (line_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!accept(token)) error("\"{}\" is expected", token);
  }

  std::string_view letters() {
    const size_t start = at_;
    while (at_ < line_.size() && is_word_character(line_[at_])) ++at_;
    return line_.substr(start, at_ - start);
  }

  std::string word() {
    if (at_ < line_.size() && line_[at_] == '"') return quoted();
    const auto found = letters();
    if (found.empty()) error("a name is expected");
    return std::string(found);
  }

  std::string quoted() {
    expect("\"");
    std::string out;
    for (;;) {
      if (at_ >= line_.size()) error("a string ends with '\"'");
      const char c = line_[at_++];
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (accept("n")) {
        out += '\n';
      } else if (accept("t")) {
        out += '\t';
      } else if (accept("\"")) {
        out += '"';
      } else if (accept("\\")) {
        out += '\\';
      } else if (accept("x")) {
        unsigned char byte = 0;
        const auto digits = line_.substr(at_, 2);
        const auto [end, code] = std::from_chars(digits.begin(), digits.end(), byte, 16);
        if (code != std::errc() || end != digits.begin() + 2) error("\\x has two digits");
        out += static_cast<char>(byte);
        at_ += 2;
      } else {
        error("an escape is one of \\n \\t \\\" \\\\ \\x");
      }
    }
  }

  template <class T>
  T number() {
    T value{};
    const char* begin = line_.data() + at_;
    const auto [end, code] = std::from_chars(begin, line_.data() + line_.size(), value);
    if (code != std::errc()) error("a number is expected");
    at_ += end - begin;
    return value;
  }

  template <class Kind>
  Kind kind(Kind last) {
    for (int i = 0; i <= static_cast<int>(last); ++i) {
      const auto name = name_of(static_cast<Kind>(i));
      if (accept(name)) {
        expect(" ");
        return static_cast<Kind>(i);
      }
    }
    error("a kind of input or output is expected");
  }

  ValueId value() {
    expect("%");
    if (accept("_")) return {};
    const auto index = number<int32_t>();
    // Every value is defined somewhere in the text, so that a longer index cannot be right.
    if (index < 0 || static_cast<size_t>(index) > text_.size()) error("no value has this number");
    last_use_ = std::max(last_use_, {index, line_number_});
    return {index};
  }

  // `%3: float32[4, 8]` or `%_`.
  ValueId define(NodeId producer, int32_t result) {
    const ValueId id = value();
    if (!id.defined()) return id;
    expect(": ");
    const auto dtype = dtype_of(letters());
    if (!dtype) error("an element type and a shape are expected");
    expect("[");
    TensorType type{*dtype, {}};
    while (!accept("]")) {
      if (!type.shape.empty()) expect(", ");
      type.shape.push_back(number<int64_t>());
    }
    if (static_cast<size_t>(id.index) >= graph_.values.size()) {
      graph_.values.resize(id.index + 1);
      defined_.resize(id.index + 1);
    }
    if (defined_[id.index]) error("%{} is defined once", id.index);
    defined_[id.index] = true;
    graph_.values[id.index] = {std::move(type), producer, result};
    return id;
  }

  void scope() {
    Scope scope;
    scope.path = word();
    expect(" ");
    scope.type = word();
    graph_.scopes.push_back(std::move(scope));
  }

  void input() {
    Input input;
    input.kind = kind(Input::Kind::constant);
    input.value = define(-1, 0);
    expect(" = ");
    input.name = word();
    input.trainable = !accept(" frozen");
    input.batched = !accept(" unbatched");
    if (accept(" base64:")) {
      auto bytes = base64_decode(line_.substr(at_));
      if (!bytes) error("bytes in base64 are expected");
      input.data = std::move(*bytes);
      at_ = line_.size();
    }
    graph_.inputs.push_back(std::move(input));
  }

  void output() {
    Output output;
    output.kind = kind(Output::Kind::result);
    output.value = value();
    expect(" = ");
    output.name = word();
    graph_.outputs.push_back(std::move(output));
  }

  void node() {
    Node node;
    const auto id = static_cast<NodeId>(graph_.nodes.size());
    if (line_[0] == '%') {
      do {
        node.outputs.push_back(define(id, static_cast<int32_t>(node.outputs.size())));
      } while (accept(", "));
      expect(" = ");
    }
    node.op = word();
    expect("(");
    while (!accept(")")) {
      if (!node.args.empty()) expect(", ");
      auto name = word();
      expect("=");
      node.args.emplace_back(std::move(name), argument());
    }
    expect("   @");
    if (!accept(" ")) {
      node.scope = word();
      expect(" ");
    }
    if (!accept("forward")) {
      expect("backward");
      node.phase = Phase::backward;
    }
    if (accept(" of ")) {
      if (accept("#")) {
        node.forward_node = number<int32_t>();
      } else {
        forward_.push_back({id, value(), line_number_});
      }
    }
    graph_.nodes.push_back(std::move(node));
  }

  Arg argument() {
    if (at_ >= line_.size()) error("an argument is expected");
    if (line_[at_] == '"') return quoted();
    if (line_[at_] == '[') return list();
    return item();
  }

  // An element of a list, or None.
  Arg item() { return at_ < line_.size() && line_[at_] == '%' ? Arg(value()) : scalar(); }

  // None, a bool, a dtype or a number.
  Arg scalar() {
    const size_t start = at_;
    const auto text = letters();
    if (text == "None") return std::monostate{};
    if (text == "true") return true;
    if (text == "false") return false;
    if (const auto dtype = dtype_of(text)) return *dtype;
    at_ = start;
    if (text.find_first_of(".ein") == std::string_view::npos) return number<int64_t>();
    return number<double>();
  }

  Arg list() {
    expect("[");
    if (accept("]")) {
      if (accept(":value")) return std::vector<ValueId>{};
      if (accept(":double")) return std::vector<double>{};
      if (accept(":bool")) return std::vector<bool>{};
      return std::vector<int64_t>{};
    }
    const Arg first = item();
    if (auto* v = std::get_if<ValueId>(&first)) return rest(*v);
    if (auto* v = std::get_if<bool>(&first)) return rest(*v);
    if (auto* v = std::get_if<int64_t>(&first)) return rest(*v);
    if (auto* v = std::get_if<double>(&first)) return rest(*v);
    error("a list holds values, bools, ints or doubles");
  }

  template <class T>
  std::vector<T> rest(T first) {
    std::vector<T> items{first};
    while (!accept("]")) {
      expect(", ");
      const Arg next = item();
      if (!std::holds_alternative<T>(next)) error("a list holds one type");
      items.push_back(std::get<T>(next));
    }
    return items;
  }

  void finish() {
    for (size_t i = 0; i < defined_.size(); ++i) {
      if (!defined_[i]) fail("graph", "every value is defined, but nothing defines %{}", i);
    }
    if (last_use_.index >= static_cast<int32_t>(defined_.size())) {
      fail("graph", "line {}: every value is defined, but nothing defines %{}", last_use_.line,
           last_use_.index);
    }
    for (const auto& [id, value, line] : forward_) {
      if (!value.defined() || graph_.values[value.index].producer < 0) {
        fail("graph", "line {}: `backward of` names a node's result, but got %{}", line,
             value.index);
      }
      graph_.nodes[id].forward_node = graph_.values[value.index].producer;
    }
  }

  struct Use {
    int32_t index = -1;
    int line = 0;
    auto operator<=>(const Use&) const = default;
  };
  struct Forward {
    NodeId node;
    ValueId value;
    int line;
  };

  std::string_view text_;
  size_t position_ = 0;
  std::string_view line_;
  size_t at_ = 0;
  int line_number_ = 0;
  Graph graph_;
  std::vector<bool> defined_;
  Use last_use_;
  std::vector<Forward> forward_;
};

}  // namespace

Graph parse(std::string_view text) { return Parser(text).parse(); }

}  // namespace perigee::graph
