#include "tests/lua/support_dialect.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "job/job.h"
#include "lua/convert.h"
#include "lua/planner.h"
#include "lua/state.h"
#include "lua/strategy.h"
#include "plan/plan.h"

namespace perigee::test {

using nlohmann::json;

Folder::Folder()
    : path(std::filesystem::temp_directory_path() /
           ("perigee-dialect-" + std::to_string(::getpid()))) {
  std::filesystem::create_directories(path);
}

std::string Folder::write(const std::string& name, std::string_view text) const {
  std::ofstream(path / name) << text;
  return (path / name).string();
}

namespace {

const std::string kFolder = "tests/lua/dialects/";

const graph::Graph& graph_of(const std::string& model) {
  static std::map<std::string, graph::Graph> known;
  auto& graph = known[model];
  if (graph.nodes.empty()) graph = graph::parse(read_file(kFolder + model + ".graph", "test"));
  return graph;
}

std::string trimmed(std::string text) {
  text.erase(0, text.find_first_not_of(" \t"));
  text.erase(text.find_last_not_of(" \t") + 1);
  return text;
}

// Returns the lines of a data file, split at " | "; without comments.
std::vector<std::vector<std::string>> lines_of(const std::string& file) {
  std::istringstream lines(read_file(kFolder + file, "test"));
  std::vector<std::vector<std::string>> result;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    auto& columns = result.emplace_back();
    for (size_t begin = 0; begin <= line.size();) {
      const auto end = std::min(line.find(" | ", begin), line.size());
      columns.push_back(trimmed(line.substr(begin, end - begin)));
      begin = end + 3;
    }
  }
  return result;
}

}  // namespace

lua::Options options() {
  lua::Options options;
  options.runtime_folder = "runtime";
  return options;
}

json rows_of(const std::string& dialect) {
  lua::State state(options());
  state.run_text("return require('perigee." + dialect + "').rows", "rows");
  return lua::to_json(state.raw(), 1, "rows");
}

