#include <algorithm>

#include "text/jinja/library/filters.h"
#include "text/jinja/library/tests.h"
#include "text/jinja/syntax/parser.h"

namespace perigee::text::jinja {
namespace {

constexpr size_t kDeepestExpression = 150;

std::vector<ExpressionPtr> two(ExpressionPtr a, ExpressionPtr b) {
  std::vector<ExpressionPtr> parts;
  parts.push_back(std::move(a));
  parts.push_back(std::move(b));
  return parts;
}

// Counts a level that is being read.
struct Level {
  Level(size_t& open, int line) : count(open) {
    if (++count > kDeepestExpression) {
      throw PlacedRefusal(line, fmt::format("expressions must be nested at most {} deep, but are",
                                            kDeepestExpression));
    }
  }
  ~Level() { --count; }
  size_t& count;
};

}  // namespace

std::vector<ExpressionPtr> ExpressionParser::one(ExpressionPtr a) {
  std::vector<ExpressionPtr> parts;
  parts.push_back(std::move(a));
  return parts;
}

ExpressionPtr ExpressionParser::make(Expression::Kind kind, int line, std::string name) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = line;
  made->name = std::move(name);
  return made;
}

void ExpressionParser::measure(Expression& made) const {
  const auto add = [&](const ExpressionPtr& part) {
    if (part) made.depth = std::max(made.depth, part->depth + 1);
  };
  for (const auto& part : made.parts) add(part);
  for (const auto& part : made.arguments.positional) add(part);
  for (const auto& [name, part] : made.arguments.named) add(part);
  if (made.depth > kDeepestExpression) {
    throw PlacedRefusal(
        made.line,
        fmt::format("expressions must be nested at most {} deep, but are", kDeepestExpression));
  }
}

ExpressionPtr ExpressionParser::with(ExpressionPtr made, std::vector<ExpressionPtr> parts) const {
  made->parts = std::move(parts);
  measure(*made);
  return made;
}

ExpressionPtr ExpressionParser::expression(bool choices) {
  const Level level(open_, in_.line());
  return choices ? choice() : disjunction();
}

ExpressionPtr ExpressionParser::choice() {
  auto value = disjunction();
  while (in_.at_name("if")) {
    const int line = in_.take().line;
    auto parts = two(std::move(value), disjunction());
    parts.push_back(in_.skip_name("else") ? expression() : nullptr);
    value = with(make(Expression::Kind::choice, line), std::move(parts));
  }
  return value;
}

ExpressionPtr ExpressionParser::disjunction() {
  auto left = conjunction();
  while (in_.at_name("or")) {
    const int line = in_.take().line;
    left = with(make(Expression::Kind::disjunction, line), two(std::move(left), conjunction()));
  }
  return left;
}

ExpressionPtr ExpressionParser::conjunction() {
  auto left = negation();
  while (in_.at_name("and")) {
    const int line = in_.take().line;
    left = with(make(Expression::Kind::conjunction, line), two(std::move(left), negation()));
  }
  return left;
}

ExpressionPtr ExpressionParser::negation() {
  if (!in_.at_name("not")) return comparison();
  const Level level(open_, in_.line());
  const int line = in_.take().line;
  return with(make(Expression::Kind::negation, line), one(negation()));
}

ExpressionPtr ExpressionParser::comparison() {
  auto made = make(Expression::Kind::comparison, in_.line());
  auto parts = one(sum());
  for (;;) {
    std::string name;
    for (const auto* symbol : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (name.empty() && in_.skip_symbol(symbol)) name = symbol;
    }
    if (name.empty() && in_.skip_name("in")) name = "in";
    if (name.empty() && in_.at_name("not") && in_.after().text == "in" &&
        in_.after().kind == Token::Kind::name) {
      in_.take();
      in_.take();
      name = "not in";
    }
    if (name.empty()) break;
    made->operators.push_back(name);
    parts.push_back(sum());
  }
  return parts.size() == 1 ? std::move(parts[0]) : with(std::move(made), std::move(parts));
}

