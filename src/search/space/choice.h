// A combination that the search prices: a few values from which a strategy follows.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "schedule/description.h"
#include "search/space/memory_model.h"

namespace perigee::search {

// The ranks of one stage: tensor ranks are adjacent.
struct Submesh {
  int64_t tensor = 1, data = 1;
  int64_t ranks() const { return tensor * data; }
  bool operator==(const Submesh&) const = default;
};

struct Choice {
  // Sizes of the mesh's axes; the first varies fastest.
  int64_t tensor = 1, expert = 1, context = 1, data = 1, pipe = 1;
  // Submesh of each stage of a heterogeneous pipeline; `tensor` and `data` are then the largest of
  // them. Empty: homogeneous stages.
  std::vector<Submesh> submeshes;
  int64_t micro = 1;         // samples of a microbatch on one rank of the batch
  int64_t microbatches = 1;  // follows from micro, the ranks of the batch and the global batch
  bool sequence = false;     // activations between tensor-parallel layers are sharded
  std::string attention = "all_gather";  // how context ranks see all keys (context_parallel)
  bool checkpoint = false;               // blocks are recomputed in the backward pass
  int64_t every = 1;                     // one of so many blocks; 0: `recomputed_blocks`
  // All ops but products and attention are recomputed, in all blocks; `every` (above 1) then says
  // in which blocks these are, too.
  bool selective = false;
  int zero = 0;                    // level: 0, 1, 2, 3
  bool one_copy = false;           // levels 1 and 2: ranks of one host hold the weights together
  bool offload = false;            // optimizer state is in host memory
  std::string precision = "none";  // or amp_native or half, in bfloat16
  std::string schedule{schedule::kDefaultSchedule};
  int64_t chunks = 1;
  std::vector<double> costs;        // of a schedule that splits backward passes: relative
                                    // times of passes and of a message
  std::vector<std::string> starts;  // of the pipeline's later parts
  // The recomputed blocks, where a solver chooses them, or where they are given by stage.
  std::vector<std::string> recomputed_blocks;

  // Ranks with different samples (for submeshes the least common multiple of their data ranks: a
  // stage then has micro * batch() / data samples on a rank); ranks over which units are cut.
  int64_t batch() const;
  int64_t parts() const { return context * data; }
  bool operator==(const Choice&) const = default;
};

// Returns whether the ops of a block have the same shapes with both choices.
bool same_ops(const Choice& a, const Choice& b);

// Values that a user fixes; the rest is searched.
struct Pins {
  std::optional<int64_t> tensor, expert, context, data, pipe, micro, chunks, every;
  std::optional<bool> sequence, checkpoint, selective, offload;
  std::optional<int> zero;
  std::optional<std::string> schedule, attention;
  // Allowed numbers of ranks of a stage (stage_sizes() in search/space/submeshes.h); "none":
  // homogeneous stages. Nothing: the search's own rule (search/space/submeshes.h).
  std::optional<std::string> sizes;
  std::vector<Submesh> submeshes;   // of the stages; empty: any
  std::vector<std::string> starts;  // blocks at which the later parts begin
  // The least arithmetic of a stage's forward pass, as a share of the largest stage's; 0: any.
  double balance = 0;
  std::optional<std::string> solver;  // chooses a stage's recomputed blocks; labels or ilp
  std::optional<double> memory;       // bytes that a rank may use, where the devices have more
  std::optional<double> time_limit;   // seconds after which the best so far is taken
  MemoryModel model;                  // factors of memory
  int64_t smallest = 0;               // weights of fewer bytes are not split over tensor ranks
  bool estimated = false;             // times are estimates, also where they were measured
  int64_t threads = 0;                // that make tables and judge plans; 0: one for each core
  int64_t host_devices = 0;           // of each host of a described cluster; 0: all
  std::vector<std::string> forbid;    // of parallel_mode
  // Allowed precisions of none, amp_native and half, which change numbers; empty: none.
  std::vector<std::string> precision;
  // Further methods that every plan has, as in a strategy: [["amp_native", {"dtype": ...}]].
  nlohmann::json methods = nlohmann::json::array();
};

// Returns the pins of a table with these names. Throws Error for an unknown one, with the nearest,
// and for a wrong type.
Pins parse_pins(const nlohmann::json& table);

// The blocks as `checkpoint` names them.
struct BlockRow {
  std::string pattern;                     // "blocks.*"
  std::vector<std::string> more_patterns;  // of further rows
  std::vector<std::string>
      keep;  // the ops of their forward passes that a selective checkpoint keeps
};

// Returns each n-th block of each stage, where the choice recomputes such blocks as a whole: stages
// then need the same time and memory with any parts. `cuts`: the first block of each later part.
// Empty where the order of the whole row gives the same.
std::vector<std::string> whole_blocks(const Choice& choice, const std::vector<std::string>& blocks,
                                      const std::vector<int>& cuts);

// Returns the strategy as plain data (methods::from_json).
nlohmann::json strategy_of(const Choice& choice, const Pins& pins, const BlockRow& row);

// Returns a key of the choice's programs. Schedules with the same orders (of few microbatches) have
// the same key.
std::string program_of(Choice choice, const Pins& pins, const BlockRow& row);

// Returns "tensor 8, pipe 16, data 8, 192 microbatches of 1, 1f1b, zero 1, checkpoint".
std::string to_string(const Choice& choice);

}  // namespace perigee::search
