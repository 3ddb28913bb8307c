// Templates render as by PyPI's jinja2 with the settings of transformers (make_renderings.py).
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "tests/text/support.h"
#include "text/jinja/template.h"

using namespace perigee;
using nlohmann::ordered_json;
using text::jinja::Span;

namespace {

struct Counts {
  int rendered = 0;
  int refused = 0;
};

}  // namespace

TEST_CASE("templates and expressions give the texts and errors of jinja2") {
  const test::Folder folder;
  if (!test::run_maker(
          fmt::format("python3 tests/text/jinja/make_renderings.py {} {}/python/jinja2",
                      folder.path(), test::build_folder()))) {
    WARN("not tested: PyPI's jinja2 cannot be installed here");
    return;
  }
  std::map<std::string, Counts> counts;
  size_t marked = 0;
  for (const auto& each : ordered_json::parse(read_file(folder.at("renderings.json"), "test"))) {
    const auto name = each["name"].get<std::string>();
    const auto source = each["template"].get<std::string>();
    CAPTURE(name, source.substr(0, 200), each["variables"].dump());
    const auto render = [&] {
      return text::jinja::Template(source, name)
          .render({.variables = each["variables"], .now = 1'700'000'000});
    };
    if (each["text"].is_null()) {
      CAPTURE(each["error"]);
      CHECK_THAT(test::error_of(render), Catch::StartsWith("[template] " + name + ":"));
      ++counts[name].refused;
      continue;
    }
    std::vector<Span> generated;
    for (const auto& span : each["generated"]) generated.push_back({span[0], span[1]});
    text::jinja::Rendered rendered;
    REQUIRE_NOTHROW(rendered = render());
    CHECK(rendered.text == each["text"].get<std::string>());
    CHECK(rendered.generated == generated);
    marked += generated.size();
    ++counts[name].rendered;
  }
  CHECK(counts.size() == 14);
  CHECK(marked > 100);
  CHECK(counts["lines"].refused > 40);
  for (const auto& [name, count] : counts) {
    CAPTURE(name);
    CHECK(count.rendered >= 5);
    CHECK((name == "lines" || count.rendered >= count.refused));
  }
}
