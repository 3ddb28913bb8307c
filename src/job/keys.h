// The table of all keys of a job: it makes checks, defaults, the reference page and the job's text.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "job/job.h"

namespace perigee::job {

// A pointer to a key's value in a Job.
using Ref = std::variant<bool*, int64_t*, double*, std::string*, std::vector<double>*,
                         std::vector<std::string>*, std::optional<double>*>;

// The entries of lists of tables ([[optimizer.group]], [[data.sources]]) that a key may be of.
struct ListEntry {
  ParameterGroup group;
  SourceConfig source;
};

// Returns whether a table is such a list.
bool is_list(std::string_view table);

inline constexpr double no_limit = std::numeric_limits<double>::infinity();

// A condition on a job's keys. `text` states it for messages: "lr_schedule.kind = \"wsd\"".
struct Condition {
  std::string text;
  std::function<bool(const Job&)> holds;
};

struct JobKey {
  std::string table;  // "" at the top, "model", "optimizer.group", ...
  std::string name;
  // A key of some model kinds (its value is in ModelConfig::values): these kinds, and its default.
  std::vector<std::string> kinds;
  Value fallback;
  // Any other key: its field, whose initial value is the default; nullptr: an attribute of
  // optimizers, whose value is in OptimizerConfig::options.
  Ref (*field)(Job&, ListEntry&) = nullptr;

  // Limits of a number, or of each number of a list.
  double least = -no_limit;
  double more_than = -no_limit;
  double most = no_limit;
  double less_than = no_limit;
  size_t count = 0;                  // of a list's items; 0: any
  std::vector<std::string> allowed;  // strings; empty: any
  bool is_path = false;              // except for values as in names_no_file
  // May change when a run is resumed, and the log says so; the keys of schedules may, too.
  bool adjustable = false;
  bool per_host = false;  // the ranks of different hosts may have different values
  // Description of a default that is not a constant; "": the default is a constant.
  std::string otherwise;
  std::string about;
  // Where it does not hold, the key has no effect; no function: it always holds.
  Condition needs;

  std::string path() const { return table.empty() ? name : table + "." + name; }
};

// All keys in the order of the reference page; the keys of a table are adjacent.
const std::vector<JobKey>& keys();

// The tables' names, in that order; "" first.
const std::vector<std::string>& tables();

// The model kinds.
const std::vector<std::string>& kinds();

// Returns the key, or nullptr. `kind`: the model's, for the keys of some kinds.
const JobKey* find_key(std::string_view table, std::string_view name, std::string_view kind);

// Returns a pointer to the key's value; adds its default to ModelConfig::values where it
// is missing.
Ref ref(const JobKey& key, Job& job, ListEntry& entry);

// Returns whether the key has its initial value, which for a key with `otherwise` means
// "not given".
bool is_initial(const JobKey& key, const Job& job, const ListEntry& entry);

// Returns whether the text is no path although its key is a path: the tokenizer "bytes", a strategy
// that is not a script's path, a sampler's name, and "".
bool names_no_file(const JobKey& key, std::string_view text);

// Returns "an integer", "a list of strings", ...
std::string type_of(const JobKey& key);

// Returns "at least 1", "one of sgd, adam", ... or "".
std::string limits_of(const JobKey& key);

// Throws Error if the value is out of the key's limits. `at`: prefix of the message.
void check(const JobKey& key, const Ref& value, const std::string& at);

// Returns the value as TOML.
std::string toml_of(const Ref& value);

// Returns whether a job may give a string of the key, "true" or "false", without its quotes.
bool takes_booleans(const JobKey& key);

}  // namespace perigee::job
