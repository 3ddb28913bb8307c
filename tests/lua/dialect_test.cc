// Other systems' names: every option is there with the verdict that it must have, changes what it
// says, and mistakes are errors at the user's line. The lists and the cases are tests/lua/dialects.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "lua/convert.h"
#include "lua/planner.h"
#include "lua/state.h"
#include "lua/strategy.h"
#include "plan/plan.h"

using namespace perigee;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

const std::string kFolder = "tests/lua/dialects/";

// A folder of its own, removed at the end.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("perigee-dialect-" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(path / name) << text;
    return (path / name).string();
  }
};

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

lua::Options options() {
  lua::Options options;
  options.runtime_folder = "runtime";
  return options;
}

// Returns the table of a dialect.
json rows_of(const std::string& dialect) {
  lua::State state(options());
  state.run_text("return require('perigee." + dialect + "').rows", "rows");
  return lua::to_json(state.raw(), 1, "rows");
}

// What a script comes to: a strategy and its plan, or an error.
struct Outcome {
  std::string error;
  methods::Strategy strategy;
  json plan = json::object();
  std::string said;  // the plan's decisions
};

// A planner that answers with what it was asked, as a decision.
class Echo : public lua::Planner {
 public:
  json plan(const json& pins) override {
    pins_ = pins;
    return pins.value("methods", json::array());
  }
  json candidates(const json&, int64_t) override { return json::array(); }
  json estimate(const json&) override { return {{"seconds", 1.0}}; }
  json measure(const json&, double) override { return {{"seconds", 1.0}}; }
  json costs(const json&, const std::string&) override { return json::array(); }
  json pins_ = json::object();
};

Outcome outcome_of(lua::StrategyScript&& script, const graph::Graph& graph, int64_t world = 0) {
  Outcome outcome;
  Echo planner;
  outcome.strategy = script.resolve({{"name", "test"}}, graph, &planner);
  auto plan = methods::make_plan(outcome.strategy, {.graph = &graph,
                                                    .global_batch = 8,
                                                    .world = std::max<int64_t>(world, 1),
                                                    .world_given = world > 0});
  outcome.said = plan::explain(plan);
  plan.decisions.clear();
  outcome.plan = json::parse(plan::print(plan));
  outcome.plan["search"] = planner.pins_;
  outcome.plan["search"].erase("methods");
  return outcome;
}

// Runs a script on a model, for so many ranks (0: as many as it asks for).
Outcome run(const Folder& folder, const std::string& text, const std::string& model,
            int64_t world = 0) {
  try {
    return outcome_of(lua::StrategyScript(folder.write("s.lua", text), options()), graph_of(model),
                      world);
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

// Checks what a case says: "plan PATH" and "plan PATH VALUE", "same", "job KEY=VALUE", "warning
// TEXT", "says TEXT" (a decision), "error TEXT" (at the user's line), or "fails TEXT" (when the
// plan is made).
void check_case(const std::string& expected, const Outcome& without, const Outcome& with) {
  const auto blank = expected.find(' ');
  const auto kind = expected.substr(0, blank);
  const auto rest = blank == std::string::npos ? "" : expected.substr(blank + 1);
  INFO("without: " << without.error << "\nwith: " << with.error);
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
  } else if (kind == "says") {
    CHECK(contains(with.said, rest));
    CHECK_FALSE(contains(without.said, rest));
  } else if (kind == "job") {
    const auto has = [&](const Outcome& o) {
      return std::find(o.strategy.set.begin(), o.strategy.set.end(), rest) != o.strategy.set.end();
    };
    INFO(json(with.strategy.set).dump());
    CHECK(has(with));
    CHECK_FALSE(has(without));
  } else if (kind == "warning") {
    REQUIRE(with.strategy.warnings.size() == without.strategy.warnings.size() + 1);
    CHECK(contains(json(with.strategy.warnings).dump(), rest));
    CHECK(with.plan == without.plan);
  } else {
    FAIL("a case expects plan, same, job, warning or error, but got " << expected);
  }
}

// Returns what a list calls a row: "NAME" in the section, or that of a method, "METHOD.NAME" else.
std::string title_of(const json& row, const std::string& section) {
  const std::string own = row["section"], name = row["name"];
  return own == section || own == name ? name : own + "." + name;
}

// Every option of the list is in the table, with its type, default and verdict, and no other is.
// `all`: in every section of the table.
void check_table(const std::string& dialect, const std::string& section, bool all = false) {
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

// Every row of the table changes what its cases say. A line of the file: option | what both scripts
// give | what the second gives beside | what differs. Lines "@ EXPRESSION" say what the scripts
// return, with % for the options, "@model NAME" for which model, "@world N" for how many ranks.
void check_effects(const std::string& dialect) {
  const Folder folder;
  std::set<std::string> tried;
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
    check_case(columns[3], known[model + before],
               run(folder, script(both + (both.empty() ? "" : ", ") + columns[2]), model, world));
    tried.insert(columns[0]);
  }
  for (const auto& row : rows_of(dialect)) {
    INFO(row.dump());
    CHECK((tried.contains(row["name"].get<std::string>()) || tried.contains(title_of(row, ""))));
  }
}

}  // namespace

