// The rates that bound a step on this machine: copies within the device, to it and from it, and
// products of bf16 matrices, each the best of several runs. Exits with 1 if a result is wrong.
//
// Usage: bench_ceilings [--device cuda]; default cpu. Prints one line of JSON.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string_view>

#include "exec/cuda.h"

namespace {

using perigee::exec::Device;

constexpr int kRuns = 10;

// Returns the fewest seconds that `work` takes on the device.
double seconds_of(Device& device, const std::function<void()>& work) {
  double best = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    const auto entered = device.enter();
    const auto begin = device.mark();
    work();
    const auto end = device.mark();
    device.synchronize({});
    best = std::min(best, static_cast<double>(device.time(end) - device.time(begin)) * 1e-9);
  }
  return best;
}

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(fmt::format("wrong result: {}", what));
}

int run(Device& device) {
  const bool cpu = device.place().is_cpu();
  const int64_t bytes = cpu ? int64_t{1} << 26 : int64_t{1} << 30, n = cpu ? 512 : 8192;
  const auto type = at::TensorOptions().dtype(at::kInt);
  const auto memory = device.allocate(bytes, false), other = device.allocate(bytes, false);
  const auto pinned = device.allocate_host(bytes);
  const auto on_device = type.device(device.place());
  const auto a = at::from_blob(memory.get(), {bytes / 4}, on_device);
  const auto b = at::from_blob(other.get(), {bytes / 4}, on_device);
  const auto host = at::from_blob(pinned.get(), {bytes / 4}, type);
  const auto expected = at::arange(bytes / 4, type);
  host.copy_(expected);

  const double to_device = seconds_of(device, [&] { device.copy(a, host, false)->wait(); });
  const double within = seconds_of(device, [&] { b.copy_(a); });
  host.zero_();
  const double to_host = seconds_of(device, [&] { device.copy(host, b, true)->wait(); });
  require(at::equal(host, expected), "a round trip through the device");

  // Row i of x is i % 8; the columns of y are those of the identity, so that a product is exact.
  const auto half = at::TensorOptions().dtype(at::kBFloat16).device(device.place());
  const auto x = at::arange(n, half.dtype(at::kFloat)).remainder(8).unsqueeze(1).expand({n, n});
  const auto left = x.to(at::kBFloat16).contiguous(), right = at::eye(n, half);
  auto product = at::empty({n, n}, half);
  const double multiply = seconds_of(device, [&] { at::mm_out(product, left, right); });
  require(at::equal(product, left), "a product of matrices");

  const auto rate = [](double amount, double seconds) { return amount / std::max(seconds, 1e-9); };
  fmt::print(
      "{{\"kind\": \"{}\", \"copy_bytes_per_s\": {:.6g}, \"to_device_bytes_per_s\": {:.6g}, "
      "\"to_host_bytes_per_s\": {:.6g}, \"bf16_product_per_s\": {:.6g}}}\n",
      device.kind(), rate(2.0 * static_cast<double>(bytes), within),
      rate(static_cast<double>(bytes), to_device), rate(static_cast<double>(bytes), to_host),
      rate(2.0 * static_cast<double>(n * n * n), multiply));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const bool cuda = argc == 3 && argv[1] == std::string_view("--device") &&
                      argv[2] == std::string_view("cuda");
    return run(cuda ? *perigee::exec::cuda_host().device({}) : *perigee::exec::cpu_device());
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_ceilings: {}\n", error.what());
    return 1;
  }
}
