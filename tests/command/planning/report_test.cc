// plan --report and plan --diff: the page is read as a browser reads it, by one where there is one.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/command/planning/planned_job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

// Named so that a page must quote it.
const std::string kJob = std::string("name = \"a <b> & \\\"c\\\"\"\n") + kPlannedJob;

// Returns the first error in the nesting of elements, or "": every element is closed, in order, and
// attributes have quotes.
std::string misnested(const std::string& page) {
  static const std::regex tag(
      R"re(<(/?)([a-zA-Z][a-zA-Z0-9]*)((?:\s+[a-zA-Z:-]+="[^"<>]*")*)\s*(/?)>)re");
  std::vector<std::string> open;
  auto begin = page.find("<html");
  if (begin == std::string::npos || page.substr(0, begin) != "<!DOCTYPE html>\n")
    return "no doctype";
  for (auto at = page.find('<', begin); at != std::string::npos; at = page.find('<', at + 1)) {
    std::smatch found;
    const auto end = page.find('>', at);
    if (end == std::string::npos) return "a tag without end";
    const auto text = page.substr(at, end + 1 - at);
    if (!std::regex_match(text, found, tag)) return "no tag: " + text;
    const std::string name = found[2];
    if (found[4] == "/") continue;
    if (found[1] == "") {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return "</" + name + "> closes nothing";
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back() + " stays open";
}

// Returns the document of the page in a browser after a script of the test has written its
// observations into the title; "" without a browser.
std::string loaded(const Folder& folder, const std::string& page) {
  const Process which({"/bin/sh", "-c", "command -v chromium-headless-shell"});
  auto browser = const_cast<Process&>(which).wait().out;
  if (browser.empty()) return "";
  browser.pop_back();
  const std::string probe = R"(<script>
const boxes = [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect());
document.title = JSON.stringify({
  resources: performance.getEntriesByType("resource").length,
  pictures: boxes.filter(b => b.width > 400 && b.height > 40).length,
  runs: document.querySelectorAll("svg path").length,
  bars: [...document.querySelectorAll(".bar span")].filter(b => b.getBoundingClientRect().width > 1).length,
  tables: document.querySelectorAll("table").length,
  rows: document.querySelectorAll("tbody tr").length,
  heading: document.querySelector("h1").textContent,
  sections: [...document.querySelectorAll("h2")].map(h => h.textContent),
  wide: document.documentElement.scrollWidth > innerWidth,
});
</script></body>)";
  auto probed = page;
  probed.replace(probed.rfind("</body>"), 7, probe);
  const auto file = folder.write("probed.html", probed);
  Process process({browser, "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                   "--user-data-dir=" + (folder / "browser"), "--window-size=1280,1000",
                   "--dump-dom", "file://" + file});
  return process.wait().out;
}

}  // namespace

TEST_CASE("a report lists sharded values, and not those replicated on several stages") {
  Folder folder;
  const auto job = folder.write("job.toml", kJob);
  const auto strategy = folder.write("parts.lua", R"(return {
  { "parallel_mode", { { "data", 2 }, { "pipe", 2 } } }, { "pipeline_parallel", {} }, { "zero2", {} } }
)");
  REQUIRE(run("plan " + job + " --nproc 4 --strategy " + strategy + " --report " +
                  (folder / "page.html"),
              own_cache(folder))
              .status == 0);
  const auto page = read(folder / "page.html");
  const auto row_of = [&](const std::string& name) {
    const auto begin = page.find("<td>" + name);
    return page.substr(begin, page.find("</tr>", begin) - begin);
  };
  CHECK_THAT(row_of("blocks.*.attn.qkv.weight"),
             Contains("optimizer state and gradients over data"));
  CHECK_THAT(row_of("embed.weight"), Contains("0, 1") && !Contains("over data"));
}

