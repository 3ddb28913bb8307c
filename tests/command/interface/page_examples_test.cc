// Scripts, models and problems on the pages of runtime/ are accepted by the commands they are for.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <vector>

#include "cost/cluster.h"
#include "tests/command/support.h"

using namespace perigee;
using nlohmann::json;

namespace {

std::string page(const std::string& name) { return test::read("runtime/" + name + ".md"); }

// Returns the fenced blocks of a language, in order.
std::vector<std::string> blocks(const std::string& text, const std::string& language) {
  std::vector<std::string> found;
  const std::string fence = "```" + language + "\n";
  for (auto at = text.find(fence); at != std::string::npos; at = text.find(fence, at)) {
    at += fence.size();
    found.push_back(text.substr(at, text.find("```", at) - at));
  }
  return found;
}

// Returns the indented JSON values of a page; comments are removed.
std::vector<json> indented_json(const std::string& text) {
  std::vector<json> found;
  std::string value;
  std::istringstream lines(text + "\n");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    ")) {
      value += line.substr(0, line.find("//")) + "\n";
    } else if (!value.empty()) {
      found.push_back(json::parse(value));
      value.clear();
    }
  }
  return found;
}

// Plans the sample job by the script on two ranks; returns the decisions.
std::string planned(const test::Folder& folder, const std::string& script) {
  const auto file = folder.write("page.lua", script);
  const auto ran = test::run("plan strategies/gpt.toml --nproc 2 --explain --strategy " + file);
  INFO(ran.err);
  CHECK(ran.status == 0);
  return ran.out;
}

}  // namespace

TEST_CASE("the scripts on the page of strategies plan the sample job") {
  const test::Folder folder;
  const auto scripts = blocks(page("strategies"), "lua");
  REQUIRE(scripts.size() == 3);
  CHECK_THAT(planned(folder, scripts[1]),
             Catch::Contains("tensor_parallel: ") && Catch::Contains("amp_native: "));
  const auto method = "local m = require 'perigee.methods'\n" + scripts[2] +
                      "return { m.parallel_mode { { 'data', 2 } }, tail {} }\n";
  CHECK_THAT(planned(folder, method),
             Catch::Contains("zero1: ") && Catch::Contains("the last blocks are recomputed"));
}

TEST_CASE("the model and the strategy on the page of Lua models are accepted") {
  const test::Folder folder;
  const auto scripts = blocks(page("lua_models"), "lua");
  REQUIRE(scripts.size() == 2);
  folder.write("model.lua", scripts[0]);
  const auto job = folder.write("job.toml",
                                "model = {kind = 'lua', file = 'model.lua'}\nbatch.global = 4\n"
                                "data = {synthetic = true, sequence = 8}\n");
  const auto graph = test::run("graph " + job);
  INFO(graph.err);
  CHECK(graph.status == 0);
  CHECK_THAT(graph.out, Catch::Contains("= blocks.1.down.weight"));
  CHECK_THAT(planned(folder, scripts[1]), Catch::Contains("grad_comm: "));
}

TEST_CASE("the script and the job on the page of dialects give the same plan") {
  const test::Folder folder;
  const auto script = folder.write("page.lua", blocks(page("dialects"), "lua").at(0));
  const auto table = blocks(page("dialects"), "toml").at(0);
  const std::string model =
      "model = {kind = 'gpt', layers = 2, width = 32, heads = 2}\n"
      "data = {synthetic = true, sequence = 16}\nbatch.global = 4\n";
  const auto plain = folder.write("plain.toml", model);
  const auto job = folder.write("dialect.toml", model + table);
  const auto by_script = test::run("plan " + plain + " --nproc 4 --strategy " + script);
  const auto by_job = test::run("plan " + job + " --nproc 4");
  INFO(by_script.err << by_job.err);
  REQUIRE(by_script.status == 0);
  REQUIRE(by_job.status == 0);
  CHECK(json::parse(by_script.out)["placements"] == json::parse(by_job.out)["placements"]);
  CHECK(json::parse(by_script.out)["units"] == json::parse(by_job.out)["units"]);
}

TEST_CASE("the problems on their page have the shown result") {
  const test::Folder folder;
  const auto values = indented_json(page("problems"));
  REQUIRE(values.size() == 3);
  for (const size_t k : {0, 1}) {
    const auto file = folder.write("problem.json", values[k].dump());
    auto result = json::parse(test::run("solve " + file + " --json").out);
    CHECK(result["status"] == "optimal");
    if (k > 0) continue;
    result["seconds"] = values[2]["seconds"];
    CHECK(result == values[2]);
  }
}

TEST_CASE("the cluster description and the trace on their pages are valid") {
  const auto cluster = cost::parse_cluster(blocks(page("formats/cluster"), "toml").at(0), "page");
  CHECK(cluster.ranks() == 8);
  const auto trace = json::parse(blocks(page("formats/trace"), "json").at(0));
  CHECK(trace["traceEvents"].size() == 3);
}
