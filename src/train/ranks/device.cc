#include "train/ranks/device.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/fail.h"
#include "base/log_format.h"
#include "exec/cuda.h"

namespace perigee::train {
namespace {

int64_t visible_gpus() {
  if (const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string_view list(chosen);
    return list.empty() || list.starts_with('-') ? 0
                                                 : 1 + std::count(list.begin(), list.end(), ',');
  }
  int64_t count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const auto name = entry.path().filename().string();
    count += name.starts_with("nvidia") && name.size() > 6 &&
             name.find_first_not_of("0123456789", 6) == std::string::npos;
  }
  return count;
}

}  // namespace

bool uses_gpu(const job::Job& job, bool warn) {
  if (!job.cluster.device.empty()) return job.cluster.device == "cuda";
  if (!exec::gpu_driver_present()) return false;
  try {
    const auto gpus = exec::cuda_host().gpus();
    const auto old = std::ranges::find(gpus.found, false, &exec::GpuInfo::usable);
    if (!gpus.found.empty() && old == gpus.found.end()) return true;
    if (warn) {
      log::warn("no GPU is used: {}",
                gpus.found.empty()
                    ? gpus.why_none
                    : fmt::format("{} has compute capability {}.{}, and 8.0 or later is needed",
                                  old->name, old->major, old->minor));
    }
    return false;
  } catch (const std::exception& error) {
    if (warn) log::warn("no GPU is used: {}", error.what());
    return false;
  }
}

void prepare_device(const job::Job& job) {
  if (job.cluster.device == "cpu" || !exec::gpu_driver_present()) return;
  try {
    exec::cuda_host();
  } catch (const std::exception& error) {
    log::debug("{}", error.what());
  }
}

std::vector<int64_t> usable_gpus(const job::ClusterConfig& cluster, int64_t found) {
  auto listed = job::devices_of(cluster);
  if (listed.empty()) {
    for (int64_t gpu = 0; gpu < found; ++gpu) listed.push_back(gpu);
  }
  for (const auto gpu : listed) {
    if (gpu < found || found == 0) continue;
    fail("cluster", "cluster.devices lists GPUs of this host, which has {}, but got {}", found,
         gpu);
  }
  return listed;
}

int64_t default_ranks(const job::Job& job) {
  if (const auto listed = job::devices_of(job.cluster); !listed.empty()) return std::ssize(listed);
  const auto& device = job.cluster.device;
  if (device == "cpu" || !exec::gpu_driver_present()) return 1;
  if (device.empty() && !exec::cuda_part_present()) return 1;
  return std::max<int64_t>(1, visible_gpus());
}

int gpu_of_rank(int64_t gpus, const job::RankPlace& place) {
  if (gpus > 1 && place.local_world > gpus) {
    fail("cluster",
         "every rank needs a GPU of its own where a host has several, but {} ranks are on a host "
         "with {} GPUs: start {} there (--nproc, cluster.ranks), or use device = \"cpu\"",
         place.local_world, gpus, gpus);
  }
  // With one GPU visible, all ranks share it or the launcher shows each rank its own.
  return gpus == 1 ? 0 : static_cast<int>(place.local_rank);
}

std::shared_ptr<exec::Device> open_gpu(const job::Job& job, const job::RankPlace& place) {
  auto& cuda = exec::cuda_host();
  const auto gpus = usable_gpus(job.cluster, static_cast<int64_t>(cuda.gpus().found.size()));
  const auto index = gpus.empty() ? 0
                                  : gpus[static_cast<size_t>(gpu_of_rank(std::ssize(gpus), place))];
  return cuda.device({.index = static_cast<int>(index),
                      .deterministic = job.cluster.deterministic,
                      .tf32 = job.cluster.tf32});
}

std::shared_ptr<exec::Device> open_device(const job::Job& job) {
  return uses_gpu(job) ? open_gpu(job, {}) : exec::cpu_device();
}

}  // namespace perigee::train