ExpressionPtr ExpressionParser::sum() {
  auto left = concatenation();
  while (in_.at_symbol("+") || in_.at_symbol("-")) {
    const auto sign = in_.take();
    left = with(make(Expression::Kind::arithmetic, sign.line, sign.text),
                two(std::move(left), concatenation()));
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  const int line = in_.line();
  auto parts = one(product());
  while (in_.skip_symbol("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts[0]);
  return with(make(Expression::Kind::concatenation, line), std::move(parts));
}

ExpressionPtr ExpressionParser::product() {
  auto left = power();
  while (in_.at_symbol("*") || in_.at_symbol("/") || in_.at_symbol("//") || in_.at_symbol("%")) {
    const auto symbol = in_.take();
    left = with(make(Expression::Kind::arithmetic, symbol.line, symbol.text),
                two(std::move(left), power()));
  }
  return left;
}

ExpressionPtr ExpressionParser::power() {
  auto left = unary();
  while (in_.at_symbol("**")) {
    const int line = in_.take().line;
    left = with(make(Expression::Kind::arithmetic, line, "**"), two(std::move(left), unary()));
  }
  return left;
}

ExpressionPtr ExpressionParser::unary(bool filters) {
  const Level level(open_, in_.line());
  ExpressionPtr value;
  if (in_.at_symbol("-") || in_.at_symbol("+")) {
    const auto sign = in_.take();
    value = with(make(Expression::Kind::sign, sign.line, sign.text), one(unary(false)));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::primary() {
  const int line = in_.line();
  if (in_.at(Token::Kind::constant)) {
    auto made = make(Expression::Kind::constant, line);
    made->value = in_.take().value;
    while (made->value.text() && in_.at(Token::Kind::constant) && in_.token().value.text()) {
      made->value = Value(*made->value.text() + *in_.take().value.text());
    }
    return made;
  }
  if (in_.skip_symbol("(")) return in_parentheses();
  if (in_.skip_symbol("[")) return list();
  if (in_.skip_symbol("{")) return dict();
  if (!in_.at(Token::Kind::name)) in_.fail_expected("an expression");
  const auto name = in_.take().text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    auto made = make(Expression::Kind::constant, line);
    made->value = Value(name == "true" || name == "True");
    return made;
  }
  if (name == "none" || name == "None") return make(Expression::Kind::constant, line);
  names_read.push_back(name);
  return make(Expression::Kind::name, line, name);
}

bool ExpressionParser::tuple_ends() const {
  return in_.at(Token::Kind::print_end) || in_.at(Token::Kind::block_end) || in_.at_symbol(")");
}

ExpressionPtr ExpressionParser::tuple(bool choices) {
  const int line = in_.line();
  auto parts = one(expression(choices));
  bool several = false;
  while (in_.skip_symbol(",")) {
    several = true;
    if (tuple_ends()) break;
    parts.push_back(expression(choices));
  }
  return several ? with(make(Expression::Kind::tuple, line), std::move(parts))
                 : std::move(parts[0]);
}

ExpressionPtr ExpressionParser::in_parentheses() {
  const int line = in_.line();
  if (in_.skip_symbol(")")) return make(Expression::Kind::tuple, line);
  auto value = tuple();
  in_.expect_symbol(")");
  return value;
}

ExpressionPtr ExpressionParser::list() {
  const int line = in_.line();
  std::vector<ExpressionPtr> parts;
  while (!in_.at_symbol("]")) {
    if (!parts.empty()) in_.expect_symbol(",");
    if (in_.at_symbol("]")) break;
    parts.push_back(expression());
  }
  in_.expect_symbol("]");
  return with(make(Expression::Kind::list, line), std::move(parts));
}

ExpressionPtr ExpressionParser::dict() {
  const int line = in_.line();
  std::vector<ExpressionPtr> parts;
  while (!in_.at_symbol("}")) {
    if (!parts.empty()) in_.expect_symbol(",");
    if (in_.at_symbol("}")) break;
    parts.push_back(expression());
    in_.expect_symbol(":");
    parts.push_back(expression());
  }
  in_.expect_symbol("}");
  return with(make(Expression::Kind::dict, line), std::move(parts));
}

}  // namespace perigee::text::jinja
