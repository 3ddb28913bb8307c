// The pages runtime/methods/NAME.md hold the tables of the methods' fields. PERIGEE_UPDATE=1
// rewrites the tables.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "methods/method.h"
#include "tests/support/golden.h"

namespace perigee::methods {
namespace {

constexpr const char* kBegin = "<!-- fields -->\n";
constexpr const char* kEnd = "<!-- end of fields -->\n";

// Returns the text as a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string cell;
  for (const char c : text) cell += c == '|' ? std::string("\\|") : std::string(1, c);
  return cell;
}

std::string meaning_of(const ConfigField& field) {
  std::string text = field.doc;
  if (field.required) text += " (required)";
  if (field.no_effect.empty()) return text;
  return text + (text.empty() ? "" : "; ") + "no effect: " + field.no_effect;
}

// Returns the table of a method's fields, as its page holds it between kBegin and kEnd.
std::string table_of(const Method& method) {
  std::string text;
  if (!method.items().empty()) text += fmt::format("List part: {}.\n\n", method.items());
  if (method.fields().empty()) return text + "The method has no named fields.\n";
  text += "| field | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  for (const auto& field : method.fields()) {
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", field.name, name_of(field.type),
                        cell(field.default_text), cell(limits_of(field)), cell(meaning_of(field)));
  }
  return text;
}

// Returns the page with the table between its marks replaced; "" where a mark is missing.
std::string with_table(const std::string& page, const std::string& table) {
  const auto begin = page.find(kBegin), end = page.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return page.substr(0, begin) + kBegin + table + page.substr(end);
}

TEST_CASE("each method has a page with its use, the table of its fields, an example and limits") {
  for (const auto& method : all()) {
    const auto path = fmt::format("runtime/methods/{}.md", method->name());
    CAPTURE(path);
    const auto page = test::read_text(path);
    REQUIRE(page.starts_with(fmt::format("# {}\n", method->name())));
    for (const auto* part :
         {"\n**When to use it.**", "\n## Fields\n", "\n## Example\n", "\n## Limits\n"}) {
      INFO(part);
      CHECK(page.find(part) != std::string::npos);
    }
    const auto wanted = with_table(page, table_of(*method));
    REQUIRE(!wanted.empty());
    CHECK(test::golden_difference(path, wanted) == "");
  }
}

TEST_CASE("the index of methods links each page once, and there are no other pages") {
  const auto index = test::read_text("runtime/methods/README.md");
  size_t pages = 0;
  for (const auto& entry : std::filesystem::directory_iterator("runtime/methods")) {
    pages += entry.path().extension() == ".md" && entry.path().filename() != "README.md";
  }
  CHECK(pages == all().size());
  for (const auto& method : all()) {
    const auto link = fmt::format("[{0}]({0}.md)", method->name());
    CAPTURE(link);
    const auto at = index.find(link);
    REQUIRE(at != std::string::npos);
    CHECK(index.find(link, at + 1) == std::string::npos);
  }
}

}  // namespace
}  // namespace perigee::methods
