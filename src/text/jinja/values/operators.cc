#include "text/jinja/values/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/values/characters.h"

namespace perigee::text::jinja {
namespace {

[[noreturn]] void beyond() { refuse("whole numbers must be below 2^63, but a result is not"); }

int64_t whole_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 ? -1 : 1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) beyond();
  }
  return result;
}

int64_t whole(std::string_view symbol, int64_t a, int64_t b) {
  int64_t result = 0;
  const bool overflow = symbol == "+"   ? __builtin_add_overflow(a, b, &result)
                        : symbol == "-" ? __builtin_sub_overflow(a, b, &result)
                        : symbol == "*" ? __builtin_mul_overflow(a, b, &result)
                                        : a == std::numeric_limits<int64_t>::min() && b == -1;
  if (overflow) beyond();
  if (symbol == "//") return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  if (symbol == "%") return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
  return result;
}

double real(std::string_view symbol, double a, double b) {
  if (symbol == "+") return a + b;
  if (symbol == "-") return a - b;
  if (symbol == "*") return a * b;
  if (symbol == "/") return a / b;
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) {
    rest += b;
    quotient -= 1;
  } else if (rest == 0) {
    rest = std::copysign(0.0, b);
  }
  if (symbol == "%") return rest;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value power(const Value& a, const Value& b) {
  if (a.whole() && b.whole() && b.as_whole() >= 0) return whole_power(a.as_whole(), b.as_whole());
  const double base = a.as_real(), exponent = b.as_real();
  if (base == 0 && exponent < 0) refuse("0 must not have a negative power, but has {}", exponent);
  const double result = std::pow(base, exponent);
  if (std::isnan(result) && !std::isnan(base) && !std::isnan(exponent)) {
    refuse("a negative number must have a whole power, but has {}", exponent);
  }
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) {
    refuse("a power must be a finite number, but is not");
  }
  return result;
}

Value numbers(std::string_view symbol, const Value& a, const Value& b) {
  if (symbol == "**") return power(a, b);
  const bool divides = symbol == "/" || symbol == "//" || symbol == "%";
  if (divides && b.as_real() == 0) refuse("a divisor must not be 0");
  if (a.whole() && b.whole() && symbol != "/") return whole(symbol, a.as_whole(), b.as_whole());
  return real(symbol, a.as_real(), b.as_real());
}

// Returns a text or a list `count` times.
Value repeated(Run& run, const Value& value, int64_t count) {
  const auto times = uint64_t(std::max<int64_t>(0, count));
  const uint64_t size = value.text() ? value.text()->size() : value.list()->items.size();
  const uint64_t bytes = value.text() ? 1 : sizeof(Value);
  if (size > 0 && times > std::numeric_limits<uint32_t>::max() / size) {
    run.make(std::numeric_limits<uint32_t>::max() * bytes);
  }
  run.make(size * times * bytes);
  if (const auto* text = value.text()) {
    std::string all;
    all.reserve(size * times);
    for (uint64_t i = 0; size > 0 && i < times; ++i) all += *text;
    return Value(std::move(all));
  }
  Values all;
  for (uint64_t i = 0; size > 0 && i < times; ++i) {
    all.insert(all.end(), value.list()->items.begin(), value.list()->items.end());
  }
  return make_list(std::move(all), value.list()->kind);
}

bool joinable(const Value& value) {
  const auto* list = value.list();
  return value.text() ||
         (list && (list->kind == List::Kind::list || list->kind == List::Kind::tuple));
}

}  // namespace

