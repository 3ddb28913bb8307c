// Cluster descriptions: what a plan's time depends on, for machines that need not be at hand. TOML
// files; runtime/README.md has the keys, runtime/clusters ships the common ones with their sources.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/dtype.h"

namespace perigee::cost {

// One kind of device.
struct Device {
  std::string name;
  int64_t count = 1;     // so many ranks in a row have one
  double memory = 0;     // bytes that a rank may use
  double bandwidth = 0;  // bytes/s of that memory
  double launch = 0;     // seconds that every op takes at least
  double host = 25e9;    // bytes/s to its host's memory, and from it
  // Flops/s of matrix products by dtype; float32 is always there.
  std::map<graph::DType, double> peak;
  double vector = 0;  // flops/s of all other ops
  // Which share of the peaks large ops reach: products, attention in one kernel, all else.
  double matrix_efficiency = 1, attention_efficiency = 1, memory_efficiency = 1;
  std::string source;  // where the numbers are from

  // Returns the flops/s of matrix products in that type: its own peak, else float32's.
  double peak_of(graph::DType dtype) const;
  bool operator==(const Device&) const = default;
};

// A level of the network: joins each block of `ranks` consecutive ranks.
struct Link {
  std::string level;  // "node", "rack", "fabric"
  int64_t ranks = 1;
  double latency = 0;    // seconds of a message
  double bandwidth = 0;  // bytes/s that each rank sends while it receives as many
  std::string source;
  bool operator==(const Link&) const = default;
};

struct Cluster {
  std::string name;
  std::vector<Device> devices;  // in the order of ranks
  std::vector<Link> links;  // from the innermost level; each joins whole blocks of the one before
  bool assumed = false;     // figures are common ones: nothing is known of the devices

  int64_t ranks() const;
  // Returns the device of a rank. Throws Error for a rank that the cluster lacks.
  const Device& device(int64_t rank) const;
  // Returns the index of the innermost level that joins both ranks. Throws Error where none does.
  int level(int64_t a, int64_t b) const;
  // Returns the least memory of any device.
  double least_memory() const;
  bool operator==(const Cluster&) const = default;
};

// Returns whether all devices multiply eight-bit floats: have a peak of float8_e4m3.
bool multiplies_eight_bits(const Cluster& cluster);

// Throws Error (area "cluster") with file, line and column: unknown keys with the nearest name,
// missing or negative values, no float32 peak, levels that do not nest, ranks that no link joins.
Cluster parse_cluster(std::string_view toml, const std::string& file);
Cluster load_cluster(const std::string& file);

// Returns the path of a description: a file, or the bare name of a shipped one (in
// `runtime_folder`/clusters). Throws Error with the nearest name.
std::string find_cluster(const std::string& name, const std::string& runtime_folder);
// Returns the paths of the shipped descriptions, sorted.
std::vector<std::string> shipped_clusters(const std::string& runtime_folder);

// Returns a description of `ranks` ranks on the CPU of this machine, from common figures per core:
// what is planned for where nobody names a cluster.
Cluster cpu_cluster(int64_t ranks, double memory);

// The time of one collective over a group, all links idle, all ranks there. Ring algorithms over
// the slowest level that the group spans (latency + bytes, Hockney's model), trees where latency
// counts, or, where every inner block has as many ranks of the group, the hierarchical form: inside
// blocks, then between them with a block's ranks each moving their share. The fastest of them, as a
// library would choose.
enum class CollectiveKind : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  message  // send with its receive: a group of two
};

// Returns the kind of a `comm::` op; send, receive and shift are `message`, exchange is
// `all_to_all`.
CollectiveKind collective_kind(std::string_view op);
std::string_view name_of(CollectiveKind kind);

// Returns seconds. `bytes` are those of the whole tensor: the operand of all_reduce,
// reduce_scatter, all_to_all, broadcast and message, the result of all_gather. 0 for a group of
// one. `group` in mesh order.
double collective_seconds(const Cluster& cluster, CollectiveKind kind, double bytes,
                          const std::vector<int64_t>& group);

// Returns the outermost level that the group spans: where its bytes compete with others'. -1 for a
// group of one.
int level_of(const Cluster& cluster, const std::vector<int64_t>& group);

// Returns how the group lies: its level, and from there inwards how many of its ranks each block
// has (0: not as many each). Collectives take groups that lie alike equally long.
std::vector<int64_t> shape_of(const Cluster& cluster, const std::vector<int64_t>& group);

}  // namespace perigee::cost
