// Runs scripts and jobs in dialects, and checks the lists and cases of tests/lua/dialects.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "graph/graph.h"
#include "lua/state.h"
#include "methods/method.h"

namespace perigee::test {

// A folder of its own, removed at the end.
struct Folder {
  std::filesystem::path path;
  Folder();
  ~Folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, std::string_view text) const;
};

// Returns options for scripts: the shipped modules, without a function for printed text.
lua::Options options();

// Returns the table of a dialect.
nlohmann::json rows_of(const std::string& dialect);

// The result of a script: a strategy and its plan, or an error.
struct Outcome {
  std::string error;
  methods::StrategySpec strategy;
  nlohmann::json plan = nlohmann::json::object();
  std::string said;              // the plan's decisions
  std::set<std::string> events;  // events that the script handles
  std::string printed;           // printed by the script
};

// Runs a script on a model. `world`: number of ranks; 0: the script's.
Outcome run(const Folder& folder, const std::string& text, const std::string& model,
            int64_t world = 0);

// Returns the result of a job's table.
Outcome run_job(const std::string& text);

bool contains(const std::string& text, const std::string& part);

// Checks that every option of the dialect's list is in the table, with its type, default and
// verdict, and no other is. `all`: in every section of the table.
void check_table(const std::string& dialect, const std::string& section, bool all = false);

// Checks that every row of the table has the effects that its cases list, that its cases prove its
// verdict, and that `OPTION = false` has the plan of leaving it out where that is the default. A
// warning proves "no effect", an error "refused", "missing" and "a rule" (limits of other options);
// "works" needs a difference: in the plan, the job, events, decisions, or what is printed or
// written; "same plan" is the promise of a function. A line of the file: option | config of both scripts | further config of the second | expected difference; {folder}
// is the scripts' folder. A line "@ EXPRESSION" sets the scripts' return value, with % for the
// options, "@model NAME" the model, "@world N" the number of ranks, "@file NAME TEXT" a file
// beside the scripts.
void check_effects(const std::string& dialect);

}  // namespace perigee::test
