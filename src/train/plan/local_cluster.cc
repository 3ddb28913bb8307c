#include "train/plan/local_cluster.h"

#include <ATen/Parallel.h>

#include <algorithm>

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

// The cluster assumed where the machine lacks the GPU or no description of its kind is shipped.
cost::Cluster common_gpus(int64_t ranks) {
  cost::DeviceSpec device{.name = "a data centre's GPU",
                          .count = ranks,
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
  if (ranks > 1) cluster.links.push_back({"node", ranks, 5e-6, 200e9, "typical figures"});
  return cluster;
}

// The machine's GPUs as `ranks` devices of the shipped description whose device has the same model
// name ("H100" of "NVIDIA H100 80GB HBM3").
cost::Cluster gpu_cluster(int64_t ranks, const std::string& runtime_folder) {
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
    device.count = ranks;
    device.memory = memory_for_plans(found.front().memory);
    cluster.links.front().ranks = std::max<int64_t>(2, ranks);
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
cost::Cluster cpu_hosts(const job::Job& job, int64_t ranks) {
  const auto of_host = std::clamp<int64_t>(job::ranks_of_host().value_or(ranks), 1, ranks);
  auto cluster = cost::cpu_cluster(ranks, memory_of_host());
  auto& device = cluster.devices.front();
  device.memory = memory_of_host() / static_cast<double>(of_host);
  const auto threads = static_cast<double>(threads_of_rank(job, of_host));
  cluster.shared_cores = static_cast<double>(of_host) * threads >=
                         static_cast<double>(at::intraop_default_num_threads());
  for (auto& [dtype, peak] : device.peak) peak *= threads;
  device.vector *= threads;
  device.bandwidth *= threads;
  const bool gloo = job.cluster.communicator == "gloo";
  if (of_host == ranks) {
    if (gloo && ranks > 1) cluster.links = {cost::gloo_link(ranks)};
    return cluster;
  }
  cluster.links.clear();
  // Hosts with unequal numbers of ranks count as hosts of one rank each.
  const bool equal = of_host > 1 && ranks % of_host == 0;
  if (equal) {
    cluster.links.push_back(gloo ? cost::gloo_link(of_host) : cost::shared_memory_link(of_host));
  }
  cluster.links.push_back(cost::gloo_link(ranks, "network"));
  return cluster;
}

}  // namespace

cost::Cluster cluster_of(const job::Job& job, int64_t ranks, const std::string& runtime_folder) {
  if (!job.cluster.file.empty()) {
    auto cluster = cost::load_cluster(cost::find_cluster(job.cluster.file, runtime_folder));
    if (cluster.ranks() < ranks) {
      fail("cluster", "{} has {} ranks, but the plan needs {}: set --nproc", cluster.name,
           cluster.ranks(), ranks);
    }
    return cluster;
  }
  if (uses_gpu(job, /*tell=*/false)) return gpu_cluster(ranks, runtime_folder);
  return cpu_hosts(job, ranks);
}

int64_t sharing_ranks(const job::Job& job, int64_t ranks) {
  if (!job.cluster.file.empty() || uses_gpu(job, /*tell=*/false)) return 1;
  if (job.cluster.in_process) return ranks;
  if (job.cluster.communicator == "gloo") return 1;
  const auto of_host = job::ranks_of_host().value_or(ranks);
  return of_host > 0 && ranks % of_host == 0 ? of_host : 1;
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
