#include <algorithm>

#include "base/error.h"
#include "text/jinja/syntax/parser.h"

namespace perigee::text::jinja {
namespace {

constexpr size_t kDeepestBlock = 60;

class StatementParser {
 public:
  explicit StatementParser(std::string_view source) : in_(tokens_of(source)) {}

  Parsed all() {
    parsed_.body = body({});
    return std::move(parsed_);
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  StatementPtr make(Statement::Kind kind) const {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->line = in_.line();
    return made;
  }

  void deeper() {
    if (++open_ <= kDeepestBlock) return;
    throw PlacedRefusal(
        in_.line(), fmt::format("blocks must be nested at most {} deep, but are", kDeepestBlock));
  }

  // Reads statements up to a tag of one of these names, whose "{%" it reads.
  Body body(Ends ends) {
    deeper();
    Body read;
    while (!in_.at(Token::Kind::end)) {
      if (in_.at(Token::Kind::data)) {
        auto made = make(Statement::Kind::text);
        made->text = in_.take().text;
        read.statements.push_back(std::move(made));
      } else if (in_.at(Token::Kind::print_begin)) {
        in_.take();
        auto made = make(Statement::Kind::print);
        made->expressions.push_back(expressions_.tuple());
        in_.expect(Token::Kind::print_end);
        read.statements.push_back(std::move(made));
      } else {
        in_.expect(Token::Kind::block_begin);
        if (in_.at_any_name(ends)) {
          --open_;
          return read;
        }
        read.statements.push_back(statement(ends));
        in_.expect(Token::Kind::block_end);
      }
    }
    if (ends.size() > 0) {
      in_.fail_expected(fmt::format("{{% {} %}}", std::data(ends)[ends.size() - 1]));
    }
    return read;
  }

  // The body of a tag whose end is next.
  Body inner(Ends ends) {
    in_.skip_symbol(":");  // as in Python
    in_.expect(Token::Kind::block_end);
    return body(ends);
  }

  StatementPtr statement(Ends ends) {
    const std::string name = in_.at(Token::Kind::name) ? in_.token().text : "";
    if (name == "if") return condition();
    if (name == "for") return loop();
    if (name == "set") return assignment();
    if (name == "macro") return macro();
    if (name == "generation") return generation();
    if (name == "break" || name == "continue") return jump(name);
    std::string expected = "a tag must be if, for, set, macro, generation, break or continue";
    if (ends.size() > 0) expected += fmt::format(", or {}", fmt::join(ends, ", "));
    throw PlacedRefusal(in_.line(),
                        fmt::format("{}, but is {}", expected,
                                    name.empty() ? "without a name" : "\"" + name + "\""));
  }

  StatementPtr condition() {
    auto made = make(Statement::Kind::condition);
    in_.take();
    for (;;) {
      made->expressions.push_back(expressions_.tuple(false));
      made->bodies.push_back(inner({"elif", "else", "endif"}));
      const auto end = in_.take().text;
      if (end == "elif") continue;
      if (end == "else") {
        made->bodies.push_back(inner({"endif"}));
        in_.take();
      }
      return made;
    }
  }

  StatementPtr loop() {
    auto made = make(Statement::Kind::loop);
    in_.take();
    made->target = target(false);
    if (!in_.skip_name("in")) in_.fail_expected("\"in\"");
    made->expressions.push_back(expressions_.tuple(false));
    made->expressions.push_back(in_.skip_name("if") ? expressions_.expression() : nullptr);
    if (in_.at_name("recursive")) in_.fail_expected("%} (recursive loops are not supported)");
    ++loops_;
    made->bodies.push_back(inner({"else", "endfor"}));
    --loops_;
    if (in_.take().text == "else") {
      made->bodies.push_back(inner({"endfor"}));
      in_.take();
    } else {
      made->bodies.emplace_back();
    }
    return made;
  }

  StatementPtr assignment() {
    auto made = make(Statement::Kind::assignment);
    in_.take();
    made->target = target(true);
    if (in_.skip_symbol("=")) {
      made->expressions.push_back(expressions_.tuple());
      return made;
    }
    made->kind = Statement::Kind::capture;
    made->expressions.push_back(expressions_.filters_of_nothing());
    made->bodies.push_back(inner({"endset"}));
    in_.take();
    return made;
  }

  StatementPtr macro() {
    auto made = make(Statement::Kind::macro);
    in_.take();
    made->text = in_.expect_name();
    in_.expect_symbol("(");
    for (bool first = true; !in_.at_symbol(")"); first = false) {
      if (!first) in_.expect_symbol(",");
      if (in_.at_symbol(")")) break;
      Parameter parameter;
      parameter.name = in_.expect_name();
      if (in_.skip_symbol("=")) {
        parameter.standard = expressions_.expression();
      } else if (!made->parameters.empty() && made->parameters.back().standard) {
        throw PlacedRefusal(in_.line(), "a parameter after one with a default must have one, too");
      }
      made->parameters.push_back(std::move(parameter));
    }
    in_.expect_symbol(")");
    const auto outer_loops = std::exchange(loops_, 0);
    const auto outer_names = std::exchange(expressions_.names_read, {});
    made->bodies.push_back(inner({"endmacro"}));
    in_.take();
    const auto reads = [&](const char* name) {
      return std::ranges::count(expressions_.names_read, name) > 0;
    };
    made->takes_others = reads("varargs");
    made->takes_named = reads("kwargs");
    loops_ = outer_loops;
    expressions_.names_read = outer_names;
    return made;
  }

  StatementPtr generation() {
    auto made = make(Statement::Kind::generation);
    in_.take();
    parsed_.marks_generation = true;
    const auto outer_loops = std::exchange(loops_, 0);
    made->bodies.push_back(inner({"endgeneration"}));
    in_.take();
    loops_ = outer_loops;
    return made;
  }

  StatementPtr jump(const std::string& name) {
    if (loops_ == 0) {
      throw PlacedRefusal(in_.line(), fmt::format("{} must be within a {{% for %}}", name));
    }
    auto made = make(name == "break" ? Statement::Kind::end_loop : Statement::Kind::next_item);
    in_.take();
    return made;
  }

  // Reads a name, an attribute of a namespace where `attributes`, or several with commas.
  Target target(bool attributes) {
    std::vector<Target> parts;
    bool several = false;
    do {
      if (!parts.empty() && !in_.at(Token::Kind::name) && !in_.at_symbol("(")) break;
      parts.push_back(one_target(attributes));
      several |= in_.at_symbol(",");
    } while (in_.skip_symbol(","));
    if (!several) return std::move(parts[0]);
    Target all;
    all.parts = std::move(parts);
    return all;
  }

  Target one_target(bool attributes) {
    deeper();
    Target read;
    if (in_.skip_symbol("(")) {
      read = target(attributes);
      in_.expect_symbol(")");
    } else {
      if (in_.at_any_name({"true", "false", "none", "True", "False", "None", "loop"})) {
        in_.fail_expected("a name that may be assigned");
      }
      read.name = in_.expect_name();
      if (attributes && in_.skip_symbol(".")) read.attribute = in_.expect_name();
    }
    --open_;
    return read;
  }

  Cursor in_;
  ExpressionParser expressions_{in_};
  Parsed parsed_;
  size_t open_ = 0;
  int loops_ = 0;  // around the statement, within its macro
};

}  // namespace

bool Cursor::at_symbol(std::string_view text) const {
  return token().kind == Token::Kind::symbol && token().text == text;
}

bool Cursor::at_name(std::string_view text) const {
  return token().kind == Token::Kind::name && token().text == text;
}

bool Cursor::at_any_name(std::initializer_list<std::string_view> names) const {
  return std::ranges::any_of(names, [&](auto name) { return at_name(name); });
}

Token Cursor::take() {
  auto taken = token();
  if (at_ + 1 < tokens_.size()) ++at_;
  return taken;
}

bool Cursor::skip_symbol(std::string_view text) {
  const bool found = at_symbol(text);
  if (found) take();
  return found;
}

bool Cursor::skip_name(std::string_view text) {
  const bool found = at_name(text);
  if (found) take();
  return found;
}

void Cursor::expect_symbol(std::string_view text) {
  if (!skip_symbol(text)) fail_expected(fmt::format("\"{}\"", text));
}

void Cursor::expect(Token::Kind kind) {
  if (!at(kind)) fail_expected(kind == Token::Kind::print_end ? "}}" : "%}");
  take();
}

std::string Cursor::expect_name() {
  if (!at(Token::Kind::name)) fail_expected("a name");
  return take().text;
}

void Cursor::fail_expected(std::string_view rule) const {
  const auto got = [&]() -> std::string {
    switch (token().kind) {
      case Token::Kind::end:
        return "the template ends";
      case Token::Kind::print_end:
        return "got }}";
      case Token::Kind::block_end:
        return "got %}";
      default:
        return fmt::format("got \"{}\"", token().text.substr(0, 100));
    }
  }();
  throw PlacedRefusal(line(), fmt::format("{} must be here, but {}", rule, got));
}

Parsed parse(std::string_view source) { return StatementParser(source).all(); }

}  // namespace perigee::text::jinja
