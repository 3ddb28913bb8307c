// Errors of templates with their lines, and the limits that end hostile ones.
#include "text/jinja/template.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
using nlohmann::ordered_json;
using test::error_of;
using text::jinja::Limits;
using text::jinja::Template;

namespace {

std::string render(const std::string& source,
                   const ordered_json& variables = ordered_json::object(), Limits limits = {}) {
  return Template(source, "T").render({.variables = variables, .limits = limits}).text;
}

std::string error(const std::string& source, Limits limits = {}) {
  return error_of([&] { render(source, {{"x", 1}, {"m", {{"a", 1}}}, {"l", {1, 2}}}, limits); });
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("a template that fails is named with its line and the rule") {
  CHECK(error("a\n{{ x +\n 'b' }}") ==
        "[template] T:2: + must be between two numbers, two texts or two lists, but got the number "
        "1 and a text");
  CHECK(error("\n\n{{ y.z }}") == "[template] T:3: \"y\" must be defined, but is not");
  CHECK(error("{{ m.b.c }}") == "[template] T:1: \"b\" of a mapping must be defined, but is not");
  CHECK(error("{{ m.b() }}") ==
        "[template] T:1: a call must be of a function, macro or method, but \"b\" is not defined");
  CHECK(error("{% if x %}\n{{ raise_exception('no system role') }}{% endif %}") ==
        "[template] T:2: the template refuses these variables: no system role");
  CHECK(error("{{ x | trims }}") ==
        "[template] T:1: a filter must be known, but \"trims\" is not, did you mean \"trim\"?");
  CHECK(error("{{ x is strings }}") ==
        "[template] T:1: a test must be known, but \"strings\" is not, did you mean \"string\"?");
  CHECK(error("{% if x %}\n{% for i in l %}\n{% endif %}") ==
        "[template] T:3: a tag must be if, for, set, macro, generation, break or continue, or "
        "else, endfor, but is \"endif\"");
  CHECK(error("{% if x %}\n{% for i in l %}") ==
        "[template] T:2: {% endfor %} must be here, but "
        "the template ends");
  CHECK_THAT(error("{% include 'f' %}"), Catch::EndsWith("but is \"include\""));
  CHECK_THAT(error("{% import 'f' as f %}"), Catch::EndsWith("but is \"import\""));
  CHECK(error("{% macro f(a) %}{{ a.b.c }}{% endmacro %}\n{{ f(m) }}") ==
        "[template] T:1: \"b\" of a mapping must be defined, but is not");
  CHECK(error("{{ l.append(3) }}") ==
        "[template] T:1: a call must be of a function, macro or method, but \"append\" is not "
        "defined");
  CHECK(error("{{ '%d' % 3 }}") ==
        "[template] T:1: % must be between numbers: it does not format "
        "texts (use ~ and | string)");
  CHECK_THAT(error("{{ 9223372036854775807 + 1 }}"), Catch::Contains("below 2^63"));
  CHECK_THAT(error("{{ 99999999999999999999 }}"), Catch::Contains("below 2^63"));
  CHECK_THAT(error("{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}{{ f() }}"),
             Catch::Contains("must be outside of macros"));
  CHECK_THAT(error("a\xff"), Catch::EndsWith("T:1: a template must be UTF-8, but is not"));
  CHECK_THAT(error_of([] {
               render("", {{"n", uint64_t(1) << 63}});
             }),
             Catch::Contains("whole numbers must be below 2^63"));
  CHECK(error("{{ raise_exception('" + std::string(5000, 'a') + "') }}").size() < 2100);
}

TEST_CASE("a template has no variables but those given, and its functions") {
  CHECK(render("{{ messages is defined }}{{ range is defined }}{{ open is defined }}") ==
        "FalseTrueFalse");
  CHECK(render("{{ ''.__class__ is defined }}{{ range.__globals__ is defined }}") == "FalseFalse");
  CHECK(render("{{ messages }}", {{"messages", "m"}}) == "m");
}

TEST_CASE("a rendering leaves nothing for the next one") {
  const Template with(
      "{% set ns = namespace(n=x) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ y }}"
      "{% set y = 1 %}{{ y }}",
      "T");
  for (int i = 0; i < 3; ++i)
    CHECK(with.render({.variables = {{"x", i}}}).text == std::to_string(i + 1) + "1");
}

TEST_CASE("a hostile template ends by a limit") {
  const auto doubling = [](const std::string& start, const std::string& step) {
    return "{% set ns = namespace(x=" + start +
           ") %}{% for i in range(99999) %}{% set ns.x = " + step + " %}{% endfor %}{{ ns.x }}";
  };
  const std::string nested =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
      "{% endfor %}";
  CHECK_THAT(error(nested, {.steps = 200'000}), Catch::Contains("within 200000 steps"));
  for (const auto& source :
       {doubling("'ab'", "ns.x ~ ns.x"), doubling("'ab'", "ns.x + ns.x"),
        doubling("[1]", "ns.x + ns.x"), doubling("'ab'", "ns.x | replace('', ns.x)"),
        doubling("'ab'", "ns.x.join(ns.x)"), doubling("'\n'", "(ns.x * 9) | indent(99)"),
        doubling("'ab'", "[ns.x, ns.x] | join(ns.x)"), doubling("'a'", "[ns.x, ns.x] | tojson"),
        doubling("'a'", "[ns.x, ns.x] | string"), doubling("'a'", "ns.x.center(99999999999)"),
        std::string("{{ 'a' * 9999999999999 }}"), std::string("{{ [1] * 9999999999999 }}"),
        std::string("{{ 'a' | indent(9999999999999, true) }}"),
        std::string("{{ [1] | tojson(indent=9999999999999) }}")}) {
    CAPTURE(source);
    CHECK_THAT(error(source, {.steps = 3'000'000, .made_bytes = 1 << 22}),
               Catch::Contains("at most 4194304 bytes") || Catch::Contains("within 3000000 steps"));
  }
  CHECK_THAT(error(doubling("[1]", "[ns.x]")), Catch::Contains("nested at most 200 deep"));
  for (const auto* inner : {"loop", "loop.cycle", "[loop]", "loop.changed"}) {
    CHECK_THAT(
        error(std::string("{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% for x in "
                          "[ns.x] %}{% set ns.x = ") +
              inner + " %}{% endfor %}{% endfor %}"),
        Catch::Contains("nested at most 200 deep"));
  }
  CHECK_THAT(error("{% for x in l %}{{ loop.changed(loop) }}{% endfor %}"),
             Catch::Contains("must be printed, but got the loop"));
  CHECK(render("{% set ns = namespace(f=1) %}{% for i in range(99999) %}{% macro f(p=ns.f) %}"
               "{% endmacro %}{% set ns.f = f %}{{ f() }}{% endfor %}end") == "end");
  // A list that refers to another one twice, forty levels deep, has 2^40 items to compare.
  CHECK_THAT(error("{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}"
                   "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
                   "{{ ns.x == ns.y }}",
                   {.steps = 100'000}),
             Catch::Contains("within 100000 steps"));
  CHECK_THAT(error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
             Catch::Contains("nested at most 1000 deep"));
  CHECK_THAT(error("{% macro f(a=f()) %}{% endmacro %}{{ f() }}"),
             Catch::Contains("nested at most 1000 deep"));
  const int deep = 100'000;
  const auto around = [&](const char* open, const char* inner, const char* close) {
    return repeated(open, deep) + inner + repeated(close, deep);
  };
  for (const auto& source :
       {"{{ " + around("(", "1", ")") + " }}", "{{ " + around("[", "", "]") + " }}",
        "{{ " + around("{1:", "1", "}") + " }}", "{{ 1" + repeated("+1", deep) + " }}",
        "{{ x" + repeated(".a", deep) + " }}", "{{ x" + repeated("|trim", deep) + " }}",
        "{{ x" + repeated("(1)", deep) + " }}", "{{ " + repeated("-", deep) + "1 }}",
        "{{ " + repeated("not ", deep) + "1 }}", "{{ 1" + repeated(" if 1 else 1", deep) + " }}",
        "{{ x" + repeated(" and x", deep) + " }}", around("{% if 1 %}", "", "{% endif %}"),
        around("{% for i in x %}", "", "{% endfor %}"),
        "{% for " + around("(", "i", ")") + " in x %}{% endfor %}"}) {
    CAPTURE(source.substr(0, 30));
    CHECK_THAT(error(source), Catch::Contains("nested at most"));
  }
  CHECK(render("{% if 0 %}" + repeated("{% elif 0 %}", 10'000) + "{% else %}e{% endif %}") == "e");
}

TEST_CASE("namespaces and macros that refer to each other are freed") {
  CHECK(render(
            "{% set ns = namespace() %}{% set ns.ns = ns %}{% macro f() %}{{ ns.f is defined }}"
            "{% endmacro %}{% set ns.f = f %}{% for i in range(3) %}{% macro g(p) %}{{ p }}"
            "{% endmacro %}{% set ns.g = g %}{% endfor %}{{ ns.f() }}{{ ns.g(i) }}{{ ns.g(1) }}") ==
        "True1");
  CHECK_THAT(error("{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns }}"),
             Catch::Contains("got a namespace"));
}
