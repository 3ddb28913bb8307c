// Methods of mappings and lists, and operations that methods and filters share.
#include <algorithm>
#include <array>

#include "text/jinja/values/access.h"
#include "text/jinja/values/characters.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/write.h"

namespace perigee::text::jinja {
namespace {

enum class Part { key, value, both };

template <Part part>
Value view(Run& run, const Value& self, const Arguments& given) {
  bind(given, "this method", {});
  Values items;
  for (const auto& [key, value] : self.dict()->items) {
    if (part == Part::both) {
      items.push_back(run.list_of({key, value}, List::Kind::tuple));
    } else {
      items.push_back(part == Part::key ? key : value);
    }
  }
  return run.list_of(std::move(items), List::Kind::view);
}

Value get(Run& run, const Value& self, const Arguments& given) {
  const auto a = bind(given, "get", {"key", "default"}, 1);
  if (const auto* found = find_key(run, *self.dict(), *a[0])) return *found;
  return a[1] ? *a[1] : Value();
}

Value copy(Run&, const Value& self, const Arguments& given) {
  bind(given, "copy", {});
  return self;
}

Value count(Run& run, const Value& self, const Arguments& given) {
  const auto a = bind(given, "count", {"value"}, 1);
  return int64_t(std::ranges::count_if(self.list()->items,
                                       [&](const Value& item) { return equal(run, item, *a[0]); }));
}

Value index(Run& run, const Value& self, const Arguments& given) {
  const auto a = bind(given, "index", {"value"}, 1);
  const auto& items = self.list()->items;
  const auto found = std::ranges::find_if(
      items, [&](const Value& item) { return equal(run, item, *a[0]); });
  if (found == items.end()) refuse("the value of index() must be in the list, but is not");
  return int64_t(found - items.begin());
}

constexpr std::array kDict{Method{"items", view<Part::both>}, Method{"keys", view<Part::key>},
                           Method{"values", view<Part::value>}, Method{"get", get},
                           Method{"copy", copy}};
constexpr std::array kList{Method{"count", count}, Method{"index", index}, Method{"copy", copy}};

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

Values split_at_space(Run& run, std::string_view text, int64_t most) {
  Values parts;
  for (text = strip_left(text); !text.empty(); text = strip_left(text)) {
    size_t end = 0;
    if (most >= 0 && parts.size() == size_t(most)) {
      end = text.size();
    } else {
      for (size_t at = 0; at < text.size() && !is_space(next_character(text, at));) end = at;
    }
    parts.push_back(run.text_of(std::string(text.substr(0, end))));
    text.remove_prefix(end);
  }
  return parts;
}

}  // namespace

const Method* find_method(const Value& self, std::string_view name) {
  if (self.text()) return find_text_method(name);
  const auto in = [&](const auto& methods) -> const Method* {
    const auto found = std::ranges::find(methods, name, &Method::name);
    return found == methods.end() ? nullptr : found;
  };
  if (self.dict()) return in(kDict);
  const auto* list = self.list();
  if (!list || (list->kind != List::Kind::list && list->kind != List::Kind::tuple)) return nullptr;
  return list->kind == List::Kind::tuple && name == "copy" ? nullptr : in(kList);
}

Values split_text(Run& run, const std::string& text, const std::string* separator, int64_t most) {
  run.spend(text.size() / 16);
  if (!separator) return split_at_space(run, text, most);
  if (separator->empty()) refuse("a separator must not be empty, but is");
  Values parts;
  size_t begin = 0;
  for (;;) {
    const bool cut = most < 0 || parts.size() < size_t(most);
    const auto end = cut ? find_text(text, *separator, begin) : std::string::npos;
    run.make(sizeof(Value));
    parts.push_back(run.text_of(text.substr(begin, end == text.npos ? end : end - begin)));
    if (end == std::string::npos) return parts;
    begin = end + separator->size();
  }
}

Values lines_of(Run& run, const std::string& text) {
  Values lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const auto end = at;
    const auto c = next_character(text, at);
    if (!is_line_end(c)) continue;
    lines.push_back(run.text_of(text.substr(begin, end - begin)));
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    begin = at;
  }
  if (begin < text.size()) lines.push_back(run.text_of(text.substr(begin)));
  return lines;
}

Value replaced(Run& run, const std::string& text, const std::string& old, const std::string& by,
               int64_t most) {
  Writer out(run);
  run.spend(text.size() / 16);
  size_t begin = 0;
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    if (old.empty()) {  // before each character, and at the end
      size_t next = begin;
      out.add(by);
      if (begin >= text.size()) break;
      next_character(text, next);
      out.add(std::string_view(text).substr(begin, next - begin));
      begin = next;
      continue;
    }
    const auto found = find_text(text, old, begin);
    if (found == text.npos) break;
    out.add(std::string_view(text).substr(begin, found - begin));
    out.add(by);
    begin = found + old.size();
  }
  out.add(std::string_view(text).substr(begin));
  return Value(out.take());
}

const std::string& text_argument(const Value* given, std::string_view callee) {
  if (!given || !given->text()) {
    refuse("{} needs a text, but got {}", callee, given ? given->kind() : "nothing");
  }
  return *given->text();
}

int64_t whole_argument(const Value* given, std::string_view callee, int64_t standard) {
  if (!given || given->none()) return standard;
  if (!given->whole()) refuse("{} needs a whole number, but got {}", callee, given->kind());
  return given->as_whole();
}

}  // namespace perigee::text::jinja
