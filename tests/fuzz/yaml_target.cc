// YAML, which dialects of other systems read (base/text/yaml.h).
#include "base/text/yaml.h"
#include "tests/fuzz/target.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(yaml) {
  const auto yaml = parse_yaml(input, "a.yaml");
  for (const auto& [path, line] : yaml.lines) fuzz::require(line >= 1, "a value has no line");
  // JSON is a part of YAML, so that the value's JSON is the same value. A key of over 1024
  // characters is none in YAML, and control characters that JSON leaves as they are must be escaped.
  auto text = yaml.value.dump(-1, ' ', /*ensure_ascii=*/true);
  for (size_t at; (at = text.find('\x7f')) != text.npos;) text.replace(at, 1, "\\u007f");
  // libyaml refuses JSON's pairs of surrogates, of characters beyond U+FFFF.
  if (text.size() > 1000 || text.find("\\ud") != text.npos) return;
  const auto again = fuzz::accepted("a value's JSON is refused",
                                    [&] { return parse_yaml(text, "a.json"); });
  fuzz::require(again.value == yaml.value, "a value's JSON is another value");
}
