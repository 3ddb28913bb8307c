// Tokens to trees.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/syntax/lexer.h"
#include "text/jinja/syntax/syntax.h"

namespace perigee::text::jinja {

// The tokens that are not yet read.
class Cursor {
 public:
  explicit Cursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& token() const { return tokens_[at_]; }
  int line() const { return token().line; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool at(Token::Kind kind) const { return token().kind == kind; }
  bool at_symbol(std::string_view text) const;
  bool at_name(std::string_view text) const;
  bool at_any_name(std::initializer_list<std::string_view> names) const;

  Token take();  // the next token
  // Reads the symbol or name, if it is next.
  bool skip_symbol(std::string_view text);
  bool skip_name(std::string_view text);
  // The same, and throw PlacedRefusal where another token is next.
  void expect_symbol(std::string_view text);
  void expect(Token::Kind kind);
  std::string expect_name();

  // Throws PlacedRefusal: `rule` must be next.
  [[noreturn]] void fail_expected(std::string_view rule) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

// Reads expressions. The functions throw PlacedRefusal for wrong syntax, unknown filters and tests,
// and expressions nested deeper than a limit.
class ExpressionParser {
 public:
  explicit ExpressionParser(Cursor& cursor) : in_(cursor) {}

  // `choices`: "a if b else c" may follow.
  ExpressionPtr expression(bool choices = true);
  // An expression, or several with commas between them.
  ExpressionPtr tuple(bool choices = true);
  // A filter without a value: "name(...) | name(...)".
  ExpressionPtr filters_of_nothing();

  // Names that the expressions read.
  std::vector<std::string> names_read;

 private:
  ExpressionPtr choice();
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool filters = true);
  ExpressionPtr primary();
  ExpressionPtr in_parentheses();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr filters_and_tests(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr call(ExpressionPtr value);
  ExpressionPtr filter(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  ArgumentList arguments();
  bool tuple_ends() const;

  static std::vector<ExpressionPtr> one(ExpressionPtr part);
  ExpressionPtr make(Expression::Kind kind, int line, std::string name = "") const;
  // Makes the parts those of the expression, and sets its depth.
  ExpressionPtr with(ExpressionPtr made, std::vector<ExpressionPtr> parts) const;
  void measure(Expression& made) const;

  Cursor& in_;
  size_t open_ = 0;  // levels that are being read
};

struct Parsed {
  Body body;
  bool marks_generation = false;
};

// Throws PlacedRefusal.
Parsed parse(std::string_view source);

}  // namespace perigee::text::jinja
