// Filters of texts and numbers, and those of any value.
#include <array>
#include <cmath>

#include "base/error.h"
#include "text/jinja/library/filters.h"
#include "text/jinja/values/access.h"
#include "text/jinja/values/characters.h"
#include "text/jinja/values/literals.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/write.h"

namespace perigee::text::jinja {
namespace {

template <auto change>
Value changed(Run& run, const Value& value, const Arguments& given) {
  bind(given, "this filter", {});
  return run.text_of(std::string(change(text_form(run, value))));
}

// As Jinja: letters after white space, "-" and opening brackets.
std::string title(std::string_view text) {
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const auto begin = at;
    const auto c = next_character(text, at);
    const auto letter = text.substr(begin, at - begin);
    out += begins ? upper(letter) : lower(letter);
    begins = is_space(c) || (c < 0x80 && std::string_view("-({[<").find(char(c)) != text.npos);
  }
  return out;
}

Value trim(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, "trim", {"chars"});
  const auto text = text_form(run, value);
  const auto* chars = !a[0] || a[0]->none() ? nullptr : &text_argument(a[0], "trim");
  run.spend(text.size() * (1 + (chars ? chars->size() : 0)) / 16);
  return run.text_of(std::string(strip_left(strip_right(text, chars), chars)));
}

Value replace(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, "replace", {"old", "new", "count"}, 2);
  return replaced(run, text_form(run, value), text_form(run, *a[0]), text_form(run, *a[1]),
                  whole_argument(a[2], "replace", -1));
}

Value indent(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, "indent", {"width", "first", "blank"});
  const bool first = a[1] && truth(*a[1]), blank = a[2] && truth(*a[2]);
  std::string space;
  if (a[0] && a[0]->text()) {
    space = *a[0]->text();
  } else {
    const auto width = std::max<int64_t>(0, whole_argument(a[0], "indent", 4));
    run.make(width);
    space.assign(size_t(width), ' ');
  }
  const auto lines = lines_of(run, text_argument(&value, "indent") + "\n");
  Writer out(run);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.add("\n");
    if (i == 0 ? first : blank || !lines[i].text()->empty()) out.add(space);
    out.add(*lines[i].text());
  }
  return Value(out.take());
}

Value string(Run& run, const Value& value, const Arguments& given) {
  bind(given, "string", {});
  return value.text() ? value : run.text_of(text_form(run, value));
}

Value to_json(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = a[0] && truth(*a[0]);
  if (a[1] && !a[1]->none()) {
    if (a[1]->text()) {
      style.indent = *a[1]->text();
    } else {
      const auto width = std::max<int64_t>(0, whole_argument(a[1], "tojson", 0));
      run.make(width);
      style.indent = std::string(size_t(width), ' ');
    }
    style.item_separator = ",";
  }
  if (a[2] && !a[2]->none()) {
    const auto separators = run.items_of(*a[2]);
    if (separators.size() != 2) {
      refuse("separators of tojson must be two texts, but got {}", separators.size());
    }
    style.item_separator = text_argument(&separators[0], "tojson");
    style.key_separator = text_argument(&separators[1], "tojson");
  }
  style.sort_keys = a[3] && truth(*a[3]);
  return Value(json_form(run, value, style));
}

Value whole_of(double number) {
  if (!(std::abs(number) < 9.2e18)) refuse("whole numbers must be below 2^63, but got {}", number);
  return int64_t(number);
}

Value to_int(Run&, const Value& value, const Arguments& given) {
  const auto a = bind(given, "int", {"default", "base"});
  const auto standard = a[0] ? *a[0] : Value(int64_t(0));
  if (value.whole()) return value.as_whole();
  if (value.real()) return std::isfinite(*value.real()) ? whole_of(*value.real()) : standard;
  if (!value.text()) return standard;
  if (const auto number = parse_whole(*value.text(), int(whole_argument(a[1], "int", 10)))) {
    return *number;
  }
  const auto number = parse_real(*value.text());
  return number && std::isfinite(*number) ? whole_of(*number) : standard;
}

Value to_float(Run&, const Value& value, const Arguments& given) {
  const auto a = bind(given, "float", {"default"});
  if (value.number()) return value.as_real();
  const auto number = value.text() ? parse_real(*value.text()) : std::nullopt;
  return number ? Value(*number) : a[0] ? *a[0] : Value(0.0);
}

Value absolute(Run&, const Value& value, const Arguments& given) {
  bind(given, "abs", {});
  if (!value.number()) refuse("abs needs a number, but got {}", value.kind());
  if (value.real()) return std::abs(*value.real());
  return with_sign(value.as_whole() < 0 ? "-" : "+", value);
}

Value round(Run&, const Value& value, const Arguments& given) {
  const auto a = bind(given, "round", {"precision", "method"});
  if (!value.number()) refuse("round needs a number, but got {}", value.kind());
  const auto digits = whole_argument(a[0], "round", 0);
  if (digits < 0 || digits > 300) {
    refuse("the precision of round must be 0 to 300, but is {}", digits);
  }
  const auto method = a[1] ? text_argument(a[1], "round") : "common";
  const double number = value.as_real();
  if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, double(digits));
    return (method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) / scale;
  }
  if (method != "common") {
    refuse("the method of round must be common, ceil or floor, but is \"{}\"", method);
  }
  if (value.whole()) return value.as_whole();
  return std::isfinite(number)
             ? std::strtod(fmt::format("{:.{}f}", number, digits).c_str(), nullptr)
             : number;
}

Value or_default(Run&, const Value& value, const Arguments& given) {
  const auto a = bind(given, "default", {"default_value", "boolean"});
  const bool absent = value.undefined() || (a[1] && truth(*a[1]) && !truth(value));
  return !absent ? value : a[0] ? *a[0] : Value(std::string());
}

constexpr std::array kTextFilters{
    Filter{"upper", changed<upper>},
    Filter{"lower", changed<lower>},
    Filter{"title", changed<title>},
    Filter{"capitalize", changed<capitalized>},
    Filter{"trim", trim},
    Filter{"replace", replace},
    Filter{"indent", indent},
    Filter{"string", string},
    Filter{"safe", string},
    Filter{"tojson", to_json},
    Filter{"int", to_int},
    Filter{"float", to_float},
    Filter{"abs", absolute},
    Filter{"round", round},
    Filter{"default", or_default},
    Filter{"d", or_default},
};

}  // namespace

std::span<const Filter> text_filters() { return kTextFilters; }

const Filter* find_filter(std::string_view name) {
  for (const auto filters : {text_filters(), list_filters(), choice_filters()}) {
    for (const auto& filter : filters) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

std::string unknown_filter(const std::string& name) {
  std::vector<std::string> names;
  for (const auto filters : {text_filters(), list_filters(), choice_filters()}) {
    for (const auto& filter : filters) names.emplace_back(filter.name);
  }
  return fmt::format("a filter must be known, but \"{}\" is not{}", name,
                     did_you_mean(name, names));
}

}  // namespace perigee::text::jinja
