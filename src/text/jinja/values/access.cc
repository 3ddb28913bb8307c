#include "text/jinja/values/access.h"

#include <algorithm>
#include <array>

#include "text/jinja/values/characters.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/write.h"

namespace perigee::text::jinja {
namespace {

void check_defined(const Value& value) {
  if (const auto* u = value.undefined()) refuse("{} must be defined, but is not", *u->what);
}

Value missing(const Value& value, const std::string& name) {
  return Value::undefined(fmt::format("\"{}\" of {}", name, value.kind()));
}

Value loop_attribute(const std::shared_ptr<Loop>& loop, const std::string& name) {
  const auto& items = loop->items;
  const auto index = int64_t(loop->index), size = int64_t(items.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return size - index;
  if (name == "revindex0") return size - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 >= size;
  if (name == "length") return size;
  if (name == "depth") return int64_t(1);
  if (name == "depth0") return int64_t(0);
  if (name == "previtem") {
    return index > 0 ? items[index - 1] : Value::undefined("the item before the first");
  }
  if (name == "nextitem") {
    return index + 1 < size ? items[index + 1] : Value::undefined("the item after the last");
  }
  if (name == "cycle") {
    return make_function(
        "loop.cycle",
        [loop](Run&, const Arguments& given) {
          if (given.positional.empty()) refuse("loop.cycle needs values, but got none");
          return given.positional[loop->index % given.positional.size()];
        },
        loop->depth);
  }
  if (name == "changed") {
    return make_function(
        "loop.changed",
        [loop](Run& run, const Arguments& given) {
          auto now = run.list_of(given.positional, List::Kind::tuple);
          text_form(run, now);  // refuses loops and functions, which could refer to this loop
          const bool changed = !equal(run, loop->changed, now);
          loop->changed = std::move(now);
          return Value(changed);
        },
        loop->depth);
  }
  return Value::undefined(fmt::format("\"{}\" of the loop", name));
}

// Methods that change their object: the sandbox has none of these.
bool changes_object(const Value& value, std::string_view name) {
  constexpr std::array kList{"append", "clear",  "extend",  "insert",
                             "pop",    "remove", "reverse", "sort"};
  constexpr std::array kDict{"clear", "pop", "popitem", "setdefault", "update"};
  const bool list = value.list() && value.list()->kind == List::Kind::list;
  return list ? std::ranges::count(kList, name) > 0
              : value.dict() && std::ranges::count(kDict, name) > 0;
}

// A place in a sequence of the size, as Python's slices clip it.
int64_t clipped(const Value* part, int64_t size, int64_t standard, bool backwards) {
  if (!part || part->none()) return standard;
  if (!part->whole()) refuse("a slice must be of whole numbers, but got {}", part->kind());
  int64_t place = part->as_whole();
  if (place < 0) place = place < -size ? (backwards ? -1 : 0) : place + size;
  return place >= size ? (backwards ? size - 1 : size) : std::max<int64_t>(place, -1);
}

}  // namespace

Value attribute(Run& run, const Value& value, const std::string& name) {
  check_defined(value);
  if (const auto* names = value.names()) {
    const auto* found = names->find(name);
    return found ? *found : missing(value, name);
  }
  if (value.loop()) return loop_attribute(value.shared_loop(), name);
  if (const auto* method = find_method(value, name)) {
    return make_function(
        name,
        [method, value](Run& r, const Arguments& given) { return method->call(r, value, given); },
        value.depth());
  }
  if (changes_object(value, name)) {
    return Value::undefined(
        fmt::format("\"{}\" (templates change no lists and mappings, use + or a namespace)", name));
  }
  if (const auto* dict = value.dict()) {
    run.spend(1 + dict->items.size() / 8);
    if (const auto* found = dict->find(name)) return *found;
  }
  return missing(value, name);
}

Value item(Run& run, const Value& value, const Value& key) {
  check_defined(value);
  if (const auto* dict = value.dict()) {
    if (const auto* found = find_key(run, *dict, key)) return *found;
  } else if (key.whole() && value.text()) {
    const auto& text = *value.text();
    run.spend(text.size() / 64);
    const auto size = int64_t(length_of(text)), index = key.as_whole();
    if (index >= -size && index < size) {
      size_t end = byte_of(text, index < 0 ? index + size : index);
      const auto begin = end;
      next_character(text, end);
      return run.text_of(text.substr(begin, end - begin));
    }
  } else if (key.whole() && value.list()) {
    const auto& list = *value.list();
    const bool ordered = list.kind != List::Kind::view && list.kind != List::Kind::generator;
    const auto size = int64_t(list.items.size()), index = key.as_whole();
    if (ordered && index >= -size && index < size) {
      return list.items[index < 0 ? index + size : index];
    }
  }
  if (!key.text()) return Value::undefined(fmt::format("an item of {}", value.kind()));
  if (value.dict() && !find_method(value, *key.text())) return missing(value, *key.text());
  return attribute(run, value, *key.text());
}

Value slice(Run& run, const Value& value, const SliceParts& parts) {
  check_defined(value);
  const auto* list = value.list();
  if (list && (list->kind == List::Kind::view || list->kind == List::Kind::generator)) {
    list = nullptr;
  }
  if (!list && !value.text()) refuse("a text or a list has slices, but {} has not", value.kind());
  int64_t step = 1;
  if (parts.step && !parts.step->none()) {
    if (!parts.step->whole()) {
      refuse("the step of a slice must be a whole number, but is {}", parts.step->kind());
    }
    step = parts.step->as_whole();
  }
  if (step == 0) refuse("the step of a slice must not be 0");
  const bool back = step < 0;
  const auto size = int64_t(list ? list->items.size() : length_of(*value.text()));
  if (value.text()) run.spend(value.text()->size() / 16);
  const auto begin = clipped(parts.begin, size, back ? size - 1 : 0, back);
  const auto end = clipped(parts.end, size, back ? -1 : size, back);
  if (value.text() && step == 1) {
    if (end <= begin) return Value(std::string());
    const auto from = byte_of(*value.text(), begin);
    const auto to = from + byte_of(std::string_view(*value.text()).substr(from), end - begin);
    return run.text_of(value.text()->substr(from, to - from));
  }
  Values items;
  std::string text;
  std::vector<size_t> starts;
  if (value.text()) {
    for (size_t at = 0; at < value.text()->size(); next_character(*value.text(), at)) {
      starts.push_back(at);
    }
    starts.push_back(value.text()->size());
  }
  for (int64_t i = begin; back ? i > end : i < end;) {
    if (list) {
      items.push_back(list->items[i]);
    } else {
      text += value.text()->substr(starts[i], starts[i + 1] - starts[i]);
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list ? run.list_of(std::move(items), list->kind) : run.text_of(std::move(text));
}

}  // namespace perigee::text::jinja
