#include "tests/cuda/simulated/ranks.h"

#include <numeric>
#include <thread>

#include "base/network/address.h"
#include "cuda/nccl/nccl.h"

namespace perigee::cuda {

std::vector<int64_t> first_ranks(int64_t n) {
  std::vector<int64_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<std::string> run_gpus(int world, std::chrono::milliseconds timeout, const Body& body) {
  const auto listener = listen_at("127.0.0.1", 0, false);
  std::vector<std::string> errors(world);
  // Kept until all ranks have ended: the store of rank 0 serves the others, and work of a rank that
  // has failed may run until then.
  std::vector<std::shared_ptr<CudaDevice>> devices(world);
  std::vector<std::unique_ptr<exec::Communicator>> communicators(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto device = devices[rank] = make_device({.index = rank});
        auto& communicator = communicators[rank] = nccl_communicator(
            {.port = listener.port,
             .rank = rank,
             .world = world,
             .serve = rank == 0,
             .listen_socket = rank == 0 ? listener.socket : -1,
             .timeout = timeout},
            device);
        try {
          body(*communicator, *device);
        } catch (const std::exception& error) {
          communicator->abort(error.what());
          throw;
        }
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

std::vector<std::string> none(int world) { return std::vector<std::string>(world); }

}  // namespace perigee::cuda
