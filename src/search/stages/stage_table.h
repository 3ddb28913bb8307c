// The table of stages: for each range of layers on each submesh its cost and memory (Alpa's
// ModuleProfileResult), and the sequences of stages that are best by it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "search/stages/submesh_choices.h"

namespace perigee::search {

// Layers first..last on a submesh. Bytes are of one rank, but `in` and `out`: of the microbatch.
struct StageRow {
  int first = 0, last = 0;
  int view = 0;                // index into StageTable::views
  double cost = 0;             // seconds of a microbatch: forward and backward
  double peak = 0;             // with one microbatch in flight
  double in = 0, out = 0;      // activations received from, and sent to, other stages
  double temporary = 0;        // of the peak: of the op that holds the most
  double available = 0;        // memory of the rank
  double receive = 0;          // seconds in which activations and gradients arrive
  int64_t max_successors = 0;  // most stages after it for which its microbatches fit
  bool operator==(const StageRow&) const = default;
};

// What the rows assume and leave out, beside the choices of auto_sharding.
struct StageRules {
  int64_t storage = 0;      // level at which another method stores all parameters in parts; 0: none
  bool recomputed = false;  // another method recomputes all blocks
  std::vector<std::string> forbid;  // plan::Plan::forbidden
  std::string dtype;                // in which ops compute; "": the model's
  // A range costs the sum of its layers, each sharded by itself (Alpa's "individual" profiles).
  bool individual = false;
  // No stage has more than 1 + imbalance times the work that its share of the devices has.
  std::optional<double> imbalance;
  bool operator==(const StageRules&) const = default;
};

struct StageTable {
  std::string graph_hash, cluster;
  int64_t devices = 1;  // that the stages use together
  int64_t microbatches = 1;
  std::vector<std::string> layers;  // first scope of each layer after the first
  std::vector<std::string> choose;  // beside shardings: storage, recompute, offload
  bool measured = false;            // costs are from measured times
  StageRules rules;
  std::vector<SubmeshView> views;
  std::vector<StageRow> rows;
  // The rows of the sequence of stages that was chosen when the table was made, in order.
  std::vector<int> chosen;

  int layer_count() const { return static_cast<int>(layers.size()) + 1; }
  bool operator==(const StageTable&) const = default;
};

// A sequence of rows that covers all layers and devices.
struct StageSequence {
  std::vector<int> rows;
  double seconds = 0;      // of a step, by the table
  double lower_bound = 0;  // no sequence of the table is faster
};

// Returns the table as JSON, "format": "perigee.stages/1"; parse_table(print(t)) equals t.
std::string print(const StageTable& table);
// Throws Error with the file and the place in it.
StageTable parse_table(std::string_view json, const std::string& file);

// Returns a line for each row, with a heading. The last column of a chosen row is its stage.
std::string to_text(const StageTable& table);

// Returns the sequence with the shortest step: sum of times + (microbatches - 1) * longest time,
// exactly. `view`: of this view alone. Nothing where no sequence covers the layers and devices.
std::optional<StageSequence> best_sequence(const StageTable& table, std::optional<int> view = {});

// Returns the sequence's stages as a strategy: mesh, cuts, microbatches and auto_sharding.
nlohmann::json strategy_of(const StageTable& table, const StageSequence& sequence,
                           const std::string& schedule, int64_t devices_per_host);

}  // namespace perigee::search
