#include "text/jinja/values/write.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/values/characters.h"
#include "text/jinja/values/literals.h"
#include "text/jinja/values/operators.h"

namespace perigee::text::jinja {
namespace {

void write_quoted(Writer& out, const std::string& text) {
  const bool single = text.find('\'') != text.npos, both = text.find('"') != text.npos;
  const char quote = single && !both ? '"' : '\'';
  std::string quoted(1, quote);
  for (size_t at = 0; at < text.size();) {
    const auto begin = at;
    const auto c = next_character(text, at);
    if (c == char32_t(quote) || c == '\\') {
      quoted += '\\';
      quoted += char(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      quoted += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      quoted += std::string_view(text).substr(begin, at - begin);
    } else if (c < 0x100) {
      quoted += fmt::format("\\x{:02x}", uint32_t(c));
    } else {
      quoted += c < 0x10000 ? fmt::format("\\u{:04x}", uint32_t(c))
                            : fmt::format("\\U{:08x}", uint32_t(c));
    }
  }
  out.add(quoted + quote);
}

void write_repr(Writer& out, const Value& value);

void write_items(Writer& out, const Values& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.add(", ");
    write_repr(out, items[i]);
  }
}

void write_list(Writer& out, const List& list) {
  if (list.kind != List::Kind::list && list.kind != List::Kind::tuple) {
    refuse("{} has no text: add | list", Value(make_list({}, list.kind)).kind());
  }
  const bool tuple = list.kind == List::Kind::tuple;
  out.add(tuple ? "(" : "[");
  write_items(out, list.items);
  out.add(tuple ? list.items.size() == 1 ? ",)" : ")" : "]");
}

void write_repr(Writer& out, const Value& value) {
  out.run().spend(1);
  if (value.none()) {
    out.add("None");
  } else if (value.undefined()) {
    out.add("Undefined");
  } else if (const auto* b = value.boolean()) {
    out.add(*b ? "True" : "False");
  } else if (const auto* i = value.integer()) {
    out.add(fmt::format("{}", *i));
  } else if (const auto* d = value.real()) {
    out.add(real_text(*d));
  } else if (const auto* t = value.text()) {
    write_quoted(out, *t);
  } else if (const auto* l = value.list()) {
    write_list(out, *l);
  } else if (const auto* dict = value.dict()) {
    out.add("{");
    for (size_t k = 0; k < dict->items.size(); ++k) {
      if (k > 0) out.add(", ");
      write_repr(out, dict->items[k].first);
      out.add(": ");
      write_repr(out, dict->items[k].second);
    }
    out.add("}");
  } else {
    refuse("a text, a number or a list must be printed, but got {}", value.kind());
  }
}

class JsonWriter {
 public:
  JsonWriter(Run& run, const JsonStyle& style) : out_(run), style_(style) {}

  std::string write(const Value& value) {
    add(value, 0);
    return out_.take();
  }

 private:
  void line(size_t level) {
    if (!style_.indent) return;
    out_.add("\n");
    for (size_t i = 0; i < level; ++i) out_.add(*style_.indent);
  }

  void add(const Value& value, size_t level) {
    out_.run().spend(1);
    if (const auto* t = value.text()) {
      quoted(*t);
    } else if (const auto* list = value.list()) {
      if (list->kind != List::Kind::list && list->kind != List::Kind::tuple) {
        refuse("JSON must be of lists and mappings, but got {}", value.kind());
      }
      sequence('[', ']', list->items.size(), level,
               [&](size_t i) { add(list->items[i], level + 1); });
    } else if (const auto* dict = value.dict()) {
      object(*dict, level);
    } else {
      out_.add(scalar(value));
    }
  }

  template <class Each>
  void sequence(char open, char close, size_t size, size_t level, Each each) {
    out_.add({&open, 1});
    for (size_t i = 0; i < size; ++i) {
      if (i > 0) out_.add(style_.item_separator);
      line(level + 1);
      each(i);
    }
    if (size > 0) line(level);
    out_.add({&close, 1});
  }

  void object(const Dict& dict, size_t level) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::ranges::stable_sort(items, [&](const auto* a, const auto* b) {
        return less(out_.run(), a->first, b->first);
      });
    }
    sequence('{', '}', items.size(), level, [&](size_t i) {
      const auto& key = items[i]->first;
      quoted(key.text() ? *key.text() : scalar(key));
      out_.add(style_.key_separator);
      add(items[i]->second, level + 1);
    });
  }

  static std::string scalar(const Value& value) {
    if (value.none()) return "null";
    if (const auto* b = value.boolean()) return *b ? "true" : "false";
    if (const auto* i = value.integer()) return fmt::format("{}", *i);
    if (const auto* d = value.real()) {
      if (std::isnan(*d)) return "NaN";
      return std::isinf(*d) ? *d > 0 ? "Infinity" : "-Infinity" : real_text(*d);
    }
    refuse("JSON must be of texts, numbers, lists and mappings, but got {}", value.kind());
  }

  void quoted(const std::string& text) {
    std::string all = "\"";
    for (size_t at = 0; at < text.size();) {
      const auto begin = at;
      const auto c = next_character(text, at);
      constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
      const auto escape = c < 0x80 ? kEscaped.find(char(c)) : kEscaped.npos;
      if (escape != kEscaped.npos) {
        all += '\\';
        all += kLetters[escape];
      } else if (c >= 0x10000 && style_.ascii) {
        all += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + uint32_t(c - 0x10000) / 0x400,
                           0xDC00 + uint32_t(c - 0x10000) % 0x400);
      } else if (c < 0x20 || (c > 0x7E && style_.ascii)) {
        all += fmt::format("\\u{:04x}", uint32_t(c));
      } else {
        all += std::string_view(text).substr(begin, at - begin);
      }
    }
    out_.add(all + "\"");
  }

  Writer out_;
  const JsonStyle& style_;
};

}  // namespace

std::string text_form(Run& run, const Value& value) {
  if (const auto* text = value.text()) return *text;
  if (value.undefined()) return "";
  Writer out(run);
  write_repr(out, value);
  return out.take();
}

std::string json_form(Run& run, const Value& value, const JsonStyle& style) {
  return JsonWriter(run, style).write(value);
}

}  // namespace perigee::text::jinja
