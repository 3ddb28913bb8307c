#include "exec/comm/select.h"

#include <ATen/ATen.h>

#include <cstring>
#include <numeric>
#include <set>
#include <string>

#include "base/log_format.h"
#include "exec/comm/messages.h"
#include "exec/cuda.h"

namespace perigee::exec {
namespace {

// Returns whether no two ranks of the job share a GPU. All ranks call it.
bool has_gpu_each(Communicator& communicator, int64_t world, int index) {
  const auto id = cuda_host().gpus().found.at(static_cast<size_t>(index)).id;
  const auto length = static_cast<int64_t>(id.size());
  auto mine = at::empty({length}, at::kByte);
  std::memcpy(mine.data_ptr(), id.data(), id.size());
  std::vector<int64_t> ranks(static_cast<size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = communicator.group("all ranks", ranks);
  auto all = at::empty({length * group->size()}, at::kByte);
  group->run({.kind = Collective::Kind::all_gather, .input = mine, .output = all, .dim = 0});
  std::set<std::string> ids;
  for (int64_t rank = 0; rank < world; ++rank) {
    ids.emplace(static_cast<const char*>(all.data_ptr()) + rank * length, length);
  }
  return std::ssize(ids) == world;
}

}  // namespace

std::shared_ptr<Communicator> communicator_of(const std::shared_ptr<Device>& device,
                                              const std::shared_ptr<Communicator>& host,
                                              RendezvousOptions options, Messages messages) {
  if (device->place().is_cpu()) return host;
  if (has_gpu_each(*host, options.world, device->place().index())) {
    // NCCL uses the same store, which is already served.
    options.serve = false;
    options.listen_socket = -1;
    options.name = "nccl";
    std::shared_ptr<Communicator> collectives = cuda_host().communicator(options, device);
    if (messages == Messages::by_device) return collectives;
    return with_messages(std::move(collectives), cuda_host().by_host(host));
  }
  auto through_host = cuda_host().by_host(host);
  if (options.rank == 0) {
    log::info(
        "{} ranks share GPUs: they exchange tensors through the host, since NCCL requires a GPU "
        "for each",
        options.world);
  }
  return through_host;
}

std::shared_ptr<Communicator> communicator_of_thread(const Device& device,
                                                     const std::shared_ptr<Communicator>& host,
                                                     int64_t ranks) {
  if (device.place().is_cpu() || ranks == 1) return host;
  return cuda_host().by_host(host);
}

}  // namespace perigee::exec
