// Filters of lists and mappings.
#include <algorithm>
#include <array>

#include "text/jinja/library/filters.h"
#include "text/jinja/values/access.h"
#include "text/jinja/values/characters.h"
#include "text/jinja/values/operators.h"
#include "text/jinja/values/write.h"

namespace perigee::text::jinja {
namespace {

bool flag(const Value* given) { return given && truth(*given); }

Value length(Run& run, const Value& value, const Arguments& given) {
  bind(given, "length", {});
  if (value.undefined()) return int64_t(0);
  if (const auto* text = value.text()) {
    run.spend(text->size() / 64);
    return int64_t(length_of(*text));
  }
  if (value.dict()) return int64_t(value.dict()->items.size());
  if (value.loop()) return int64_t(value.loop()->items.size());
  if (!value.list() || value.list()->kind == List::Kind::generator) {
    refuse("length needs a text, a list or a mapping, but got {}", value.kind());
  }
  return int64_t(value.list()->items.size());
}

Value first(Run& run, const Value& value, const Arguments& given) {
  bind(given, "first", {});
  const auto* list = value.list();
  if (list && list->kind == List::Kind::generator) {
    if (list->consumed < list->items.size()) return list->items[list->consumed++];
    return Value::undefined("the first item of none");
  }
  const auto items = run.items_of(value);
  return items.empty() ? Value::undefined("the first item of none") : items.front();
}

Value last(Run& run, const Value& value, const Arguments& given) {
  bind(given, "last", {});
  if (value.list() && value.list()->kind == List::Kind::generator) {
    refuse("last needs a list, but got {}", value.kind());
  }
  const auto items = run.items_of(value);
  return items.empty() ? Value::undefined("the last item of none") : items.back();
}

Value list(Run& run, const Value& value, const Arguments& given) {
  bind(given, "list", {});
  return make_list(run.items_of(value));
}

Value items(Run& run, const Value& value, const Arguments& given) {
  bind(given, "items", {});
  if (value.undefined()) return run.list_of({}, List::Kind::generator);
  if (!value.dict()) refuse("items needs a mapping, but got {}", value.kind());
  Values pairs;
  for (const auto& [key, each] : value.dict()->items) {
    pairs.push_back(run.list_of({key, each}, List::Kind::tuple));
  }
  return run.list_of(std::move(pairs), List::Kind::generator);
}

Value join(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, "join", {"d", "attribute"});
  const auto separator = a[0] ? text_form(run, *a[0]) : "";
  Writer out(run);
  bool begun = false;
  for (const auto& item : run.items_of(value)) {
    if (begun) out.add(separator);
    out.add(text_form(run, key_of(run, item, a[1])));
    begun = true;
  }
  return Value(out.take());
}

Value reverse(Run& run, const Value& value, const Arguments& given) {
  bind(given, "reverse", {});
  if (value.text()) {
    const Value back(int64_t(-1));
    return slice(run, value, {.step = &back});
  }
  const auto* list = value.list();
  const bool reversible = value.dict() || (list && list->kind != List::Kind::generator);
  auto items = run.items_of(value);
  std::ranges::reverse(items);
  return make_list(std::move(items), reversible ? List::Kind::generator : List::Kind::list);
}

// Sorts items by keys.
Values sorted(Run& run, Values items, const std::vector<Values>& keys, bool backwards) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto before = [&](size_t a, size_t b) {
    for (size_t k = 0; k < keys[a].size(); ++k) {
      if (!equal(run, keys[a][k], keys[b][k])) return less(run, keys[a][k], keys[b][k]);
    }
    return false;
  };
  // Equal items keep their order, also backwards.
  std::ranges::stable_sort(
      order, [&](size_t a, size_t b) { return backwards ? before(b, a) : before(a, b); });
  Values out;
  for (const auto i : order) out.push_back(items[i]);
  return out;
}