TEST_CASE("Megatron's options are all there, and do what they say") {
  check_table("megatron", "ModelParallelConfig");
  check_effects("megatron");
}

TEST_CASE("ATorch's options are all there, and do what they say") {
  check_table("atorch", "auto_accelerate", /*all=*/true);
  check_effects("atorch");
}

TEST_CASE("a strategy of ATorch's is searched, saved and loaded, or there is none") {
  const Folder folder;
  const std::string head = "local atorch = require 'perigee.atorch'\n";
  const auto missing = run(folder,
                           head +
                               "local ok, result, best, why = atorch.auto_accelerate { model = "
                               "'a.toml', load_strategy = 'no.json' }\n"
                               "assert(not ok and result == nil and best == nil)\nerror(why)",
                           "gpt");
  CHECK_THAT(missing.error, Catch::Contains("s.lua:4: [atorch] load_strategy: there is no file"));
  // A search runs at once where the graph is there; what it finds can be saved and loaded.
  const auto found = run(folder,
                         head +
                             "return function(job, graph)\n"
                             "  local ok, result, best = atorch.auto_accelerate {\n"
                             "    model = graph, included = { { 'half', 'bf16' } },\n"
                             "    save_strategy_to_file = 'found.json' }\n"
                             "  assert(ok and result.args.use_optim_backward == false)\n"
                             "  return best\nend",
                         "gpt");
  CHECK(found.error == "");
  CHECK(found.plan["precision"]["dtype"] == "bfloat16");
  const auto loaded = run(folder,
                          head +
                              "local ok, result, best = atorch.auto_accelerate { model = "
                              "'a.toml', load_strategy = 'found.json' }\nreturn best",
                          "gpt");
  CHECK(loaded.error == "");
  CHECK(loaded.plan["precision"] == found.plan["precision"]);
  CHECK(loaded.strategy.job == "a.toml");
  CHECK_THAT(
      run(folder, head + "local a = atorch.auto_accelerate { load_strategy = {} }", "gpt").error,
      Catch::Contains("s.lua:2: [atorch] auto_accelerate needs model"));
  const auto job = run_job(
      "[atorch]\nload_strategy = [[\"half\", \"bf16\"], [\"checkpoint\", [\"blocks.*\"]]]\n");
  CHECK(job.error == "");
  CHECK(job.plan["precision"]["dtype"] == "bfloat16");
  CHECK_THAT(run_job("[atorch]\nload_strategy = [\"halff\"]\n").error,
             Catch::Contains("there is no method \"halff\", did you mean \"half\"?"));
}

TEST_CASE("EPL's options are all there, and do what they say") {
  check_table("epl", "Config");
  check_effects("epl");
}

