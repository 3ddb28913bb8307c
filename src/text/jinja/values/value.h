// Values of templates, with the meaning of Python's. All but namespaces are immutable.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace perigee::text::jinja {

// An operation that is refused; Template adds the place.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Refusal(fmt::format(format, std::forward<Args>(args)...));
}

class Value;
class Run;
struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

// A name, attribute or item that does not exist. It prints as nothing and is false and empty;
// most other operations refuse it.
struct Undefined {
  std::shared_ptr<const std::string> what;  // for messages
};
struct None {};
using Text = std::shared_ptr<const std::string>;  // UTF-8; lengths and places count characters

class Value {
 public:
  Value() : data_(None{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(Text text) : data_(std::move(text)) {}
  Value(std::shared_ptr<const List> list) : data_(std::move(list)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(std::shared_ptr<Namespace> names) : data_(std::move(names)) {}
  Value(std::shared_ptr<const Callable> function) : data_(std::move(function)) {}
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}
  Value(const void*) = delete;  // no pointer is a bool

  static Value undefined(std::string what) {
    return Undefined{std::make_shared<const std::string>(std::move(what))};
  }

  // Returns the value where it is of the type, else nullptr.
  const std::string* text() const { return pointee<Text>(); }
  const List* list() const { return pointee<std::shared_ptr<const List>>(); }
  const Dict* dict() const { return pointee<std::shared_ptr<const Dict>>(); }
  Namespace* names() const { return pointee<std::shared_ptr<Namespace>>(); }
  const Callable* function() const { return pointee<std::shared_ptr<const Callable>>(); }
  Loop* loop() const { return pointee<std::shared_ptr<Loop>>(); }
  std::shared_ptr<Loop> shared_loop() const { return std::get<std::shared_ptr<Loop>>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const Undefined* undefined() const { return std::get_if<Undefined>(&data_); }
  bool none() const { return std::holds_alternative<None>(data_); }
  // A whole number, or a boolean as 0 or 1.
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  bool whole() const { return integer() || boolean(); }
  int64_t as_whole() const { return boolean() ? int64_t(*boolean()) : *integer(); }
  bool number() const { return whole() || real(); }
  double as_real() const { return real() ? *real() : double(as_whole()); }

  // Levels of lists and mappings in the value: at most kDeepest.
  size_t depth() const;
  // Whether both are one object.
  bool same(const Value& other) const;
  // Returns "a text", "a list", ...
  std::string kind() const;

 private:
  template <class Pointer>
  auto pointee() const -> decltype(std::declval<Pointer>().get()) {
    const auto* pointer = std::get_if<Pointer>(&data_);
    return pointer ? pointer->get() : nullptr;
  }

  std::variant<None, Undefined, bool, int64_t, double, Text, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Callable>, std::shared_ptr<Loop>>
      data_;
};

using Values = std::vector<Value>;
constexpr size_t kDeepest = 200;

// Values in a row. A generator is consumed by the first use of its items.
struct List {
  enum class Kind { list, tuple, range, view, generator };
  Kind kind = Kind::list;
  Values items;
  size_t depth = 1;
  mutable size_t consumed = 0;  // of a generator
};

// Keys with values, in the order in which they were added.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  size_t depth = 1;
  const Value* find(std::string_view key) const;
};

// The one kind of value that `set` changes.
struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
  const Value* find(std::string_view name) const;
};

struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// A macro, a function, or a method with its object.
struct Callable {
  std::string name;
  std::function<Value(Run&, const Arguments&)> call;
  size_t depth = 0;  // of its object
};

// The state of a {% for %}.
struct Loop {
  Values items;
  size_t depth = 1;
  size_t index = 0;  // from 0
  Value changed;     // the last arguments of loop.changed: neither loops nor functions
};

// Throw Refusal where values are nested deeper than kDeepest, which limits the recursion of all
// functions on values, and of their destruction.
Value make_list(Values items, List::Kind kind = List::Kind::list);
Value make_dict(std::vector<std::pair<Value, Value>> items);
std::shared_ptr<Loop> make_loop(Values items);
Value make_function(std::string name, std::function<Value(Run&, const Arguments&)> call,
                    size_t depth = 0);

// Returns the value of JSON. Throws Refusal for whole numbers beyond 63 bits.
Value from_json(const nlohmann::ordered_json& json, size_t depth = 0);

bool truth(const Value& value);

// Returns the arguments in the order of `names`, nullptr where one is not given. Throws Refusal
// where there are others, or fewer than `required`.
std::vector<const Value*> bind(const Arguments& arguments, std::string_view callee,
                               std::initializer_list<std::string_view> names, size_t required = 0);

std::vector<const Value*> bind(Arguments&&, std::string_view,
                               std::initializer_list<std::string_view>,
                               size_t required = 0) = delete;  // they would refer to nothing

}  // namespace perigee::text::jinja
