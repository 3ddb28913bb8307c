// Attributes, items, calls, filters and tests, which follow a value.
#include <algorithm>

#include "text/jinja/library/filters.h"
#include "text/jinja/library/tests.h"
#include "text/jinja/syntax/parser.h"

namespace perigee::text::jinja {
ExpressionPtr ExpressionParser::postfix(ExpressionPtr value) {
  for (;;) {
    if (in_.at_symbol(".") || in_.at_symbol("[")) {
      value = subscript(std::move(value));
    } else if (in_.at_symbol("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr value) {
  for (;;) {
    if (in_.at_symbol("|")) {
      value = filter(std::move(value));
    } else if (in_.at_name("is")) {
      value = test(std::move(value));
    } else if (in_.at_symbol("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr value) {
  const int line = in_.line();
  if (in_.skip_symbol(".")) {
    if (in_.at(Token::Kind::name)) {
      return with(make(Expression::Kind::attribute, line, in_.take().text), one(std::move(value)));
    }
    if (!in_.at(Token::Kind::constant) || !in_.token().value.integer()) {
      in_.fail_expected("the name of an attribute");
    }
    auto index = make(Expression::Kind::constant, line);
    index->value = in_.take().value;
    auto parts = one(std::move(value));
    parts.push_back(std::move(index));
    return with(make(Expression::Kind::item, line), std::move(parts));
  }
  in_.expect_symbol("[");
  auto parts = one(std::move(value));
  const auto part = [&] {
    return in_.at_symbol(":") || in_.at_symbol("]") ? nullptr : expression();
  };
  parts.push_back(part());
  const bool slice = in_.at_symbol(":");
  if (slice) {
    in_.take();
    parts.push_back(part());
    parts.push_back(in_.skip_symbol(":") ? part() : nullptr);
  } else if (!parts[1]) {
    in_.fail_expected("an expression");
  }
  in_.expect_symbol("]");
  return with(make(slice ? Expression::Kind::slice : Expression::Kind::item, line),
              std::move(parts));
}

ArgumentList ExpressionParser::arguments() {
  ArgumentList given;
  in_.expect_symbol("(");
  for (bool first = true; !in_.at_symbol(")"); first = false) {
    if (!first) in_.expect_symbol(",");
    if (in_.at_symbol(")")) break;
    const bool named = in_.at(Token::Kind::name) && in_.after().kind == Token::Kind::symbol &&
                       in_.after().text == "=";
    if (named) {
      auto name = in_.take().text;
      in_.take();
      given.named.emplace_back(std::move(name), expression());
    } else if (in_.at_symbol("*") || in_.at_symbol("**")) {
      in_.fail_expected("an argument (* and ** are not supported)");
    } else if (!given.named.empty()) {
      in_.fail_expected("an argument with its name");
    } else {
      given.positional.push_back(expression());
    }
  }
  in_.expect_symbol(")");
  return given;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr value) {
  auto made = make(Expression::Kind::call, in_.line());
  made->arguments = arguments();
  return with(std::move(made), one(std::move(value)));
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr value) {
  in_.expect_symbol("|");
  auto made = make(Expression::Kind::filter, in_.line());
  made->name = in_.expect_name();
  made->filter = find_filter(made->name);
  if (!made->filter) throw PlacedRefusal(made->line, unknown_filter(made->name));
  if (in_.at_symbol("(")) made->arguments = arguments();
  return with(std::move(made), one(std::move(value)));
}

ExpressionPtr ExpressionParser::filters_of_nothing() {
  ExpressionPtr value;
  while (in_.at_symbol("|")) value = filter(std::move(value));
  return value;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr value) {
  auto made = make(Expression::Kind::test, in_.take().line);
  const bool negated = in_.skip_name("not");
  made->name = in_.expect_name();
  made->test = find_test(made->name);
  if (!made->test) throw PlacedRefusal(made->line, unknown_test(made->name));
  const bool argument = in_.at(Token::Kind::constant) || in_.at_symbol("[") || in_.at_symbol("{") ||
                        in_.at(Token::Kind::name);
  if (in_.at_symbol("(")) {
    made->arguments = arguments();
  } else if (argument && !in_.at_any_name({"else", "or", "and"})) {
    if (in_.at_name("is")) in_.fail_expected("one test, not a chain of tests,");
    made->arguments.positional.push_back(postfix(primary()));
  }
  const int line = made->line;
  auto tested = with(std::move(made), one(std::move(value)));
  return negated ? with(make(Expression::Kind::negation, line), one(std::move(tested)))
                 : std::move(tested);
}

}  // namespace perigee::text::jinja
