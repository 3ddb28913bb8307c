// What the search chooses among: a few numbers that a strategy follows from.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "search/memory_model.h"

namespace perigee::search {

// The ranks of one stage: tensor ranks stand next to each other.
struct Submesh {
  int64_t tensor = 1, data = 1;
  int64_t ranks() const { return tensor * data; }
  bool operator==(const Submesh&) const = default;
};

struct Choice {
  // Sizes of the mesh's axes; the first varies fastest.
  int64_t tensor = 1, expert = 1, context = 1, data = 1, pipe = 1;
  // Of each stage of a pipeline, where they are not all alike; tensor and data are then the largest
  // of theirs. Empty: a rectangle.
  std::vector<Submesh> submeshes;
  int64_t micro = 1;         // samples of a microbatch on one rank of the batch
  int64_t microbatches = 1;  // follows from micro, the ranks of the batch and the global batch
  bool sequence = false;     // activations between tensor-parallel layers are sharded
  std::string attention = "all_gather";  // how context ranks see all keys (context_parallel)
  bool checkpoint = false;               // blocks run again in the backward pass
  int64_t every = 1;                     // of so many blocks one does; 0: those of `again`
  // All but their products and attention does, in all blocks; `every` then says of which all does,
  // 1: of none.
  bool selective = false;
  int zero = 0;                    // level: 0, 1, 2, 3
  bool offload = false;            // optimizer state lies in the host's memory
  std::string precision = "none";  // or amp_native or half, in bfloat16
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  std::vector<double> costs;        // of a schedule that splits gradients: their relative
                                    // times, and a message's
  std::vector<std::string> starts;  // of the pipeline's parts behind the first
  // The blocks that run again, where a solver chooses them, or as a whole, where they are those of
  // a stage.
  std::vector<std::string> again;

  // Ranks that have samples of their own (of submeshes the least number that the data ranks of
  // each divide: a stage then has micro * batch() / data samples on a rank); ranks over which units
  // are cut.
  int64_t batch() const;
  int64_t parts() const { return context * data; }
  bool operator==(const Choice&) const = default;
};

// Returns whether the ops of a block have the same shapes with both, whatever else differs.
bool same_ops(const Choice& a, const Choice& b);

// What a user fixes; the rest is searched.
struct Pins {
  std::optional<int64_t> tensor, expert, context, data, pipe, micro, chunks, every;
  std::optional<bool> sequence, checkpoint, selective, offload;
  std::optional<int> zero;
  std::optional<std::string> schedule, attention;
  // How many ranks a stage may have (stage_sizes() in search/submeshes.h); "none": all stages are
  // alike. Nothing: the search's own rule (search/submeshes.h).
  std::optional<std::string> sizes;
  std::vector<Submesh> submeshes;     // of the stages; empty: any
  std::vector<std::string> starts;    // blocks at which the parts behind the first begin
  std::optional<std::string> solver;  // chooses a stage's blocks that run again; labels or ilp
  std::optional<double> memory;       // bytes that a rank may use, where the devices have more
  std::optional<double> time_limit;   // seconds after which the best so far is taken
  MemoryModel model;                  // what memory is counted by
  int64_t smallest = 0;               // weights of fewer bytes are not split over tensor ranks
  bool estimated = false;             // times are estimates, also where they were measured
  std::vector<std::string> forbid;    // of parallel_mode
  // What may be chosen of none, amp_native and half, which change numbers; empty: none.
  std::vector<std::string> precision;
  // Further methods that every plan has, as in a strategy: [["amp_native", {"dtype": ...}]].
  nlohmann::json methods = nlohmann::json::array();
};

// Returns the pins of a table with these names. Throws Error for an unknown one, with the nearest,
// and for a wrong type.
Pins parse_pins(const nlohmann::json& table);

// The blocks as `checkpoint` names them.
struct BlockRow {
  std::string pattern;            // "blocks.*"
  std::vector<std::string> keep;  // the ops of their forward passes that are worth keeping
};

// Returns of each stage's blocks each n-th, where the choice has such run again as a whole: all
// stages then need as much time and memory, whatever their parts. `cuts`: the first block of each
// part behind the first. Empty where the row's own order serves.
std::vector<std::string> whole_blocks(const Choice& choice, const std::vector<std::string>& blocks,
                                      const std::vector<int>& cuts);

// Returns the strategy as plain data (methods::from_json).
nlohmann::json strategy_of(const Choice& choice, const Pins& pins, const BlockRow& row);

// Returns what tells the choice's programs from others: of the schedule its orders, which several
// schedules of few microbatches share.
std::string program_of(Choice choice, const Pins& pins, const BlockRow& row);

// Returns "tensor 8, pipe 16, data 8, 192 microbatches of 1, 1f1b, zero 1, checkpoint".
std::string to_string(const Choice& choice);

}  // namespace perigee::search