Value arithmetic(Run& run, std::string_view symbol, const Value& a, const Value& b) {
  if (a.number() && b.number()) return numbers(symbol, a, b);
  if (symbol == "+" && a.text() && b.text()) {
    run.make(a.text()->size() + b.text()->size());
    return Value(*a.text() + *b.text());
  }
  if (symbol == "+" && joinable(a) && joinable(b) && a.list() && b.list() &&
      a.list()->kind == b.list()->kind) {
    auto items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return run.list_of(std::move(items), a.list()->kind);
  }
  if (symbol == "*" && joinable(a) && b.whole()) return repeated(run, a, b.as_whole());
  if (symbol == "*" && a.whole() && joinable(b)) return repeated(run, b, a.as_whole());
  if (symbol == "%" && a.text()) {
    refuse("% must be between numbers: it does not format texts (use ~ and | string)");
  }
  refuse("{} must be between two numbers{}, but got {} and {}", symbol,
         symbol == "+" ? ", two texts or two lists" : "", a.kind(), b.kind());
}

Value with_sign(std::string_view symbol, const Value& value) {
  if (!value.number()) refuse("{} must be before a number, but got {}", symbol, value.kind());
  if (value.real()) return symbol == "-" ? -*value.real() : *value.real();
  return symbol == "-" ? whole("-", 0, value.as_whole()) : value.as_whole();
}

bool equal(Run& run, const Value& a, const Value& b) {
  run.spend(1);
  if (a.number() && b.number()) {
    if (a.whole() && b.whole()) return a.as_whole() == b.as_whole();
    const auto exact = [](const Value& v) -> long double {
      return v.real() ? (long double)(*v.real()) : (long double)(v.as_whole());
    };
    return exact(a) == exact(b);
  }
  if (a.text() && b.text()) {
    run.spend(a.text()->size() == b.text()->size() ? a.text()->size() / 64 : 0);
    return *a.text() == *b.text();
  }
  if (a.list() && b.list()) {
    const auto &x = *a.list(), &y = *b.list();
    if (&x == &y) return true;
    if (x.kind != y.kind || x.items.size() != y.items.size()) return false;
    if (x.kind == List::Kind::view || x.kind == List::Kind::generator) return false;
    return std::ranges::equal(x.items, y.items,
                              [&](const Value& i, const Value& j) { return equal(run, i, j); });
  }
  if (a.dict() && b.dict()) {
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    return std::ranges::all_of(a.dict()->items, [&](const auto& item) {
      const auto* other = find_key(run, *b.dict(), item.first);
      return other && equal(run, item.second, *other);
    });
  }
  return (a.undefined() && b.undefined()) || a.same(b);
}

bool less(Run& run, const Value& a, const Value& b) {
  run.spend(1);
  if (a.whole() && b.whole()) return a.as_whole() < b.as_whole();
  if (a.number() && b.number()) return a.as_real() < b.as_real();
  if (a.text() && b.text()) {
    run.spend(std::min(a.text()->size(), b.text()->size()) / 64);
    return *a.text() < *b.text();
  }
  if (joinable(a) && joinable(b) && a.list() && b.list() && a.list()->kind == b.list()->kind) {
    const auto &x = a.list()->items, &y = b.list()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(run, x[i], y[i])) return less(run, x[i], y[i]);
    }
    return x.size() < y.size();
  }
  refuse("two numbers, two texts or two lists have an order, but {} and {} do not", a.kind(),
         b.kind());
}

bool less_or_equal(Run& run, const Value& a, const Value& b) {
  return less(run, a, b) || equal(run, a, b);
}

bool contains(Run& run, const Value& whole, const Value& item) {
  if (const auto* text = whole.text()) {
    if (!item.text()) refuse("a text must be looked for in a text, but got {}", item.kind());
    run.spend(1 + text->size() / 64);
    return find_text(*text, *item.text()) != std::string::npos;
  }
  if (const auto* dict = whole.dict()) return find_key(run, *dict, item) != nullptr;
  return std::ranges::any_of(run.items_of(whole), [&](const Value& each) {
    return each.same(item) || equal(run, each, item);
  });
}

const Value* find_key(Run& run, const Dict& dict, const Value& key) {
  run.spend(1 + dict.items.size() / 8);
  if (const auto* text = key.text()) return dict.find(*text);
  for (const auto& [each, value] : dict.items) {
    if (!each.text() && equal(run, each, key)) return &value;
  }
  return nullptr;
}

}  // namespace perigee::text::jinja
