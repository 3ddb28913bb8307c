#include <algorithm>

#include "text/jinja/library/filters.h"
#include "text/jinja/library/tests.h"
#include "text/jinja/run.h"
#include "text/jinja/values/access.h"
#include "text/jinja/values/characters.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/write.h"

namespace perigee::text::jinja {

using Kind = Expression::Kind;

Value Run::evaluate(const Expression& e) {
  spend(1);
  if (e.kind == Kind::constant) return e.value;
  const auto outer_line = line_;
  line_ = e.line;
  const Depth depth(*this);
  auto value = evaluate_kind(e);
  line_ = outer_line;
  return value;
}

Value Run::evaluate_kind(const Expression& e) {
  const auto part = [&](size_t i) { return evaluate(*e.parts[i]); };
  switch (e.kind) {
    case Kind::constant:
      return e.value;
    case Kind::name:
      return look_up(e.name);
    case Kind::list:
      return list_of(values(e.parts));
    case Kind::tuple:
      return list_of(values(e.parts), List::Kind::tuple);
    case Kind::dict:
      return dict(e);
    case Kind::attribute:
      return attribute(*this, part(0), e.name);
    case Kind::item: {
      const auto whole = part(0);
      return item(*this, whole, part(1));
    }
    case Kind::slice:
      return slice_of(e);
    case Kind::call:
      return call_of(e);
    case Kind::filter:
      return e.filter->apply(*this, part(0), arguments(e.arguments));
    case Kind::test:
      return e.test->holds(*this, part(0), arguments(e.arguments));
    case Kind::sign:
      return with_sign(e.name, part(0));
    case Kind::negation:
      return !truth(part(0));
    case Kind::arithmetic: {
      const auto left = part(0);
      return arithmetic(*this, e.name, left, part(1));
    }
    case Kind::concatenation:
      return concatenate(e);
    case Kind::comparison:
      return compare_all(e);
    case Kind::conjunction: {
      auto left = part(0);
      return truth(left) ? part(1) : left;
    }
    case Kind::disjunction: {
      auto left = part(0);
      return truth(left) ? left : part(1);
    }
    case Kind::choice:
      if (truth(part(1))) return part(0);
      return e.parts[2] ? part(2) : Value::undefined("the value of an \"if\" without \"else\"");
  }
  return {};
}

Value Run::look_up(const std::string& name) {
  for (const auto* frame = frame_.get(); frame; frame = frame->outer.get()) {
    const auto found = frame->variables.find(name);
    if (found != frame->variables.end()) return found->second;
  }
  return Value::undefined(fmt::format("\"{}\"", name));
}

Value Run::compare_all(const Expression& e) {
  auto left = evaluate(*e.parts[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    const auto& symbol = e.operators[i];
    auto right = evaluate(*e.parts[i + 1]);
    const bool holds = symbol == "=="   ? equal(*this, left, right)
                       : symbol == "!=" ? !equal(*this, left, right)
                       : symbol == "in" ? contains(*this, right, left)
                       : symbol == "<"  ? less(*this, left, right)
                       : symbol == ">"  ? less(*this, right, left)
                       : symbol == "<=" ? less_or_equal(*this, left, right)
                       : symbol == ">=" ? less_or_equal(*this, right, left)
                                        : !contains(*this, right, left);
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Run::dict(const Expression& e) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < e.parts.size(); i += 2) {
    auto key = evaluate(*e.parts[i]);
    auto value = evaluate(*e.parts[i + 1]);
    if (key.dict() || (key.list() && key.list()->kind == List::Kind::list)) {
      refuse("a key must be a text or a number, but is {}", key.kind());
    }
    const auto same = std::ranges::find_if(
        items, [&](const auto& item) { return equal(*this, item.first, key); });
    if (same != items.end()) {
      same->second = std::move(value);
    } else {
      items.emplace_back(std::move(key), std::move(value));
    }
  }
  make(items.size() * 2 * sizeof(Value));
  return make_dict(std::move(items));
}

Value Run::concatenate(const Expression& e) {
  Writer out(*this);
  for (const auto& part : e.parts) out.add(text_form(*this, evaluate(*part)));
  return Value(out.take());
}

Value Run::filtered(const Expression& filters, const Value& value) {
  const auto& inner = filters.parts[0];
  return filters.filter->apply(*this, inner ? filtered(*inner, value) : value,
                               arguments(filters.arguments));
}

Value Run::slice_of(const Expression& e) {
  const auto whole = evaluate(*e.parts[0]);
  Value places[3];
  SliceParts given;
  const Value** const parts[] = {&given.begin, &given.end, &given.step};
  for (size_t i = 0; i < 3; ++i) {
    if (!e.parts[i + 1]) continue;
    places[i] = evaluate(*e.parts[i + 1]);
    *parts[i] = &places[i];
  }
  return slice(*this, whole, given);
}

Value Run::call_of(const Expression& e) {
  const auto function = evaluate(*e.parts[0]);
  if (!function.function()) {
    const auto& callee = *e.parts[0];
    const bool named = callee.kind == Kind::name || callee.kind == Kind::attribute;
    refuse("a call must be of a function, macro or method, but {} is {}",
           named ? fmt::format("\"{}\"", callee.name) : "its value",
           function.undefined() ? "not defined" : function.kind());
  }
  return call(function, arguments(e.arguments));
}

Value Run::call(const Value& function, const Arguments& given) {
  const Depth depth(*this);
  return function.function()->call(*this, given);
}

Values Run::values(const std::vector<ExpressionPtr>& expressions) {
  Values all;
  all.reserve(expressions.size());
  for (const auto& e : expressions) all.push_back(evaluate(*e));
  return all;
}

Arguments Run::arguments(const ArgumentList& list) {
  Arguments given;
  given.positional = values(list.positional);
  for (const auto& [name, e] : list.named) given.named.emplace_back(name, evaluate(*e));
  return given;
}

Values Run::items_of(const Value& value) {
  Values items;
  if (value.undefined()) return items;
  if (const auto* text = value.text()) {
    for (size_t at = 0; at < text->size();) {
      const auto begin = at;
      next_character(*text, at);
      make(sizeof(Value) + 32);
      items.emplace_back(text->substr(begin, at - begin));
    }
    return items;
  }
  if (const auto* dict = value.dict()) {
    make(dict->items.size() * sizeof(Value));
    for (const auto& [key, unused] : dict->items) items.push_back(key);
    return items;
  }
  const auto* list = value.list();
  if (!list) refuse("a list, a mapping or a text has items, but got {}", value.kind());
  make(list->items.size() * sizeof(Value));
  if (list->kind != List::Kind::generator) return list->items;
  items.assign(list->items.begin() + list->consumed, list->items.end());
  list->consumed = list->items.size();
  return items;
}

}  // namespace perigee::text::jinja
