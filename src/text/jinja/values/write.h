// Values as texts: Python's str() and repr(), and JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/run.h"
#include "text/jinja/values/value.h"

namespace perigee::text::jinja {

// A text that is made in parts, each of which counts.
class Writer {
 public:
  explicit Writer(Run& run) : run_(run) {}
  void add(std::string_view part) {
    run_.make(part.size());
    text_ += part;
  }
  std::string take() { return std::move(text_); }
  Run& run() { return run_; }

 private:
  Run& run_;
  std::string text_;
};

// Returns str(value). Throws Refusal for namespaces, functions and sequences that have no items of
// their own.
std::string text_form(Run& run, const Value& value);

struct JsonStyle {
  bool ascii = false;                 // characters beyond ASCII are escaped
  std::optional<std::string> indent;  // of each level; none: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// Returns json.dumps(value). Throws Refusal for values that JSON does not have.
std::string json_form(Run& run, const Value& value, const JsonStyle& style);

}  // namespace perigee::text::jinja
