// Templates as trees.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using StatementPtr = std::unique_ptr<Statement>;

struct Filter;  // filters.h
struct Test;    // tests.h

// Arguments of a call, filter or test.
struct ArgumentList {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Expression {
  enum class Kind {
    constant,       // value
    name,           // name
    list,           // parts
    tuple,          // parts
    dict,           // parts: keys and values, alternately
    attribute,      // parts[0].name
    item,           // parts[0][parts[1]]
    slice,          // parts[0][parts[1]:parts[2]:parts[3]], any but the first nullptr
    call,           // parts[0](arguments)
    filter,         // parts[0] | name(arguments); parts[0] is nullptr in {% set x | name %}
    test,           // parts[0] is name(arguments)
    sign,           // name ("+" or "-") parts[0]
    negation,       // not parts[0]
    arithmetic,     // parts[0] name parts[1]
    concatenation,  // parts[0] ~ parts[1] ~ ...
    comparison,     // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    conjunction,    // parts[0] and parts[1]
    disjunction,    // parts[0] or parts[1]
    choice,         // parts[0] if parts[1] else parts[2], which may be nullptr
  };
  Kind kind = Kind::constant;
  int line = 1;
  Value value;
  std::string name;
  std::vector<ExpressionPtr> parts;
  std::vector<std::string> operators;
  ArgumentList arguments;
  const Filter* filter = nullptr;
  const Test* test = nullptr;
  size_t depth = 1;  // levels of expressions
};

// The target of an assignment: a name, an attribute of a namespace, or several targets.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> parts;
};

struct Body {
  std::vector<StatementPtr> statements;
};

struct Parameter {
  std::string name;
  ExpressionPtr standard;  // the default value, or nullptr
};

struct Statement {
  enum class Kind {
    text,        // text
    print,       // expressions[0]
    condition,   // expressions[i]: bodies[i]; one more body: else
    loop,        // target in expressions[0] if expressions[1]: bodies[0], else bodies[1]
    assignment,  // target = expressions[0]
    capture,     // target = bodies[0], filtered by expressions[0] if there is one
    macro,       // text(parameters): bodies[0]
    generation,  // bodies[0]
    end_loop,    // break
    next_item,   // continue
  };
  Kind kind = Kind::text;
  int line = 1;
  std::string text;
  std::vector<ExpressionPtr> expressions;
  std::vector<Body> bodies;
  Target target;
  std::vector<Parameter> parameters;
  bool takes_others = false;  // a macro that reads `varargs`
  bool takes_named = false;   // a macro that reads `kwargs`
};

}  // namespace perigee::text::jinja