TEST_CASE("EPL's options come from the environment where none are given") {
  const Folder folder;
  const auto communicators = [&](const std::string& given) {
    return run(folder, "local c = require('perigee.epl').Config { " + given + " }\nreturn c",
               "gpt");
  };
  ::setenv("EPL_COMMUNICATION_NUM_COMMUNICATORS", "3", 1);
  ::setenv("EPL_COMMUNICATION_FP16", "true", 1);
  CHECK(communicators("").plan["communication"]["communicators"] == 3);
  CHECK(communicators("").plan["communication"]["reduce_dtype"] == "float16");
  CHECK(communicators("['communication.num_communicators'] = 4")
            .plan["communication"]["communicators"] == 4);
  const auto job = run_job("[epl.communication]\nmax_splits = 7\n");
  CHECK(job.plan["communication"]["communicators"] == 3);
  CHECK(job.plan["communication"]["buckets"] == 7);
  CHECK_THAT(communicators("").strategy.origin->sentence,
             Catch::Contains("\"communication.num_communicators\":3"));
  ::setenv("EPL_COMMUNICATION_FP16", "yes", 1);
  CHECK_THAT(communicators("").error,
             Catch::EndsWith("s.lua:1: [epl] EPL_COMMUNICATION_FP16: communication.fp16 must be "
                             "true or false, but got \"yes\""));
  ::unsetenv("EPL_COMMUNICATION_NUM_COMMUNICATORS");
  ::unsetenv("EPL_COMMUNICATION_FP16");
}

TEST_CASE("EPL's scopes make stages and splits") {
  const Folder folder;
  const auto with = [&](const std::string& config, const std::string& scopes,
                        const std::string& model = "gpt") {
    return run(folder,
               "local epl = require 'perigee.epl'\nepl.init(epl.Config { " + config + " })\n" +
                   scopes + "\nreturn epl.strategy()",
               model);
  };
  const std::string two =
      "epl.replicate { device_count = 2, name = 'a', 'embed', 'blocks.0', 'blocks.1' }\n"
      "epl.replicate { device_count = 2, 'blocks.2', 'blocks.3', 'head' }";
  const auto staged = with("['pipeline.num_micro_batch'] = 4", two);
  CHECK(staged.error == "");
  CHECK(staged.plan["pipeline"]["starts"] == json{"blocks.2"});
  CHECK(staged.plan["pipeline"]["schedule"] == "1f1b");
  CHECK(staged.plan["mesh"]["axes"] ==
        json::parse(R"([{"name": "pipe", "size": 2}, {"name": "data", "size": 2}])"));
  const auto apart = with("['cluster.device_place_prefer_intra_node'] = false", two);
  CHECK(apart.plan["mesh"]["axes"][0]["name"] == "data");
  const auto split = with("", "epl.split { device_count = 2, 'head' }");
  CHECK(split.error == "");
  CHECK(split.plan["mesh"]["axes"][0] == json::parse(R"({"name": "tensor", "size": 2})"));
  CHECK(split.plan["placements"]["head.weight"] == "S0,R");
  const auto shared = with("['cluster.colocate_split_and_replicate'] = true",
                           "epl.set_default_strategy(epl.replicate { device_count = 2 })\n"
                           "epl.replicate { device_count = 2, 'blocks.*' }\n"
                           "epl.split { device_count = 2, 'head' }");
  CHECK(shared.error == "");
  CHECK(shared.plan["placements"]["head.weight"] == "S0");
  const auto experts = with("['cluster.colocate_split_and_replicate'] = true",
                            "epl.replicate { device_count = 2, 'embed' }\n"
                            "epl.split { device_count = 2, experts = true }",
                            "moe");
  CHECK(experts.error == "");
  CHECK(experts.plan["placements"]["blocks.0.experts.up"] == "S0");

  CHECK_THAT(with("", "epl.replicate { name = 'a', 'head' }").error,
             Catch::Contains("s.lua:3: [epl] replicate needs device_count, at least 1"));
  CHECK_THAT(with("", "epl.init()").error,
             Catch::Contains("s.lua:3: [epl] init is called once, but this is the second time"));
  CHECK_THAT(
      with("", "epl.replicate { device_count = 1, 'a' } epl.split { device_count = 1 }").error,
      Catch::Contains("[epl] replicate and split on devices of their own are not available"));
  CHECK_THAT(
      with("['auto.auto_parallel'] = true", "epl.replicate { device_count = 1, name = 'a' }").error,
      Catch::Contains("auto.auto_parallel finds the stages, but there is replicate \"a\""));
  CHECK_THAT(with("",
                  "epl.replicate { device_count = 1, 'a' } epl.replicate { device_count = 2, "
                  "'b' }")
                 .error,
             Catch::Contains("taskgraphs of several sizes are not available yet"));
  const auto in_job = run_job(
      "[epl.pipeline]\nnum_micro_batch = 4\n[[epl.scopes.taskgraphs]]\nkind = \"replicate\"\n"
      "device_count = 2\nmatch = [\"embed\"]\n[[epl.scopes.taskgraphs]]\nkind = \"replicate\"\n"
      "device_count = 2\nmatch = [\"blocks.2\"]\n");
  CHECK(in_job.error == "");
  CHECK(in_job.plan == staged.plan);
}