namespace {

// A planner that returns its pins as a decision, and a few fixed candidates.
class FixedPlanner : public lua::Planner {
 public:
  json plan(const json& pins, const lua::Defined&) override {
    pins_ = pins;
    return {{"strategy", pins.value("methods", json::array())},
            {"seconds", 2.0},
            {"lower_bound", 1.5},
            {"stopped", pins.contains("time_limit")}};
  }
  json plan_of(const json& strategy, const lua::Defined& defined) override {
    const auto parsed = methods::from_json(strategy, "the strategy", defined);
    return json::parse(
        plan::print(methods::make_plan(parsed, {.graph = &graph_of("gpt"), .global_batch = 8})));
  }
  json candidates(const json& pins, int64_t most, const lua::Defined&) override {
    pins_ = pins;
    json list = json::array();
    for (const int64_t micro : {8, 4, 2, 1}) {
      for (const int64_t pipe : {1, 2, 4}) {
        for (const int64_t tensor : {1, 2}) {  // the model has two heads
          const int64_t data = 4 / pipe / tensor;
          if (data < 1 || micro % data != 0 || std::ssize(list) == most) continue;
          const auto free = [&](const char* pin, int64_t size) {
            return pins.value(pin, size) == size;
          };
          if (!free("pipe", pipe) || !free("tensor", tensor) || !free("data", data)) continue;
          if (!free("micro", micro / data)) continue;
          list.push_back(candidate(pins, tensor, data, pipe, micro / data));
        }
      }
    }
    return list;
  }
  // Two stages of two devices each, or one where it is given.
  json stage_table(const json& options, const lua::Defined&) override {
    pins_ = options;
    const bool splits = options.value("views", "") == "model_parallel_only";
    const auto stage = splits ? json({{"tensor", 2}, {"data", 1}})
                              : json({{"tensor", 1}, {"data", 2}});
    auto axes = json::array();
    for (const char* axis : {"tensor", "data"}) axes.push_back(json::array({axis, stage[axis]}));
    json mesh = {{"submeshes", json::array({axes, axes})}};
    if (options.contains("forbid")) mesh["forbid"] = options["forbid"];
    auto strategy = json::array(
        {json::array({"gradient_accumulation", {{"microbatches", options["microbatches"]}}})});
    if (options.contains("stage_layers") && options["stage_layers"].size() == 1) {
      mesh["submeshes"] = json::array({axes});
    } else {
      const json starts = options.contains("layers") && options["layers"].is_array()
                              ? options["layers"]
                              : json{"blocks.2"};
      strategy.push_back(json::array(
          {"pipeline_parallel", {{"starts", starts}, {"schedule", options["schedule"]}}}));
    }
    strategy.insert(strategy.begin(), json::array({"parallel_mode", mesh}));
    for (const auto& method : options["methods"]) strategy.push_back(method);
    return {{"strategy", strategy},
            {"text", "layers  cost\n  0..1  2 s\n"},
            {"seconds", 2.0},
            {"lower_bound", 1.5},
            {"stages", {0}},
            {"judged", {{{"stages", {0}}, {"predicted", 2.0}, {"seconds", 2.0}}}},
            {"submesh_choices", {{1, 4}}}};
  }
  // Returns a trial for each option of the first variable; the last one is the fastest.
  json search(const json& pins, const json& options, const lua::Defined&) override {
    pins_ = pins;
    pins_["trials"] = options;
    json trials = json::array();
    double seconds = 10;
    for (const auto& option : options["variables"][0]) {
      auto strategy = json::array();  // an empty Lua table may arrive as an object
      for (const auto& method : pins.value("methods", json::array())) strategy.push_back(method);
      for (const auto& method : option.value("methods", json::array())) strategy.push_back(method);
      trials.push_back({{"strategy", strategy}, {"seconds", seconds--}, {"options", {1}}});
    }
    return {{"trials", trials}};
  }
  // Seconds grow and memory falls with the tensor ranks.
  json estimate(const json& strategy, const json&, const lua::Defined&) override {
    double tensor = 1;
    for (const auto& axis : strategy[0][1]) {
      if (axis[0] == "tensor") tensor = axis[1];
    }
    return {{"seconds", tensor}, {"peak_bytes", 8.0 * (1 << 30) / tensor}};
  }
  json measure(const json&, double, const lua::Defined&) override { return {{"seconds", 1.0}}; }
  json costs(const json&, const std::string&, const lua::Defined&) override {
    return json::array();
  }
  json op_times(const json&, const lua::Defined&) override { return json::array(); }
  json pins_ = json::object();

 private:
  static json candidate(const json& pins, int64_t tensor, int64_t data, int64_t pipe,
                        int64_t micro) {
    const int64_t count = 8 / (data * micro);
    const auto use = [](const char* name, const json& config) {
      return json::array({name, config});
    };
    auto axes = json::array();
    for (const auto& [name, size] :
         {std::pair("tensor", tensor), std::pair("data", data), std::pair("pipe", pipe)}) {
      if (size > 1 || name == std::string("data")) axes.push_back(use(name, size));
    }
    json mesh = axes;
    if (pins.contains("forbid")) {  // items beside a field, as the search gives them
      mesh = {{"forbid", pins["forbid"]}};
      for (size_t i = 0; i < axes.size(); ++i) mesh[std::to_string(i + 1)] = axes[i];
    }
    auto methods = json::array(
        {use("parallel_mode", mesh), use("gradient_accumulation", {{"microbatches", count}})});
    if (tensor > 1) methods.push_back(use("tensor_parallel", json::object()));
    if (pipe > 1) {
      auto starts = json::array({"blocks.2"});
      if (pipe == 4) starts = {"blocks.1", "blocks.2", "blocks.3"};
      methods.push_back(use("pipeline_parallel",
                            {{"schedule", pins.value("schedule", "1f1b")}, {"starts", starts}}));
    }
    for (const auto& method : pins["methods"]) {
      if (method[0] != "pipeline_parallel") {
        methods.push_back(method);
      } else if (pipe > 1) {  // fields added to the search's own method
        methods.back()[1].update(method[1]);
      }
    }
    return {{"strategy", methods}, {"tensor", tensor},      {"data", data},   {"pipe", pipe},
            {"micro", micro},      {"microbatches", count}, {"seconds", 1.0}, {"text", "a plan"}};
  }
};

Outcome outcome_of(lua::StrategyScript&& script, const graph::Graph& graph, int64_t world = 0) {
  Outcome outcome;
  FixedPlanner planner;
  json job = {{"name", "test"}, {"batch", {{"global", 8}}}};
  if (world > 0) job["cluster"]["ranks"] = world;
  outcome.strategy = script.resolve(job, graph, &planner);
  auto plan = methods::make_plan(outcome.strategy, {.graph = &graph,
                                                    .global_batch = 8,
                                                    .world = std::max<int64_t>(world, 1),
                                                    .world_given = world > 0,
                                                    .device_bytes = [](int64_t) { return 1e9; }});
  outcome.said = plan::explain(plan);
  for (const char* event : {"step", "loss_scale"}) {
    if (script.observes(event)) outcome.events.insert(event);
  }
  plan.decisions.clear();
  outcome.plan = json::parse(plan::print(plan));
  outcome.plan["search"] = planner.pins_;
  outcome.plan["search"].erase("methods");
  return outcome;
}

}  // namespace

