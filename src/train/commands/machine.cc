#include "train/commands/machine.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/network/address.h"
#include "base/text/bytes.h"
#include "exec/comm/gloo.h"
#include "exec/comm/shared/communicator.h"
#include "exec/comm/threads.h"
#include "exec/cuda.h"
#include "exec/kernels/product/blocked_product.h"
#include "exec/kernels/product/product.h"
#include "exec/op_threads.h"
#include "job/job.h"
#include "text/tokenizer.h"
#include "train/ranks/share.h"
#include "train/task/threads.h"

namespace perigee::train {
namespace {

using Ranks = std::vector<std::unique_ptr<exec::Communicator>>;

std::string file_of(const void* symbol) {
  Dl_info info{};
  if (!dladdr(symbol, &info) || !info.dli_fname) return "an unknown file";
  return std::filesystem::path(info.dli_fname).lexically_normal().string();
}

// Runs `make` and a sum for two ranks, each on a thread. Returns "ready", or what failed.
std::string try_two(const std::function<std::unique_ptr<exec::Communicator>(int64_t)>& make) {
  std::string states[2] = {"ready", "ready"};
  const auto run = [&](int64_t rank) {
    try {
      const auto communicator = make(rank);
      auto value = at::ones({1});
      everyone(*communicator)
          ->run({.kind = exec::Collective::Kind::all_reduce, .input = value, .output = value});
      if (value.item<float>() != 2) states[rank] = "does not work: 1 + 1 gives another sum";
    } catch (const std::exception& error) {
      states[rank] = fmt::format("does not work: {}", error.what());
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return states[0] != "ready" ? states[0] : states[1];
}

std::string try_threads() {
  auto ranks = exec::thread_communicators(2, {std::chrono::seconds(5)});
  return try_two([&](int64_t rank) { return std::move(ranks[rank]); });
}

// Calls try_two for two ranks that meet at a port of this host.
std::string try_meeting(
    const std::function<std::unique_ptr<exec::Communicator>(exec::RendezvousOptions)>& make) {
  try {
    const auto listening = listen_at("127.0.0.1", 0, false);
    return try_two([&](int64_t rank) {
      exec::RendezvousOptions options;
      options.port = listening.port;
      options.rank = rank;
      options.world = 2;
      options.serve = rank == 0;
      options.listen_socket = rank == 0 ? listening.socket : -1;
      options.timeout = std::chrono::seconds(5);
      return make(std::move(options));
    });
  } catch (const std::exception& error) {
    return fmt::format("does not work: {}", error.what());
  }
}

std::string try_gloo() {
  return try_meeting(
      [](exec::RendezvousOptions options) { return exec::gloo_communicator(std::move(options)); });
}

// Returns "ready" and the limits of shared memory, or what fails and what ranks use in its place.
std::string try_shared_memory() {
  constexpr int64_t kLarge = int64_t{1} << 30;
  const auto state = try_meeting([](exec::RendezvousOptions options) {
    auto memory = exec::SharedMemory::open();
    memory->allocate(kLarge, /*sparse=*/true);
    return exec::process_communicator({.rendezvous = std::move(options),
                                       .carrier = exec::ProcessOptions::Carrier::shared,
                                       .local_ranks = 2,
                                       .memory = std::move(memory)});
  });
  if (state != "ready") return state + "; ranks of this host use gloo";
  return "ready, between ranks of this host; limited by free memory, not by /dev/shm";
}

// Returns how many times as fast `threads` threads multiply matrices as one does.
double speedup(int threads) {
  const auto a = at::rand({1024, 1024}), b = at::rand({1024, 1024});
  auto c = at::empty({1024, 1024});
  const auto seconds = [&](int count) {
    exec::set_op_threads(count);
    auto least = std::chrono::duration<double>::max();
    for (int i = 0; i < 6; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      at::mm_out(c, a, b);
      least = std::min<std::chrono::duration<double>>(least,
                                                      std::chrono::steady_clock::now() - begin);
    }
    return least.count();
  };
  const double one = seconds(1);
  return one / seconds(threads);
}

// Returns the ranks and threads of a job on CPUs that sets neither.
std::string describe_ranks(int cores) {
  const auto threads = threads_of_rank({}, 1);
  const auto text = fmt::format("1 with {} thread{} by default (--nproc, cluster.threads)", threads,
                                threads == 1 ? "" : "s");
  if (cores == 1) return text + "; there is one core";
  return text + fmt::format("; products now run {1:.1f} times as fast on all {0} cores as on one",
                            cores, speedup(cores));
}

// Returns what multiplies matrices on CPUs (exec/kernels/product/product.h).
std::string describe_products() {
  const std::string blas = at::hasMKL() ? "MKL" : "LibTorch's BLAS";
  const auto way = [](at::ScalarType type, const std::string& library) {
    constexpr int64_t kLarge = 1024;
    const auto by_blocks = [&](bool bias) {
      return exec::kernels::prefers_blocks(type, kLarge, kLarge, kLarge, bias);
    };
    if (!by_blocks(true)) return library;
    if (!by_blocks(false)) return fmt::format("{}, with a bias by blocks of oneDNN", library);
    const auto* widened = exec::kernels::widens_blocks(type) ? " in float32" : "";
    return fmt::format("blocks of oneDNN{}, small ones by {}", widened, library);
  };
  const auto library = at::Context::hasMKLDNN() ? "oneDNN and " + blas : blas;
  return fmt::format("float32 by {}; bfloat16 by {}; float16 by {}", way(at::kFloat, blas),
                     way(at::kBFloat16, library), library);
}

std::string state_of(void (*open)()) {
  try {
    open();
    return "loads";
  } catch (const Error& error) {
    return error.what();
  }
}

struct Cuda {
  std::string plugin;  // its state
  std::string nccl;
  std::vector<std::string> gpus;
};

Cuda describe_cuda() {
  Cuda cuda;
  try {
    auto& host = exec::cuda_host();
    const auto versions = host.versions();
    const auto gpus = host.gpus();
    cuda.plugin = fmt::format("loads, with CUDA {}, {}", versions.cuda, versions.driver);
    for (size_t i = 0; i < gpus.found.size(); ++i) {
      const auto& gpu = gpus.found[i];
      const auto failure = gpu.usable() ? host.try_gpu(static_cast<int>(i)) : "";
      cuda.gpus.push_back(fmt::format(
          "{}: {}, {}, {} multiprocessors, compute capability {}.{}{}", i, gpu.name,
          bytes_text(static_cast<double>(gpu.memory)), gpu.processors, gpu.major, gpu.minor,
          !gpu.usable()     ? " (too old: 8.0 or later is needed)"
          : failure.empty() ? "; a kernel, a product, a copy and NCCL work"
                            : "; does not work: " + failure));
    }
    if (gpus.found.empty()) cuda.gpus = {fmt::format("none: {}", gpus.why_none)};
    cuda.nccl = fmt::format("{} loads, {}", versions.nccl,
                            gpus.found.empty()       ? "but there is no GPU for it"
                            : gpus.found.size() == 1 ? "for one rank on the GPU; several share it "
                                                       "through the host"
                                                     : "for one rank on each GPU");
  } catch (const std::exception& error) {
    cuda.plugin = error.what();
    cuda.nccl = "not available without perigee_cuda";
    cuda.gpus = {exec::gpu_driver_present() ? "there is a driver, but perigee_cuda is needed"
                                            : "none: this machine has no NVIDIA driver"};
  }
  return cuda;
}

}  // namespace

std::vector<std::string> describe_machine() {
  const auto cuda = describe_cuda();
  std::vector<std::string> lines;
  const auto add = [&](const char* name, const std::vector<std::string>& values) {
    for (const auto& value : values) {
      lines.push_back(fmt::format("{:<12}{}", name, value));
      name = "";
    }
  };
  add("LibTorch", {fmt::format("{}, {}, kernels for {}", TORCH_VERSION,
                               file_of(reinterpret_cast<const void*>(&at::get_num_threads)),
                               at::get_cpu_capability())});
  const int cores = exec::op_threads();
  add("threads", {fmt::format("{} at most", cores)});
  add("ranks", {describe_ranks(cores)});
  add("products", {describe_products()});
  add("back ends", {"threads: " + try_threads(), "shared memory: " + try_shared_memory(),
                    "gloo: " + try_gloo(), "nccl: " + cuda.nccl});
  add("plugins", {"perigee_cuda: " + cuda.plugin,
                  "perigee_sentencepiece: " + state_of(text::open_sentencepiece),
                  "perigee_tokenizers: " + state_of(text::open_tokenizers)});
  add("GPUs", cuda.gpus);
  return lines;
}

}  // namespace perigee::train
