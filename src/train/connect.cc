#include "train/connect.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "exec/cuda.h"
#include "exec/gloo.h"
#include "exec/threads.h"
#include "train/blueprint.h"

namespace perigee::train {
namespace {

std::chrono::milliseconds timeout_of(const job::Job& job) {
  return std::chrono::milliseconds(static_cast<int64_t>(job.cluster.timeout * 1000));
}

exec::RendezvousOptions rendezvous(const job::Job& job, const job::RankPlace& place) {
  exec::RendezvousOptions options;
  options.host = place.host;
  options.port = static_cast<uint16_t>(place.port);
  options.rank = place.rank;
  options.world = place.world;
  options.serve = place.rank == 0;
  options.listen_socket = place.listen_fd;
  options.timeout = timeout_of(job);
  return options;
}

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

std::shared_ptr<exec::Device> open_gpu(const job::Job& job, const job::RankPlace& place) {
  auto& cuda = exec::cuda_host();
  const auto gpus = usable_gpus(job.cluster, static_cast<int64_t>(cuda.gpus().found.size()));
  const auto index =
      gpus.empty() ? 0 : gpus[static_cast<size_t>(gpu_of_rank(std::ssize(gpus), place))];
  return cuda.device(
      {.index = static_cast<int>(index), .deterministic = job.cluster.deterministic});
}

// Whether every rank of the job has a GPU of its own, wherever it is. All ranks call it.
bool has_gpu_each(exec::Communicator& communicator, int index) {
  const auto id = exec::cuda_host().gpus().found.at(static_cast<size_t>(index)).id;
  const auto length = static_cast<int64_t>(id.size());
  auto mine = at::empty({length}, at::kByte);
  std::memcpy(mine.data_ptr(), id.data(), id.size());
  const auto group = everyone(communicator);
  auto all = at::empty({length * group->size()}, at::kByte);
  group->run({.kind = exec::Collective::Kind::all_gather, .input = mine, .output = all, .dim = 0});
  std::set<std::string> ids;
  for (int64_t rank = 0; rank < group->size(); ++rank)
    ids.emplace(static_cast<const char*>(all.data_ptr()) + rank * length, length);
  return std::ssize(ids) == group->size();
}

}  // namespace

bool uses_gpu(const job::Job& job, bool tell) {
  if (!job.cluster.device.empty()) return job.cluster.device == "cuda";
  if (!exec::gpu_driver_present()) return false;
  try {
    const auto gpus = exec::cuda_host().gpus();
    const auto old = std::ranges::find(gpus.found, false, &exec::GpuInfo::usable);
    if (!gpus.found.empty() && old == gpus.found.end()) return true;
    if (tell) {
      log::warn("no GPU is used: {}",
                gpus.found.empty()
                    ? gpus.why_none
                    : fmt::format("{} has compute capability {}.{}, and 8.0 or later is needed",
                                  old->name, old->major, old->minor));
    }
    return false;
  } catch (const std::exception& error) {
    if (tell) log::warn("no GPU is used: {}", error.what());
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

std::vector<int64_t> usable_gpus(const job::Cluster& cluster, int64_t found) {
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
  // The only one is shared, or it is all that the launcher lets this rank see.
  return gpus == 1 ? 0 : static_cast<int>(place.local_rank);
}

std::shared_ptr<exec::Device> open_device(const job::Job& job) {
  return uses_gpu(job) ? open_gpu(job, {}) : exec::cpu_device();
}

Connection connect(const job::Job& job, const job::RankPlace& place) {
  Connection made;
  made.local_ranks = place.local_world;
  const bool gpu = uses_gpu(job, place.rank == 0);
  const auto open = [&] { made.device = gpu ? open_gpu(job, place) : exec::cpu_device(); };
  if (place.world == 1) {
    open();
    made.communicator = made.tensors = exec::single_communicator();
    return made;
  }
  // Rank 0 first, and the others once they have met it: what no rank can have is said by one.
  if (place.rank == 0) open();
  auto options = rendezvous(job, place);
  made.communicator = made.tensors = exec::gloo_communicator(options);
  try {
    if (place.rank != 0) open();
    if (!gpu) return made;
    if (has_gpu_each(*made.communicator, made.device->place().index())) {
      // At the same store.
      options.serve = false;
      options.listen_socket = -1;
      made.tensors = exec::cuda_host().communicator(options, made.device);
      return made;
    }
    made.tensors = exec::cuda_host().by_host(made.communicator);
  } catch (const std::exception& error) {
    made.communicator->abort(error.what());
    throw;
  }
  if (place.rank == 0) {
    log::info(
        "{} ranks share GPUs: what they exchange goes by way of the host, since NCCL wants a GPU "
        "for each",
        place.world);
  }
  return made;
}

std::vector<Connection> connect_threads(const job::Job& job, int64_t count) {
  std::vector<Connection> made;
  const bool gpu = uses_gpu(job);
  auto communicators = exec::thread_communicators(count, {timeout_of(job)});
  for (int64_t rank = 0; rank < count; ++rank) {
    const job::RankPlace place{
        .rank = rank, .world = count, .local_rank = rank, .local_world = count};
    auto& one = made.emplace_back();
    one.device = gpu ? open_gpu(job, place) : exec::cpu_device();
    one.local_ranks = count;
    one.communicator = one.tensors = std::move(communicators[static_cast<size_t>(rank)]);
    if (gpu && count > 1) one.tensors = exec::cuda_host().by_host(one.communicator);
  }
  if (gpu && count > 1) {
    log::info(
        "{} ranks are threads: what they exchange goes by way of the host; ranks that are "
        "processes with a GPU each use NCCL",
        count);
  }
  return made;
}

}  // namespace perigee::train
