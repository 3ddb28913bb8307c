// Chat templates (text/jinja), with the rules that a text is UTF-8, marks are in order, and a second
// rendering is the same.
#include "base/text/utf8.h"
#include "tests/fuzz/target.h"
#include "text/jinja/template.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(template) {
  static const auto variables = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": " S é "}, {"role": "user", "content": "a\nb 🙂"},
      {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f",
        "arguments": {"x": [1, 2.5, true]}}}]}, {"role": "tool", "content": "{}"}],
    "tools": [{"function": {"name": "f"}}], "bos_token": "<s>", "eos_token": "</s>", "n": -7})");
  const text::jinja::Template parsed(input, "fuzzed");
  const text::jinja::Inputs inputs{
      .variables = variables, .limits = {.steps = 100'000, .made_bytes = 1 << 22, .depth = 300}};
  const auto rendered = parsed.render(inputs);
  for (std::string_view rest = rendered.text; !rest.empty();) {
    const auto front = utf8_front(rest);
    fuzz::require(front.whole, "a rendered text is UTF-8");
    rest.remove_prefix(front.bytes);
  }
  size_t end = 0;
  for (const auto& span : rendered.generated) {
    fuzz::require(end <= span.begin && span.begin <= span.end && span.end <= rendered.text.size(),
                  "marked texts are in order");
    end = span.end;
  }
  fuzz::require(parsed.render(inputs).text == rendered.text, "a second rendering is the same");
}