Value sort(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, "sort", {"reverse", "case_sensitive", "attribute"});
  const auto items = run.items_of(value);
  const Value none;
  Values attributes = {a[2] ? *a[2] : none};
  if (attributes[0].text()) {
    const std::string comma = ",";
    attributes = split_text(run, *attributes[0].text(), &comma, -1);
  }
  std::vector<Values> keys;
  for (const auto& item : items) {
    Values key;
    for (const auto& each : attributes) key.push_back(key_of(run, item, &each, flag(a[1])));
    run.make(key.size() * sizeof(Value) + sizeof(Values));
    keys.push_back(std::move(key));
  }
  return run.list_of(sorted(run, items, keys, flag(a[0])));
}

Value dictsort(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, "dictsort", {"case_sensitive", "by", "reverse"});
  if (!value.dict()) refuse("dictsort needs a mapping, but got {}", value.kind());
  const auto by = a[1] ? text_argument(a[1], "dictsort") : "key";
  if (by != "key" && by != "value") refuse("dictsort is by key or value, but got \"{}\"", by);
  Values pairs;
  std::vector<Values> keys;
  for (const auto& [key, each] : value.dict()->items) {
    pairs.push_back(run.list_of({key, each}, List::Kind::tuple));
    keys.push_back({key_of(run, by == "key" ? key : each, nullptr, flag(a[0]))});
  }
  return run.list_of(sorted(run, pairs, keys, flag(a[2])));
}

Value unique(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, "unique", {"case_sensitive", "attribute"});
  Values seen, chosen;
  for (const auto& item : run.items_of(value)) {
    auto key = key_of(run, item, a[1], flag(a[0]));
    if (key.dict() || (key.list() && key.list()->kind == List::Kind::list)) {
      refuse("unique needs texts and numbers, but got {}", key.kind());
    }
    if (std::ranges::any_of(seen, [&](const Value& other) { return equal(run, other, key); })) {
      continue;
    }
    seen.push_back(std::move(key));
    chosen.push_back(item);
  }
  return run.list_of(std::move(chosen), List::Kind::generator);
}

template <bool largest>
Value extreme(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, largest ? "max" : "min", {"case_sensitive", "attribute"});
  const auto items = run.items_of(value);
  if (items.empty()) return Value::undefined("the least or largest item of none");
  size_t best = 0;
  auto best_key = key_of(run, items[0], a[1], flag(a[0]));
  for (size_t i = 1; i < items.size(); ++i) {
    auto key = key_of(run, items[i], a[1], flag(a[0]));
    if (!(largest ? less(run, best_key, key) : less(run, key, best_key))) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Value sum(Run& run, const Value& value, const Arguments& given) {
  const auto a = bind(given, "sum", {"attribute", "start"});
  auto total = a[1] ? *a[1] : Value(int64_t(0));
  if (total.text()) refuse("sum needs numbers or lists, but got a text");
  for (const auto& item : run.items_of(value)) {
    total = arithmetic(run, "+", total, key_of(run, item, a[0]));
  }
  return total;
}

constexpr std::array kListFilters{
    Filter{"length", length},     Filter{"count", length},      Filter{"first", first},
    Filter{"last", last},         Filter{"list", list},         Filter{"items", items},
    Filter{"join", join},         Filter{"reverse", reverse},   Filter{"sort", sort},
    Filter{"unique", unique},     Filter{"dictsort", dictsort}, Filter{"min", extreme<false>},
    Filter{"max", extreme<true>}, Filter{"sum", sum},
};

}  // namespace

std::span<const Filter> list_filters() { return kListFilters; }

Value key_of(Run& run, const Value& item, const Value* attribute, bool cased) {
  Value key = item;
  if (attribute && attribute->text()) {
    const std::string dot = ".";
    for (const auto& part : split_text(run, *attribute->text(), &dot, -1)) {
      const auto number = std::ranges::all_of(*part.text(), [](char c) { return is_digit(c); });
      const auto index = number && !part.text()->empty() && part.text()->size() < 18;
      key = jinja::item(run, key, index ? Value(int64_t(std::stoll(*part.text()))) : part);
    }
  } else if (attribute && !attribute->none()) {
    key = jinja::item(run, key, *attribute);
  }
  return cased || !key.text() ? key : Value(lower(*key.text()));
}

}  // namespace perigee::text::jinja
