// Cluster descriptions: devices and networks that a plan is predicted for; the machines need not be
// available. TOML files; runtime/planner.md has the keys, runtime/clusters the shipped descriptions
// with their sources.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/dtype.h"

namespace perigee::cost {

// One kind of device.
struct DeviceSpec {
  std::string name;
  int64_t count = 1;     // consecutive ranks that have such a device
  double memory = 0;     // bytes that a rank may use
  double bandwidth = 0;  // bytes/s of this memory
  double launch = 0;     // least seconds of an op
  double host = 25e9;    // bytes/s to and from its host's memory
  // Flops/s of matrix products by dtype; always has float32.
  std::map<graph::DType, double> peak;
  double vector = 0;  // flops/s of all other ops
  // Share of its peak that a large op reaches: matrix products, fused attention, memory traffic.
  double matrix_efficiency = 1, attention_efficiency = 1, memory_efficiency = 1;
  std::string source;  // of the numbers

  // Returns the flops/s of matrix products in that type: its own peak, else float32's.
  double peak_of(graph::DType dtype) const;
  bool operator==(const DeviceSpec&) const = default;
};

// A level of the network: connects each block of `ranks` consecutive ranks.
struct Link {
  std::string level;  // "node", "rack", "fabric"
  int64_t ranks = 1;
  double latency = 0;    // seconds of a message
  double bandwidth = 0;  // bytes/s that each rank sends, and receives at the same time
  std::string source;
  bool operator==(const Link&) const = default;
};

struct Cluster {
  std::string name;
  std::vector<DeviceSpec> devices;  // in the order of ranks
  std::vector<Link> links;  // from the innermost level; each connects whole blocks of the previous
  bool assumed = false;     // typical figures: the devices are unknown
  // A rank's collectives run on the cores that compute its ops, which make no progress meanwhile.
  bool shared_cores = false;

  int64_t ranks() const;
  // Returns the device of a rank. Throws Error for a rank that the cluster lacks.
  const DeviceSpec& device(int64_t rank) const;
  // Returns the index of the innermost level that connects both ranks. Throws Error where
  // none does.
  int level(int64_t a, int64_t b) const;
  // Returns the least memory of any device.
  double least_memory() const;
  bool operator==(const Cluster&) const = default;
};

// Returns whether all devices have a matrix peak in float8_e4m3.
bool multiplies_eight_bits(const Cluster& cluster);

// Throws Error (area "cluster") with file, line and column: unknown keys with the nearest name,
// missing or negative values, no float32 peak, levels that do not nest, unconnected ranks.
Cluster parse_cluster(std::string_view toml, const std::string& file);
Cluster load_cluster(const std::string& file);

// Returns the path of a description: a file, or the bare name of a shipped one (in
// `runtime_folder`/clusters). Throws Error with the nearest name.
std::string find_cluster(const std::string& name, const std::string& runtime_folder);
// Returns the paths of the shipped descriptions, sorted.
std::vector<std::string> shipped_clusters(const std::string& runtime_folder);

// Returns a description of `ranks` ranks on the CPU of this machine, from typical figures per core;
// the default cluster of a plan.
Cluster cpu_cluster(int64_t ranks, double memory);

// The time of one collective over a group, without contention, from its last rank's start: the
// fastest of ring algorithms over the slowest level that the group spans (latency + bytes,
// Hockney's model), trees where latency dominates, and, where all inner blocks have equally many
// ranks of the group, the hierarchical form: inside blocks, and between them with each rank of a
// block moving its share.
enum class CollectiveKind : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  message  // send with its receive: a group of two
};

// Returns the kind of a `comm::` op; send, receive and shift are `message`,
// exchange is `all_to_all`, barrier an `all_reduce` of a byte.
CollectiveKind collective_kind(std::string_view op);
std::string_view name_of(CollectiveKind kind);

// Returns seconds. `bytes`: of the whole tensor: the operand of all_reduce,
// reduce_scatter, all_to_all, broadcast and message, the result of all_gather. 0 for a group of
// one. `group` in mesh order.
double collective_seconds(const Cluster& cluster, CollectiveKind kind, double bytes,
                          const std::vector<int64_t>& group);

// Returns the outermost level that the group spans, which is the level of its contention. -1 for a
// group of one.
int level_of(const Cluster& cluster, const std::vector<int64_t>& group);

// Returns the shape of a group: its level, then for each level from that one inwards the number of
// its ranks in each block (0: the numbers differ). A collective takes equally long over groups of
// equal shape.
std::vector<int64_t> shape_of(const Cluster& cluster, const std::vector<int64_t>& group);

// A kind of collective and where its ranks are. Its time depends on these and on its bytes.
struct ExchangeKind {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int64_t ranks = 0;            // of the group; two of a message, also of a shift of many
  std::string level;            // Link::level of the group's level; "": a group of one
  std::vector<int64_t> inside;  // the rest of the group's shape
  auto operator<=>(const ExchangeKind&) const = default;
};
ExchangeKind exchange_kind(const Cluster& cluster, CollectiveKind kind,
                           const std::vector<int64_t>& group);

}  // namespace perigee::cost
