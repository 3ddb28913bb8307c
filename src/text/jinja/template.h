// Templates in the subset of Jinja that published chat templates use, rendered as by PyPI's jinja2
// with the settings of transformers: ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop
// controls, {% generation %}, and tojson without HTML escapes.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::text::jinja {

struct Body;

// Limits on one rendering. A template that exceeds one is refused.
struct Limits {
  uint64_t steps = 20'000'000;              // evaluated expressions, iterations, 16 bytes of a text
  uint64_t made_bytes = uint64_t(1) << 29;  // texts and lists that are made, the output included
  size_t depth = 1'000;                     // nested evaluations, those of macros included
};

// Bytes of a rendered text.
struct Span {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const Span&) const = default;
};

struct Rendered {
  std::string text;
  std::vector<Span> generated;  // the texts within {% generation %}, in order
};

struct Inputs {
  nlohmann::ordered_json variables;  // an object; its members are the template's variables
  std::time_t now = 0;               // the time of strftime_now, shown as local time
  Limits limits;
};

// A template. Rendering changes nothing in it, so that threads may share one. Errors are
// "[template] NAME:LINE: rule, but got value".
class Template {
 public:
  // Throws Error where the text is no template, or uses a tag, filter or test outside the subset.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  // Throws Error where an operation fails, a limit is exceeded or raise_exception is called.
  Rendered render(const Inputs& inputs) const;

  // Whether the template marks the model's answers by {% generation %}.
  bool marks_generation() const { return marks_generation_; }

 private:
  std::string name_;
  std::unique_ptr<Body> body_;
  bool marks_generation_ = false;
};

}  // namespace perigee::text::jinja
