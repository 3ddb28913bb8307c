#include "text/jinja/template.h"

#include "base/fail.h"
#include "text/jinja/run.h"
#include "text/jinja/syntax/parser.h"

namespace perigee::text::jinja {
namespace {

constexpr size_t kLongestMessage = 2'000;  // bytes; a template's own may be long

[[noreturn]] void fail_at(const std::string& name, const PlacedRefusal& refusal) {
  std::string message = refusal.what();
  if (message.size() > kLongestMessage) {
    message.resize(kLongestMessage);
    while ((message.back() & 0xC0) == 0x80) message.pop_back();  // a character that was cut
    if (message.back() & 0x80) message.pop_back();
    message += " ...";
  }
  fail("template", "{}:{}: {}", name, refusal.line, message);
}

}  // namespace

Template::Template(std::string_view source, std::string name)
    : name_(std::move(name)), body_(std::make_unique<Body>()) {
  try {
    auto parsed = parse(source);
    *body_ = std::move(parsed.body);
    marks_generation_ = parsed.marks_generation;
  } catch (const PlacedRefusal& refusal) {
    fail_at(name_, refusal);
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

Rendered Template::render(const Inputs& inputs) const {
  try {
    Frame variables;
    try {
      for (const auto& [name, value] : inputs.variables.items()) {
        variables.variables.emplace(name, from_json(value));
      }
    } catch (const Refusal& refusal) {
      throw PlacedRefusal(1, refusal.what());
    }
    return Run(inputs.limits, inputs.now).render(*body_, std::move(variables));
  } catch (const PlacedRefusal& refusal) {
    fail_at(name_, refusal);
  }
}

}  // namespace perigee::text::jinja