Outcome run(const Folder& folder, const std::string& text, const std::string& model,
            int64_t world) {
  std::string printed;
  auto with = options();
  with.print = [&](std::string_view line) { printed += std::string(line) + "\n"; };
  try {
    auto outcome = outcome_of(lua::StrategyScript(folder.write("s.lua", text), with),
                              graph_of(model), world);
    outcome.printed = printed;
    return outcome;
  } catch (const Error& error) {
    return {.error = error.what()};
  }
}

Outcome run_job(const std::string& text) {
  try {
    const auto job = job::Job::parse("[model]\nkind = \"gpt\"\n" + text, "job.toml");
    return outcome_of(lua::StrategyScript(job.dialect, options()), graph_of("gpt"));
  } catch (const Error& error) {
    return {.error = error.what()};
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

namespace {

// Checks the expectation of a case: "plan PATH" and "plan PATH VALUE", "same", "job KEY=VALUE" and
// "job KEY=*", "excludes OPTION" (an error: no plan of the search meets the option), "warning TEXT"
// (and the same plan), "warns TEXT" (with any plan), "says TEXT" (a decision), "prints TEXT",
// "writes FILE" (in the folder), "event NAME" (a function handles it), "error TEXT" (at the user's
// line), or "fails TEXT" (when the plan is made).
void check_case(const std::string& expected, const Folder& folder, const Outcome& without,
                const Outcome& with) {
  const auto blank = expected.find(' ');
  const auto kind = expected.substr(0, blank);
  const auto rest = blank == std::string::npos ? "" : expected.substr(blank + 1);
  INFO("without: " << without.error << "\nwith: " << with.error);
  if (kind == "excludes") {
    CHECK(contains(with.error, rest + " excludes "));
    CHECK(without.error.empty());
    return;
  }
  if (kind == "error") {
    CHECK(contains(with.error, "s.lua:2: ["));
    CHECK(contains(with.error, rest));
    CHECK(without.error.empty());
    return;
  }
  if (kind == "fails") {
    CHECK(contains(with.error, rest));
    CHECK(without.error.empty());
    return;
  }
  REQUIRE(with.error.empty());
  REQUIRE(without.error.empty());
  if (kind == "same") {
    CHECK(with.plan == without.plan);
  } else if (kind == "plan") {
    const auto path = rest.substr(0, rest.find(' '));
    const json::json_pointer at(path);
    const auto value = [&](const Outcome& o) { return o.plan.contains(at) ? o.plan[at] : json(); };
    INFO(path << ": " << value(without).dump() << " and " << value(with).dump());
    CHECK(value(with) != value(without));
    if (rest.size() > path.size()) CHECK(value(with) == json::parse(rest.substr(path.size() + 1)));
  } else if (kind == "event") {
    CHECK(with.events.contains(rest));
    CHECK_FALSE(without.events.contains(rest));
    if (rest == "step") CHECK(with.plan == without.plan);  // it only observes
  } else if (kind == "says") {
    CHECK(contains(with.said, rest));
    CHECK_FALSE(contains(without.said, rest));
  } else if (kind == "job") {
    const bool any = rest.ends_with("=*");
    const auto has = [&](const Outcome& o) {
      return std::any_of(o.strategy.set.begin(), o.strategy.set.end(), [&](const auto& key) {
        return any ? key.starts_with(rest.substr(0, rest.size() - 1)) : key == rest;
      });
    };
    INFO(json(with.strategy.set).dump());
    CHECK(has(with));
    CHECK_FALSE(has(without));
  } else if (kind == "warning" || kind == "warns") {
    REQUIRE(with.strategy.warnings.size() == without.strategy.warnings.size() + 1);
    const auto text = fmt::format("{}", fmt::join(with.strategy.warnings, "\n"));
    INFO(text);
    CHECK(contains(text, rest));
    if (kind == "warning") CHECK(with.plan == without.plan);
  } else if (kind == "prints") {
    CHECK(contains(with.printed, rest));
    CHECK_FALSE(contains(without.printed, rest));
  } else if (kind == "writes") {
    CHECK(std::filesystem::exists(folder.path / rest));
  } else {
    FAIL("a case expects plan, same, job, warning, prints, writes or error, but got " << expected);
  }
}

// Returns whether a case of that kind proves the row's verdict.
bool proves(const std::string& kind, const json& row) {
  const std::set<std::string> warnings = {"warning", "warns"},
                              effects = {"plan",   "job",    "event",   "says",
                                         "prints", "writes", "excludes"};
  const std::string verdict = row["verdict"];
  if (verdict == "no effect") return warnings.contains(kind);
  if (verdict == "refused" || verdict == "missing") return kind == "error";
  if (verdict == "same plan") return kind == "same";
  if (verdict == "a rule") return kind == "error" || kind == "excludes";
  return effects.contains(kind);
}

// Returns a row's name in a list: "NAME" in the given section or a method's own,
// else "SECTION.NAME".
std::string title_of(const json& row, const std::string& section) {
  const std::string own = row["section"], name = row["name"];
  return own == section || own == name ? name : own + "." + name;
}

// Returns the options with `to` in place of the value `from` of `OPTION = VALUE` (or
// `["OPTION"] = VALUE`, or `"OPTION", VALUE`), or without it where `to` is ""; nothing where they do
// not give that value.
std::optional<std::string> with_value(const std::string& options, const std::string& name,
                                      const std::string& from, const std::string& to) {
  const std::vector<std::pair<std::string, bool>> forms = {
      {name + " = ", true}, {"[\"" + name + "\"] = ", true}, {"\"" + name + "\", ", false}};
  for (const auto& [form, named] : forms) {
    const auto at = options.find(form + from);
    if (at == std::string::npos) continue;
    if (at > 0 && (std::isalnum(options[at - 1]) || options[at - 1] == '_')) continue;
    const std::string text = !to.empty() ? form + to : named ? "_ = nil" : "";
    return options.substr(0, at) + text + options.substr(at + form.size() + from.size());
  }
  return {};
}

// Returns whether the row is of a boolean that is false where it is not given.
bool is_off(const json& row) {
  const auto otherwise = row.value("default", json());
  return row["type"] == "boolean" && (otherwise.is_null() || otherwise == false);
}

}  // namespace

void check_table(const std::string& dialect, const std::string& section, bool all) {
  std::map<std::string, json> rows;
  for (const auto& row : rows_of(dialect)) {
    if (all || row["section"] == section) rows[title_of(row, section)] = row;
  }
  for (const auto& columns : lines_of(dialect + ".options")) {
    INFO(columns[0]);
    REQUIRE(columns.size() == 4);
    REQUIRE(rows.contains(columns[0]));
    const auto& row = rows[columns[0]];
    CHECK(row["type"] == columns[1]);
    CHECK(row.value("default", json()).dump() == (columns[2] == "nil" ? "null" : columns[2]));
    const bool missing = columns[3] == "works, missing";
    CHECK(row["verdict"] == (missing ? "missing" : columns[3]));
    rows.erase(columns[0]);
  }
  for (const auto& [name, row] : rows) FAIL_CHECK("the list lacks " << name);
}

void check_effects(const std::string& dialect) {
  const Folder folder;
  std::map<std::string, std::set<std::string>> tried;  // kinds of cases by option
  std::map<std::string, std::string> off;              // names of booleans that are false, by title
  const auto rows = rows_of(dialect);
  for (const auto& row : rows) {
    if (!is_off(row)) continue;
    off[title_of(row, "")] = off[row["name"]] = row["name"];
  }
  // Names of booleans: `false` was tried, has another plan than no value, is a choice of its own.
  std::set<std::string> turned_off, differ, choices;
  std::map<std::string, Outcome> known;
  std::string expression, model = "gpt";
  int64_t world = 0;
  for (const auto& columns : lines_of(dialect + ".effects")) {
    if (columns[0].starts_with("@model ")) {
      model = columns[0].substr(7);
      continue;
    }
    if (columns[0].starts_with("@world ")) {
      world = std::stoll(columns[0].substr(7));
      known.clear();
      continue;
    }
    if (columns[0].starts_with("@file ")) {
      const auto blank = columns[0].find(' ', 6);
      folder.write(columns[0].substr(6, blank - 6), columns[0].substr(blank + 1));
      continue;
    }
    if (columns[0].starts_with("@ ")) {
      expression = columns[0].substr(2);
      continue;
    }
    INFO(columns[0] << " | " << columns[1]);
    REQUIRE(columns.size() == 4);
    const auto script = [&](const std::string& given) {
      auto text = expression;
      text.replace(text.find('%'), 1, given);
      return "local m = require 'perigee." + dialect + "'\nlocal config = " + text +
             "\nreturn config\n";
    };
    const auto both = columns[1] == "-" ? "" : columns[1];
    const auto before = script(both);
    if (!known.contains(model + before)) known[model + before] = run(folder, before, model, world);
    auto expected = columns[3];
    const std::string here = "{folder}";
    for (size_t at; (at = expected.find(here)) != std::string::npos;) {
      expected.replace(at, here.size(), folder.path.string());
    }
    if (expected.starts_with("writes ")) std::filesystem::remove(folder.path / expected.substr(7));
    check_case(expected, folder, known[model + before],
               run(folder, script(both + (both.empty() ? "" : ", ") + columns[2]), model, world));
    const auto kind = expected.substr(0, expected.find(' '));
    tried[columns[0]].insert(kind);
    if (kind == "error" || kind == "fails" || !off.contains(columns[0])) continue;
    const auto& name = off[columns[0]];
    if (kind != "same" && with_value(columns[2], name, "false", "false")) choices.insert(name);
    const auto given_false = with_value(columns[2], name, "true", "false");
    if (!given_false) continue;
    const auto outcome = [&](const std::string& given) {
      return run(folder, script(both + (both.empty() ? "" : ", ") + given), model, world);
    };
    const auto left_out = outcome(*with_value(columns[2], name, "true", ""));
    const auto turned = outcome(*given_false);
    INFO("left out: " << left_out.error << "\nfalse: " << turned.error);
    CHECK(left_out.error == turned.error);
    if (left_out.plan != turned.plan) differ.insert(name);
    if (turned.error.empty()) turned_off.insert(name);
  }
  for (const auto& row : rows) {
    INFO(row.dump());
    if (is_off(row) && row["verdict"] == "works") {
      const std::string name = row["name"];
      CHECK(turned_off.contains(name));
      // `false` may be a choice, other than no value, which cases of its own prove.
      CHECK((!differ.contains(name) || choices.contains(name)));
    }
    auto kinds = tried[title_of(row, "")];
    const auto other = [&](const json& o) {
      return o["name"] == row["name"] && o["section"] != row["section"];
    };
    // A name in several sections belongs to the first one.
    if (row["section"] == rows[0]["section"] || std::ranges::none_of(rows, other)) {
      for (const auto& kind : tried[row["name"].get<std::string>()]) kinds.insert(kind);
    }
    CHECK(std::ranges::any_of(kinds, [&](const auto& kind) { return proves(kind, row); }));
  }
}

}  // namespace perigee::test
