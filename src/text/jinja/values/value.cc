#include "text/jinja/values/value.h"

#include <algorithm>
#include <limits>

namespace perigee::text::jinja {
namespace {

template <class Items>
auto* find_in(Items& items, std::string_view key) {
  const auto found = std::ranges::find_if(items, [&](const auto& item) {
    if constexpr (std::is_same_v<std::decay_t<decltype(item.first)>, std::string>) {
      return item.first == key;
    } else {
      return item.first.text() && *item.first.text() == key;
    }
  });
  return found == items.end() ? nullptr : &found->second;
}

size_t deepest_of(const Values& items) {
  size_t deepest = 0;
  for (const auto& item : items) deepest = std::max(deepest, item.depth());
  return deepest;
}

size_t checked_depth(size_t deepest) {
  if (deepest + 1 > kDeepest) refuse("values must be nested at most {} deep, but are", kDeepest);
  return deepest + 1;
}

}  // namespace

size_t Value::depth() const {
  if (const auto* l = list()) return l->depth;
  if (const auto* d = dict()) return d->depth;
  if (const auto* f = function()) return f->depth;
  if (const auto* l = loop()) return l->depth;
  return 0;
}

bool Value::same(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (none()) return true;
  if (boolean()) return *boolean() == *other.boolean();
  if (integer()) return *integer() == *other.integer();
  if (real()) return *real() == *other.real();
  if (text()) return *text() == *other.text();
  return list() == other.list() && dict() == other.dict() && names() == other.names() &&
         function() == other.function() && loop() == other.loop() && !undefined();
}

std::string Value::kind() const {
  if (none()) return "none";
  if (const auto* u = undefined()) return fmt::format("{}, which is not defined", *u->what);
  if (boolean()) return *boolean() ? "true" : "false";
  if (integer()) return fmt::format("the number {}", *integer());
  if (real()) return fmt::format("the number {}", *real());
  if (text()) return "a text";
  if (dict()) return "a mapping";
  if (names()) return "a namespace";
  if (function()) return fmt::format("the function {}", function()->name);
  if (loop()) return "the loop";
  switch (list()->kind) {
    case List::Kind::tuple:
      return "a tuple";
    case List::Kind::range:
      return "a range";
    case List::Kind::view:
    case List::Kind::generator:
      return "a sequence that | list makes a list";
    default:
      return "a list";
  }
}

const Value* Dict::find(std::string_view key) const { return find_in(items, key); }
const Value* Namespace::find(std::string_view name) const { return find_in(items, name); }

Value make_list(Values items, List::Kind kind) {
  const auto depth = checked_depth(deepest_of(items));
  return std::make_shared<const List>(List{kind, std::move(items), depth});
}

std::shared_ptr<Loop> make_loop(Values items) {
  const auto depth = checked_depth(deepest_of(items));
  return std::make_shared<Loop>(Loop{.items = std::move(items), .depth = depth});
}

Value make_dict(std::vector<std::pair<Value, Value>> items) {
  size_t deepest = 0;
  for (const auto& [key, value] : items) deepest = std::max({deepest, key.depth(), value.depth()});
  Dict dict{.items = std::move(items), .depth = checked_depth(deepest)};
  return std::make_shared<const Dict>(std::move(dict));
}

Value make_function(std::string name, std::function<Value(Run&, const Arguments&)> call,
                    size_t depth) {
  return std::make_shared<const Callable>(
      Callable{std::move(name), std::move(call), checked_depth(depth)});
}

Value from_json(const nlohmann::ordered_json& json, size_t depth) {
  checked_depth(depth);
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max())) {
        refuse("whole numbers must be below 2^63, but one is {}", json.get<uint64_t>());
      }
      return json.get<int64_t>();
    case nlohmann::ordered_json::value_t::number_integer:
      return json.get<int64_t>();
    case nlohmann::ordered_json::value_t::number_float:
      return json.get<double>();
    case nlohmann::ordered_json::value_t::string:
      return json.get<std::string>();
    case nlohmann::ordered_json::value_t::array: {
      Values items;
      for (const auto& item : json) items.push_back(from_json(item, depth + 1));
      return make_list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, value] : json.items())
        items.emplace_back(key, from_json(value, depth + 1));
      return make_dict(std::move(items));
    }
    default:
      return {};
  }
}

bool truth(const Value& value) {
  if (value.none() || value.undefined()) return false;
  if (const auto* b = value.boolean()) return *b;
  if (const auto* i = value.integer()) return *i != 0;
  if (const auto* d = value.real()) return *d != 0;
  if (const auto* t = value.text()) return !t->empty();
  if (const auto* l = value.list()) return l->kind == List::Kind::generator || !l->items.empty();
  if (const auto* d = value.dict()) return !d->items.empty();
  return true;
}

std::vector<const Value*> bind(const Arguments& arguments, std::string_view callee,
                               std::initializer_list<std::string_view> names, size_t required) {
  if (arguments.positional.size() > names.size()) {
    refuse("{} takes at most {} arguments, but got {}", callee, names.size(),
           arguments.positional.size());
  }
  std::vector<const Value*> bound(names.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) refuse("{} has no argument \"{}\"", callee, name);
    auto& place = bound[found - names.begin()];
    if (place) refuse("{} takes one \"{}\", but got two", callee, name);
    place = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound[i]) refuse("{} needs the argument \"{}\"", callee, std::data(names)[i]);
  }
  return bound;
}

}  // namespace perigee::text::jinja
