// Methods of texts.
#include <algorithm>
#include <array>

#include "text/jinja/values/access.h"
#include "text/jinja/values/characters.h"
#include "text/jinja/values/write.h"

namespace perigee::text::jinja {
namespace {

const std::string& of(const Value& self) { return *self.text(); }

template <auto change>
Value changed(Run& run, const Value& self, const Arguments& given) {
  bind(given, "this method", {});
  return run.text_of(std::string(change(of(self))));
}

template <bool left, bool right>
Value strip(Run& run, const Value& self, const Arguments& given) {
  const auto a = bind(given, "strip", {"chars"});
  const auto* chars = !a[0] || a[0]->none() ? nullptr : &text_argument(a[0], "strip");
  run.spend(of(self).size() * (1 + (chars ? chars->size() : 0)) / 16);
  std::string_view text = of(self);
  if (left) text = strip_left(text, chars);
  if (right) text = strip_right(text, chars);
  return run.text_of(std::string(text));
}

template <bool front>
Value begins(Run& run, const Value& self, const Arguments& given) {
  const auto* callee = front ? "startswith" : "endswith";
  const auto a = bind(given, callee, {"prefix"}, 1);
  const auto fits = [&](const Value& part) {
    run.spend(1);
    const auto& text = text_argument(&part, callee);
    return front ? of(self).starts_with(text) : of(self).ends_with(text);
  };
  if (!a[0]->list() || a[0]->list()->kind != List::Kind::tuple) return fits(*a[0]);
  return std::ranges::any_of(a[0]->list()->items, fits);
}

Value split(Run& run, const Value& self, const Arguments& given) {
  const auto a = bind(given, "split", {"sep", "maxsplit"});
  const auto* separator = !a[0] || a[0]->none() ? nullptr : &text_argument(a[0], "split");
  return run.list_of(split_text(run, of(self), separator, whole_argument(a[1], "split", -1)));
}

Value rsplit(Run& run, const Value& self, const Arguments& given) {
  const auto a = bind(given, "rsplit", {"sep", "maxsplit"}, 1);
  const auto& separator = text_argument(a[0], "rsplit");
  auto parts = split_text(run, of(self), &separator, -1);
  const auto most = whole_argument(a[1], "rsplit", -1);
  while (most >= 0 && parts.size() > size_t(most) + 1) {  // the first ones become one part again
    const auto extra = parts.size() - size_t(most);
    std::string first = *parts[0].text();
    for (size_t i = 1; i < extra; ++i) first += separator + *parts[i].text();
    parts.erase(parts.begin(), parts.begin() + (extra - 1));
    parts[0] = run.text_of(std::move(first));
  }
  return run.list_of(std::move(parts));
}

Value splitlines(Run& run, const Value& self, const Arguments& given) {
  bind(given, "splitlines", {});
  return run.list_of(lines_of(run, of(self)));
}

Value replace(Run& run, const Value& self, const Arguments& given) {
  const auto a = bind(given, "replace", {"old", "new", "count"}, 2);
  return replaced(run, of(self), text_argument(a[0], "replace"), text_argument(a[1], "replace"),
                  whole_argument(a[2], "replace", -1));
}

Value join(Run& run, const Value& self, const Arguments& given) {
  const auto a = bind(given, "join", {"iterable"}, 1);
  Writer out(run);
  bool first = true;
  for (const auto& part : run.items_of(*a[0])) {
    if (!first) out.add(of(self));
    out.add(text_argument(&part, "join"));
    first = false;
  }
  return Value(out.take());
}

Value count_text(Run& run, const Value& self, const Arguments& given) {
  const auto& part = text_argument(bind(given, "count", {"sub"}, 1)[0], "count");
  run.spend(of(self).size() / 16);
  if (part.empty()) return int64_t(length_of(of(self)) + 1);
  int64_t found = 0;
  for (auto at = find_text(of(self), part); at != std::string::npos;
       at = find_text(of(self), part, at + part.size())) {
    ++found;
  }
  return found;
}

template <bool last, bool required>
Value find(Run& run, const Value& self, const Arguments& given) {
  const auto& part = text_argument(bind(given, "find", {"sub"}, 1)[0], "find");
  const auto& text = of(self);
  run.spend(text.size() / 16);
  auto at = find_text(text, part);
  if (last) {
    for (auto next = at; next != std::string::npos; next = find_text(text, part, next + 1)) {
      run.spend(1 + part.size() / 16);
      at = next;
    }
  }
  if (at != std::string::npos) return int64_t(length_of(std::string_view(text).substr(0, at)));
  if (required) refuse("the text of index() must be found, but is not");
  return int64_t(-1);
}

template <bool front>
Value remove(Run& run, const Value& self, const Arguments& given) {
  const auto& part = text_argument(bind(given, "remove", {"part"}, 1)[0], "removeprefix");
  std::string_view text = of(self);
  if (front ? text.starts_with(part) : text.ends_with(part)) {
    text = front ? text.substr(part.size()) : text.substr(0, text.size() - part.size());
  }
  return run.text_of(std::string(text));
}

// Fills a text up to a number of characters.
template <bool left, bool right>
Value fill(Run& run, const Value& self, const Arguments& given) {
  const auto a = bind(given, "fill", {"width", "fillchar"}, 1);
  const std::string space = " ";
  const auto& character = a[1] ? text_argument(a[1], "fillchar") : space;
  if (length_of(character) != 1)
    refuse("a text must be filled with one character, but got several");
  const auto width = whole_argument(a[0], "width", 0), size = int64_t(length_of(of(self)));
  const auto missing = std::max<int64_t>(0, width - size);
  run.make(uint64_t(std::min<int64_t>(missing, int64_t(1) << 40)) * 4);
  const auto before = left && right ? missing / 2 + (missing & width & 1) : left ? missing : 0;
  std::string text;
  for (int64_t i = 0; i < before; ++i) text += character;
  text += of(self);
  for (int64_t i = before; i < missing; ++i) text += character;
  return run.text_of(std::move(text));
}

template <bool (*holds)(char32_t)>
bool all_of(std::string_view text) {
  bool all = !text.empty();
  for (size_t at = 0; all && at < text.size();) all = holds(next_character(text, at));
  return all;
}

bool alphabetic_or_digit(char32_t c) { return is_alphabetic(c) || is_digit(c); }

template <bool (*holds)(char32_t)>
Value is_all(Run& run, const Value& self, const Arguments& given) {
  bind(given, "this method", {});
  run.spend(of(self).size() / 16);
  return all_of<holds>(of(self));
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const auto begin = at;
    const auto c = next_character(text, at);
    const auto letter = text.substr(begin, at - begin);
    out += inside ? lower(letter) : capitalized(letter);
    inside = is_alphabetic(c);
  }
  return out;
}

constexpr std::array kMethods{
    Method{"strip", strip<true, true>},
    Method{"lstrip", strip<true, false>},
    Method{"rstrip", strip<false, true>},
    Method{"startswith", begins<true>},
    Method{"endswith", begins<false>},
    Method{"split", split},
    Method{"rsplit", rsplit},
    Method{"splitlines", splitlines},
    Method{"replace", replace},
    Method{"join", join},
    Method{"upper", changed<upper>},
    Method{"lower", changed<lower>},
    Method{"capitalize", changed<capitalized>},
    Method{"title", changed<title>},
    Method{"count", count_text},
    Method{"find", find<false, false>},
    Method{"rfind", find<true, false>},
    Method{"index", find<false, true>},
    Method{"removeprefix", remove<true>},
    Method{"removesuffix", remove<false>},
    Method{"ljust", fill<false, true>},
    Method{"rjust", fill<true, false>},
    Method{"center", fill<true, true>},
    Method{"isdigit", is_all<is_digit>},
    Method{"isalpha", is_all<is_alphabetic>},
    Method{"isalnum", is_all<alphabetic_or_digit>},
    Method{"isspace", is_all<is_space>},
};

}  // namespace

const Method* find_text_method(std::string_view name) {
  const auto found = std::ranges::find(kMethods, name, &Method::name);
  return found == kMethods.end() ? nullptr : found;
}

}  // namespace perigee::text::jinja