TEST_CASE("a dialect's mistakes are errors at the user's line") {
  const Folder folder;
  const auto error = [&](const std::string& options) {
    return run(folder,
               "local m = require 'perigee.megatron'\nlocal c = m.ModelParallelConfig {\n" +
                   options + " }\nreturn c",
               "gpt")
        .error;
  };
  CHECK_THAT(error("tensor_model_paralel_size = 2"),
             Catch::EndsWith("s.lua:2: [megatron] ModelParallelConfig has no option "
                             "\"tensor_model_paralel_size\", did you mean "
                             "\"tensor_model_parallel_size\"?"));
  CHECK_THAT(error("tensor_model_parallel_size = 'two'"),
             Catch::EndsWith("s.lua:2: [megatron] tensor_model_parallel_size must be an integer, "
                             "but got \"two\""));
  CHECK_THAT(error("tensor_model_parallel_size = 0"),
             Catch::EndsWith("tensor_model_parallel_size must be at least 1, but got 0"));
  CHECK_THAT(error("params_dtype = 'int8'"), Catch::Contains("params_dtype must be a dtype"));
  CHECK_THAT(error("fp16 = true, bf16 = true"), Catch::Contains("s.lua:2: [megatron] fp16 and bf"));
  CHECK_THAT(error("1"), Catch::Contains("ModelParallelConfig has no option 1"));
}

TEST_CASE("every option refuses a wrong type and a wrong name at the user's line") {
  const Folder folder;
  const std::map<std::string, std::pair<std::string, std::string>> functions = {
      {"megatron", {"ModelParallelConfig", "m.ModelParallelConfig { % }"}},
      {"epl", {"Config", "m.Config { % }"}},
      {"atorch", {"auto_accelerate", "select(3, m.auto_accelerate { model = 'a.toml', % })"}}};
  for (const auto& [dialect, function] : functions) {
    const auto error = [&](const std::string& option) {
      auto text = function.second;
      text.replace(text.find('%'), 1, option);
      return run(folder,
                 "local m = require 'perigee." + dialect + "'\nlocal c = " + text + "\nreturn c",
                 "gpt")
          .error;
    };
    for (const auto& row : rows_of(dialect)) {
      if (row["section"] != function.first) continue;
      const std::string name = row["name"], type = row["type"];
      INFO(dialect << " " << name);
      const auto wrong = type == "function" ? "1" : "print";
      const auto said = error("['" + name + "'] = " + wrong);
      CHECK((contains(said, "s.lua:2: [" + dialect + "] " + name) || type == "any" ||
             contains(type, "function")));
      CHECK(contains(error("['" + name + "x'] = 1"),
                     fmt::format("s.lua:2: [{}] {} has no option \"{}x\", did you mean \"{}\"?",
                                 dialect, function.first, name, name)));
    }
  }
}

TEST_CASE("what the pages of the dialects show is what a user can write") {
  const Folder folder;
  for (const std::string page : {"README", "from_atorch", "from_epl", "from_megatron"}) {
    auto text = read_file("runtime/" + page + ".md", "test");
    size_t at = 0;
    if (page == "README") {
      at = text.find("\n## 10.");
      text.resize(text.find("\n## 11."));
    }
    int scripts = 0, jobs = 0;
    for (; (at = text.find("\n```", at)) != std::string::npos; ++at) {
      const auto begin = text.find('\n', at + 1), end = text.find("\n```", begin);
      const auto language = text.substr(at + 4, begin - at - 4);
      const auto block = text.substr(begin + 1, end - begin);
      INFO(page << "\n" << block);
      if (language == "lua") CHECK((++scripts, run(folder, block, "gpt").error) == "");
      if (language == "toml") CHECK((++jobs, run_job(block).error) == "");
      at = end;
    }
    CHECK(scripts >= 1);
    CHECK((jobs >= 1 || page == "from_megatron"));
  }
}