TEST_CASE("a report is one page with every part of the plan, which a browser shows") {
  Folder folder;
  const auto job = folder.write("job.toml", kJob);
  const auto planned = run("plan " + job + " --cluster 8xh100 --report " + (folder / "auto.html") +
                               " -o " + (folder / "auto.json"),
                           own_cache(folder));
  INFO(planned.err);
  REQUIRE(planned.status == 0);
  for (const auto* file : {"auto.html", "auto.json"}) {
    CHECK_THAT(planned.err, Contains("wrote " + (folder / file) + " ("));
  }
  const auto page = read(folder / "auto.html");
  CHECK(misnested(page) == "");
  CHECK(misnested(page + "<p>") == "p stays open");
  for (const auto* outside : {"http:", "https:", "src=", "<script", "<link", "@import", "url("}) {
    CAPTURE(outside);
    CHECK(page.find(outside) == std::string::npos);
  }
  CHECK_THAT(page, Contains("a &lt;b&gt; &amp; &quot;c&quot;") && !Contains("<b>"));
  const std::vector<std::string> sections = {"Mesh",
                                             "Stages",
                                             "Memory of a rank by kind",
                                             "Time line of a step",
                                             "Placements per layer",
                                             "Costs by op",
                                             "Decisions",
                                             "Runners-up"};
  for (const auto& section : sections) CHECK_THAT(page, Contains("<h2>" + section + "</h2>"));
  CHECK_THAT(page, Contains("blocks.*.attn.qkv.weight") && Contains("aten::mm") &&
                       Contains("an estimate") && Contains("the simulator"));
  // The same plan gives the same page.
  REQUIRE(run("plan " + job + " --cluster 8xh100 --report " + (folder / "second.html") + " -o " +
                  (folder / "second.json"),
              own_cache(folder))
              .status == 0);
  CHECK(read(folder / "second.html") == page);
  CHECK(read(folder / "second.json") == read(folder / "auto.json"));

  const auto document = loaded(folder, page);
  if (document.empty()) {
    WARN("there is no chromium-headless-shell: the page was not loaded by a browser");
    return;
  }
  const auto begin = document.find("<title>") + 7;
  auto title = document.substr(begin, document.find("</title>") - begin);
  title = std::regex_replace(std::regex_replace(title, std::regex("&lt;"), "<"), std::regex("&gt;"),
                             ">");
  title = std::regex_replace(title, std::regex("&amp;"), "&");
  const auto seen = json::parse(title);
  CHECK(seen["resources"] == 0);
  CHECK(seen["heading"] == "a <b> & \"c\"");
  CHECK(seen["sections"] == json(sections));
  CHECK(seen["pictures"].get<size_t>() == count(page, "<svg "));
  CHECK(seen["pictures"].get<int>() >= 1);
  CHECK(seen["runs"].get<size_t>() == count(page, "<path "));
  CHECK(seen["bars"].get<int>() >= 4);
  CHECK(seen["tables"].get<size_t>() == count(page, "<table>"));
  CHECK(seen["rows"].get<size_t>() == count(page, "<tr><td"));
  CHECK(seen["wide"] == false);
}

TEST_CASE("a report of a given pipeline shows its stages and schedule") {
  Folder folder;
  const auto job = folder.write("job.toml", kJob);
  const auto planned = run(
      "plan " + job + " --strategy 3d --nproc 8 --report " + (folder / "page.html"),
      own_cache(folder));
  INFO(planned.err);
  REQUIRE(planned.status == 0);
  const auto page = read(folder / "page.html");
  CHECK(misnested(page) == "");
  CHECK_THAT(page, Contains("schedule 1f1b") && Contains("forward pass") &&
                       Contains("backward pass") && Contains("the strategy was given"));
  CHECK_THAT(page, Contains("<td class=\"n\">1</td><td class=\"n\">") && Contains("tensor: S0"));
}

TEST_CASE("plan --diff lists the differences of two plans, and wrong uses are refused") {
  Folder folder;
  const auto job = folder.write("job.toml", kJob);
  const auto a = folder / "a.json", b = folder / "b.json";
  REQUIRE(run("plan " + job + " --strategy ddp --nproc 2 -o " + a, own_cache(folder)).status == 0);
  REQUIRE(run("plan " + job + " --strategy tensor_parallel --nproc 2 -o " + b, own_cache(folder))
              .status == 0);
  const auto same = run("plan --diff " + a + " " + a);
  CHECK(same.status == 0);
  CHECK(same.out == a + " and " + a + " are the same plan\n");
  const auto text = run("plan --diff " + a + " " + b);
  CHECK(text.status == 0);
  CHECK_THAT(text.out, Contains("mesh.axes.tensor") &&
                           Contains("placements.blocks.*.attn.qkv.weight") &&
                           Contains("(4 times)"));
  const auto value = json::parse(run("plan --diff " + a + " " + b + " --json").out);
  CHECK(value["format"] == "perigee.difference/1");
  CHECK(value["differences"].size() + 1 == count(text.out, "\n"));

  CHECK_THAT(run("plan --diff " + a).err, Contains("--diff"));
  CHECK(run("plan --diff " + a).status == 2);
  CHECK_THAT(run("plan " + job + " --diff " + a + " " + b).err, Contains("no job"));
  CHECK_THAT(run("plan --diff " + a + " " + job).err, Contains("job.toml"));
  CHECK_THAT(run("plan").err, Contains("takes a JOB or --diff"));
  CHECK(run("plan").status == 2);
}
