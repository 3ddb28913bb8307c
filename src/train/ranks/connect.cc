#include "train/ranks/connect.h"

#include <chrono>

#include "base/log_format.h"
#include "base/network/address.h"
#include "exec/comm/threads.h"
#include "train/ranks/carriers.h"
#include "train/ranks/device.h"
#include "train/ranks/shared_settings.h"

namespace perigee::train {
namespace {

std::chrono::milliseconds timeout_of(const job::Job& job) {
  return std::chrono::milliseconds(static_cast<int64_t>(job.cluster.timeout * 1000));
}

// Returns the memory of the frames that collectives use, or nullptr where no rank of this host
// reads another one's. A process that gets none reports why when its groups connect.
std::shared_ptr<exec::SharedMemory> shared_memory(const job::Job& job,
                                                  const job::RankPlace& place) {
  const bool by_gloo = carrier_of(job) == exec::ProcessOptions::Carrier::gloo;
  if (place.local_world == 1 || by_gloo) return nullptr;
  try {
    return exec::SharedMemory::open();
  } catch (const std::exception&) {
    return nullptr;
  }
}

exec::RendezvousOptions rendezvous(const job::Job& job, const job::RankPlace& place,
                                   const exec::Settings& settings) {
  exec::RendezvousOptions options;
  options.host = place.host;
  options.port = place.port;
  options.rank = place.rank;
  options.world = place.world;
  options.serve = place.rank == 0;
  options.listen_socket = place.listen_fd;
  if (options.serve && options.listen_socket < 0) {  // another launcher made the ranks
    options.listen_socket =
        listen_at(place.host, place.port, place.local_world < place.world).socket;
  }
  options.timeout = timeout_of(job);
  options.interface = place.interface;
  options.secret = place.secret;
  options.settings = shared_settings(job);
  options.settings.insert(options.settings.end(), settings.begin(), settings.end());
  options.settings.emplace_back("the number of ranks", std::to_string(place.world));
  return options;
}

}  // namespace

Connection connect(const job::Job& job, const job::RankPlace& place,
                   const exec::Settings& settings) {
  Connection made;
  made.local_ranks = place.local_world;
  const bool gpu = uses_gpu(job, place.rank == 0);
  const auto memory = shared_memory(job, place);
  const auto open = [&] { made.device = gpu ? open_gpu(job, place) : exec::cpu_device(memory); };
  if (place.world == 1) {
    open();
    made.communicator = made.tensors = exec::single_communicator();
    return made;
  }
  // Rank 0 opens its device first, the others after the rendezvous: an error that all would have is
  // reported once.
  if (place.rank == 0) {
    open();
    if (place.secret.empty() && place.local_world < place.world) {
      log::warn(
          "the job has no secret: any program that reaches port {} of {} can join it; give all "
          "hosts one random text in PERIGEE_SECRET or --secret-file",
          place.port, place.host);
    }
  }
  const auto options = rendezvous(job, place, settings);
  made.communicator = made.tensors = exec::process_communicator({.rendezvous = options,
                                                                 .carrier = carrier_of(job),
                                                                 .local_ranks = place.local_world,
                                                                 .threads = job.cluster.threads,
                                                                 .memory = memory});
  try {
    if (place.rank != 0) open();
    made.tensors = exec::communicator_of(made.device, made.communicator, options, messages_of(job));
  } catch (const std::exception& error) {
    made.communicator->abort(error.what());
    throw;
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
    one.communicator = std::move(communicators[static_cast<size_t>(rank)]);
    one.tensors = exec::communicator_of_thread(*one.device, one.communicator, count);
  }
  if (gpu && count > 1) {
    log::info(
        "{} ranks are threads: they exchange tensors through the host; ranks that are processes "
        "with a GPU each use NCCL",
        count);
  }
  return made;
}

}  // namespace perigee::train