TEST_CASE("dialects that ask for the same have the same plan") {
  const Folder folder;
  const auto plan = [&](const std::string& text) {
    const auto outcome = run(folder, text, "gpt", 4);
    CHECK(outcome.error == "");
    return outcome.plan;
  };
  const auto megatron = plan(
      "local c = require('perigee.megatron').ModelParallelConfig { tensor_model_parallel_size = 2, "
      "enable_autocast = true, autocast_dtype = 'bf16' }\nreturn c");
  CHECK(plan("return select(3, require('perigee.atorch').auto_accelerate { model = 'a.toml', "
             "load_strategy = { { 'parallel_mode', { { 'tensor', 2 }, { 'data', 1 } } }, "
             "'tensor_parallel', { 'amp_native', 'bf16' } } })") == megatron);
  CHECK(plan("return { { 'parallel_mode', { { 'tensor', 2 }, { 'data', 1 } } }, 'tensor_parallel', "
             "{ 'amp_native', { dtype = 'bf16' } } }") == megatron);
  CHECK(plan("return { 'half' }") != megatron);
}

TEST_CASE("a dialect's table of a job is checked by the same rows, at its place in the file") {
  const auto plan = run_job("[megatron]\ntensor_model_parallel_size = 2\nbf16 = true\n");
  CHECK(plan.error == "");
  const Folder folder;
  const auto script = run(folder,
                          "return require('perigee.megatron').ModelParallelConfig { "
                          "tensor_model_parallel_size = 2, bf16 = true }",
                          "gpt");
  CHECK(plan.plan == script.plan);
  const auto set = run_job("[megatron.LRSchedule]\nlr_decay_style = \"cosine\"\nmax_lr = 0.5\n");
  CHECK(set.strategy.set == std::vector<std::string>{"lr_schedule.kind=\"cosine\"",
                                                     "lr_schedule.warmup=0", "optimizer.lr=0.5"});
  CHECK(run_job("[megatron]\ntensor_model_parallel_sise = 2\n").error ==
        "[lua] job.toml:4:1: [megatron] ModelParallelConfig has no option "
        "\"tensor_model_parallel_sise\", did you mean \"tensor_model_parallel_size\"?");
  CHECK(run_job("[megatron]\nsequence_parallel = true\n").error ==
        "[lua] job.toml:4:1: [megatron] sequence_parallel needs tensor_model_parallel_size above "
        "1, but that is 1");
  CHECK_THAT(run_job("[megatron.LRSchedule]\nmax_lr = true\n").error,
             Catch::Contains("job.toml:4:1: [megatron] max_lr must be a number, but got true"));
}

TEST_CASE("parts of a dialect are joined, and say where they are from") {
  const Folder folder;
  const auto joined = run(folder,
                          "local m = require 'perigee.megatron'\n"
                          "local config = m.ModelParallelConfig { fp16 = true }\n"
                          "return m.strategy { config, m.LossScaler { growth_interval = 7 }, "
                          "m.DistributedOptimizer {}, job = 'a.toml' }",
                          "gpt");
  CHECK(joined.error == "");
  CHECK(joined.strategy.job == "a.toml");
  CHECK(joined.plan["precision"]["loss_scale"]["growth_interval"] == 7);
  REQUIRE(joined.strategy.origin);
  CHECK(joined.strategy.origin->by == "megatron");
  CHECK(joined.strategy.origin->sentence ==
        "written as {\"DistributedOptimizer\":{},\"LossScaler\":{\"growth_interval\":7},"
        "\"ModelParallelConfig\":{\"fp16\":true}}");
  CHECK_THAT(run(folder,
                 "local m = require 'perigee.megatron'\nlocal c = m.strategy { "
                 "m.ModelParallelConfig {}, m.ModelParallelConfig {} }\nreturn c",
                 "gpt")
                 .error,
             Catch::Contains("s.lua:2: [megatron] ModelParallelConfig stands twice"));
}
