#include "train/commands/machine.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <functional>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/network/address.h"
#include "base/text/bytes.h"
#include "exec/comm/gloo.h"
#include "exec/comm/threads.h"
#include "exec/cuda.h"
#include "text/tokenizer.h"
#include "train/ranks/share.h"

namespace perigee::train {
namespace {

using Ranks = std::vector<std::unique_ptr<exec::Communicator>>;

std::string file_of(const void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : "an unknown file";
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

std::string try_gloo() {
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
      return exec::gloo_communicator(options);
    });
  } catch (const std::exception& error) {
    return fmt::format("does not work: {}", error.what());
  }
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
  add("threads", {fmt::format("{} at most", at::get_num_threads())});
  add("back ends", {"threads: " + try_threads(), "gloo: " + try_gloo(), "nccl: " + cuda.nccl});
  add("plugins", {"perigee_cuda: " + cuda.plugin,
                  "perigee_sentencepiece: " + state_of(text::open_sentencepiece),
                  "perigee_tokenizers: " + state_of(text::open_tokenizers)});
  add("GPUs", cuda.gpus);
  return lines;
}

}  // namespace perigee::train
