// Dialects as their users meet them: scripts and jobs, what they come to, and the lists and cases
// of tests/lua/dialects.
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

// Returns the options that scripts run with: the shipped modules, and nothing to print to.
lua::Options options();

// Returns the table of a dialect.
nlohmann::json rows_of(const std::string& dialect);

// What a script comes to: a strategy and its plan, or an error.
struct Outcome {
  std::string error;
  methods::Strategy strategy;
  nlohmann::json plan = nlohmann::json::object();
  std::string said;              // the plan's decisions
  std::set<std::string> events;  // of training, for which it has a function
  std::string printed;           // by the script
};

// Runs a script on a model, for so many ranks (0: as many as it asks for).
Outcome run(const Folder& folder, const std::string& text, const std::string& model,
            int64_t world = 0);

// Makes the strategy of a job's table.
Outcome run_job(const std::string& text);

bool contains(const std::string& text, const std::string& part);

// Checks that every option of the dialect's list is in the table, with its type, default and
// verdict, and no other is. `all`: in every section of the table.
void check_table(const std::string& dialect, const std::string& section, bool all = false);

// Checks that every row of the table has the effects that its cases list, and that its cases prove an
// effect: a case that expects the same plan or an error proves that only of a refused option, of an
// option that limits others by a rule, and of a function. A line of the file: option | config of both
// scripts | further config of the second | expected difference; {folder} is the scripts' folder. A line
// "@ EXPRESSION" sets the scripts' return value, with % for the options, "@model NAME" the model,
// "@world N" the number of ranks, "@file NAME TEXT" a file beside the scripts.
void check_effects(const std::string& dialect);

}  // namespace perigee::test
