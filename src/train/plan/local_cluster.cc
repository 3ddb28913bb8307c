#include "train/plan/local_cluster.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "base/host_memory.h"
#include "base/log_format.h"
#include "cost/cpu_links.h"
#include "exec/cuda.h"
#include "job/rank_process.h"
#include "train/ranks/device.h"
#include "train/task/threads.h"

namespace perigee::train {
namespace {

// Returns the levels that connect the ranks: `node` those of a host, `network` the hosts. Hosts with
// unequal numbers of ranks count as hosts of one rank each.
std::vector<cost::Link> levels_of(const HostedRanks& ranks, cost::Link node, cost::Link network) {
  if (ranks.count == 1) return {};
  node.ranks = ranks_per_host(ranks);
  network.ranks = ranks.count;
  if (node.ranks == ranks.count) return {std::move(node)};
  const bool equal = node.ranks > 1 && ranks.count % node.ranks == 0;
  if (!equal) return {std::move(network)};
  return {std::move(node), std::move(network)};
}

// Returns the levels of GPUs whose hosts have the link `node`.
std::vector<cost::Link> gpu_levels(const HostedRanks& ranks, cost::Link node) {
  return levels_of(
      ranks, std::move(node),
      {"network", 1, 10e-6, 25e9, "typical figures: one 200 Gb/s adapter for each GPU"});
}

// The cluster assumed where the machine lacks the GPU or no description of its kind is shipped.
cost::Cluster common_gpus(const HostedRanks& ranks) {
  cost::DeviceSpec device{.name = "a data centre's GPU",
                          .count = ranks.count,
                          .memory = 80e9,
                          .bandwidth = 2e12,
                          .launch = 3e-6};
  device.peak = {{graph::DType::float32, 20e12},
                 {graph::DType::float64, 10e12},
                 {graph::DType::bfloat16, 300e12},
                 {graph::DType::float16, 300e12}};
  device.vector = 20e12;
  device.matrix_efficiency = device.attention_efficiency = 0.75;
  device.memory_efficiency = 0.85;
  device.source = "typical figures";
  cost::Cluster cluster{.name = "typical data centre GPUs", .devices = {device}, .assumed = true};
  cluster.links = gpu_levels(ranks, {"node", 1, 5e-6, 200e9, "typical figures"});
  return cluster;
}

// GPUs of this machine's kind: devices of the shipped description whose device has the same model
// name ("H100" of "NVIDIA H100 80GB HBM3").
cost::Cluster gpu_cluster(const HostedRanks& ranks, const std::string& runtime_folder) {
  std::vector<exec::GpuInfo> found;
  try {
    found = exec::cuda_host().gpus().found;
  } catch (const Error& error) {
    log::debug("times are those of common GPUs: {}", error.what());
  }
  if (found.empty()) return common_gpus(ranks);
  for (const auto& file : cost::shipped_clusters(runtime_folder)) {
    auto cluster = cost::load_cluster(file);
    if (cluster.devices.size() != 1 || cluster.links.size() != 1) continue;
    auto& device = cluster.devices.front();
    const auto begin = device.name.find(' ') + 1;
    const auto model = device.name.substr(begin, device.name.find(' ', begin) - begin);
    if (found.front().name.find(model) == std::string::npos) continue;
    device.count = ranks.count;
    device.memory = memory_for_plans(found.front().memory);
    cluster.links = gpu_levels(ranks, cluster.links.front());
    cluster.name = "this machine";
    return cluster;
  }
  auto cluster = common_gpus(ranks);
  auto& device = cluster.devices.front();
  const auto& gpu = found.front();
  device.memory = memory_for_plans(gpu.memory);
  if (gpu.major > 8 || (gpu.major == 8 && gpu.minor >= 9)) {
    device.peak[graph::DType::float8_e4m3] = 2 * device.peak_of(graph::DType::bfloat16);
  }
  return cluster;
}

// CPU ranks, of this host or as many on each of several.
cost::Cluster cpu_hosts(const job::Job& job, const HostedRanks& ranks) {
  const auto of_host = ranks_per_host(ranks);
  auto cluster = cost::cpu_cluster(ranks.count, memory_of_host());
  auto& device = cluster.devices.front();
  device.memory = memory_of_host() / static_cast<double>(of_host);
  const auto threads = static_cast<double>(threads_of_rank(job, of_host));
  cluster.shared_cores = static_cast<double>(of_host) * threads >=
                         static_cast<double>(at::intraop_default_num_threads());
  for (auto& [dtype, peak] : device.peak) peak *= threads;
  device.vector *= threads;
  device.bandwidth *= threads;
  const bool gloo = job.cluster.communicator == "gloo";
  cluster.links = levels_of(ranks,
                            gloo ? cost::gloo_link(of_host) : cost::shared_memory_link(of_host),
                            cost::gloo_link(ranks.count, "network"));
  return cluster;
}

}  // namespace

int64_t ranks_per_host(const HostedRanks& ranks) {
  const auto equally = (ranks.count + ranks.hosts - 1) / ranks.hosts;
  return std::clamp<int64_t>(job::ranks_of_host().value_or(equally), 1, ranks.count);
}

cost::Cluster cluster_of(const job::Job& job, const HostedRanks& ranks,
                         const std::string& runtime_folder) {
  if (!job.cluster.file.empty()) {
    auto cluster = cost::load_cluster(cost::find_cluster(job.cluster.file, runtime_folder));
    if (cluster.ranks() < ranks.count) {
      fail("cluster", "{} has {} ranks, but the plan needs {}: set --nproc", cluster.name,
           cluster.ranks(), ranks.count);
    }
    return cluster;
  }
  if (uses_gpu(job, /*tell=*/false)) return gpu_cluster(ranks, runtime_folder);
  return cpu_hosts(job, ranks);
}

int64_t sharing_ranks(const job::Job& job, const HostedRanks& ranks) {
  if (!job.cluster.file.empty() || uses_gpu(job, /*tell=*/false)) return 1;
  if (job.cluster.in_process) return ranks.count;
  if (job.cluster.communicator == "gloo") return 1;
  const auto of_host = ranks_per_host(ranks);
  return ranks.count % of_host == 0 ? of_host : 1;
}

double memory_for_plans(int64_t gpu_bytes) {
  constexpr double kContext = 1.5 * (1 << 30);  // an estimate, not measured
  return std::max(0.0, static_cast<double>(gpu_bytes) - kContext);
}

double memory_of_host() { return usable_memory(); }

bool multiplies_eight_bits(const job::Job& job, bool for_described_cluster,
                           const std::string& runtime_folder) {
  if (for_described_cluster && !job.cluster.file.empty()) {
    const auto cluster = cost::load_cluster(cost::find_cluster(job.cluster.file, runtime_folder));
    return cost::multiplies_eight_bits(cluster);
  }
  if (!uses_gpu(job, /*tell=*/false)) return false;
  try {
    const auto found = exec::cuda_host().gpus().found;
    return !found.empty() && std::ranges::all_of(found, &exec::GpuInfo::multiplies_eight_bits);
  } catch (const Error&) {
    return false;  // the functions that need the GPU report it
  }
}

}  // namespace perigee::train
