// Time and peak memory of an optimizer step of a GPT against eager LibTorch with the same module,
// one thread on both sides. Exits with 1 if losses differ or a goal is missed (time at most 0.9 of
// eager's, memory at most eager's).
//
// Usage: bench_step [--device cuda] [--bfloat16] [--profile]. --bfloat16: both sides under autocast;
// losses then agree to its rounding. --profile also prints the time of each op on both
// sides (on a GPU, eager's is host time). Both sides copy the batch from the host.
//
// Eager's peak is counted in LibTorch's CPU allocator during plain steps, weights included.
// Perigee's peak is its frames plus other allocations, by the same counter. On a GPU both count
// LibTorch's GPU allocator and frames.
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "compile/compile.h"
#include "exec/comm/threads.h"
#include "exec/cuda.h"
#include "exec/executor.h"
#include "exec/memory/allocator.h"
#include "tools/bench/median.h"

namespace {

using perigee::bench::median;

namespace nn = torch::nn;
using perigee::compile::Binding;
using perigee::exec::Device;

constexpr int64_t kLayers = 4, kWidth = 256, kHeads = 4, kVocabulary = 256, kSequence = 256;
constexpr int kWarmUp = 3, kRuns = 20;
constexpr double kLearningRate = 1e-3, kWeightDecay = 0.1, kClip = 1;

struct Block : nn::Module {
  nn::LayerNorm norm1{nn::LayerNormOptions({kWidth})}, norm2{nn::LayerNormOptions({kWidth})};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth};
  nn::Linear up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};

  Block() {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }

  // [b, s, width] -> the same
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), s = x.size(1);
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    const auto heads = [&](const at::Tensor& t) {
      return t.view({b, s, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const auto mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                        heads(parts[2]), {}, 0.0, true);
    x = x + out(mixed.transpose(1, 2).reshape({b, s, kWidth}));
    return x + down(at::gelu(up(norm2(x))));
  }
};

struct Gpt : nn::Module {
  nn::Embedding tokens{kVocabulary, kWidth}, positions{kSequence, kWidth};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Linear head{nn::LinearOptions(kWidth, kVocabulary).bias(false)};

  Gpt() {
    register_module("tokens", tokens);
    register_module("positions", positions);
    register_module("blocks", blocks);
    for (int64_t k = 0; k < kLayers; ++k) blocks->push_back(Block());
    register_module("norm", norm);
    register_module("head", head);
  }

  at::Tensor loss(const perigee::Batch& batch) {
    const auto& ids = batch.at("tokens");
    auto x = tokens(ids) + positions(at::arange(ids.size(1), ids.options()));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return nn::functional::cross_entropy(head(norm(x)).flatten(0, 1), batch.at("labels").flatten());
  }
};

perigee::Batch batch_of(int64_t samples) {
  const auto draw = [&] { return torch::randint(kVocabulary, {samples, kSequence}, torch::kLong); };
  return {{"tokens", draw()}, {"labels", draw()}};
}

perigee::Batch piece(const perigee::Batch& batch, int64_t first, int64_t size) {
  perigee::Batch part;
  for (const auto& [name, tensor] : batch) part[name] = tensor.narrow(0, first, size);
  return part;
}

// ---- the two sides

// LibTorch's autocast during its lifetime, if it is on.
class Autocast {
 public:
  Autocast(at::DeviceType device, bool on) : device_(device), on_(on) {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool on_;
};

class Eager {
 public:
  Eager(int64_t microbatches, at::Device place, bool low)
      : microbatches_(microbatches),
        place_(place),
        low_(low),
        optimizer_(moved(net, place), options()) {}

  // Returns the loss.
  double step(const perigee::Batch& batch) {
    optimizer_.zero_grad();
    const int64_t size = batch.at("tokens").size(0) / microbatches_;
    double total = 0;
    for (int64_t m = 0; m < microbatches_; ++m) {
      auto part = piece(batch, m * size, size);
      for (auto& [name, tensor] : part) tensor = tensor.to(place_);
      auto loss = [&] {
        const Autocast autocast(place_.type(), low_);
        return net.loss(part);
      }();
      if (microbatches_ > 1) loss = loss / microbatches_;
      loss.backward();
      total += loss.item<double>();
    }
    nn::utils::clip_grad_norm_(net.parameters(), kClip);
    optimizer_.step();
    return total;
  }

  Gpt net;

 private:
  static torch::optim::AdamWOptions options() {
    return torch::optim::AdamWOptions(kLearningRate).weight_decay(kWeightDecay);
  }
  static std::vector<at::Tensor> moved(Gpt& net, at::Device place) {
    net.to(place);
    return net.parameters();
  }

  int64_t microbatches_;
  at::Device place_;
  bool low_;
  torch::optim::AdamW optimizer_;
};

// Records allocation traces without a cache.
class DryRuns : public perigee::compile::TraceSource {
 public:
  explicit DryRuns(Device& device) : device_(device) {}
  std::optional<perigee::compile::OpTrace> find(
      const perigee::compile::OpInstance& instance) override {
    return device_.dry_run(instance);
  }

 private:
  Device& device_;
};

class Perigee {
 public:
  Perigee(const Gpt& initial, const perigee::Batch& batch, int64_t microbatches, bool low,
          std::shared_ptr<Device> device)
      : size_(batch.at("tokens").size(0) / microbatches),
        communicator_(std::move(perigee::exec::thread_communicators(1).at(0))) {
    const auto net = perigee::deferred<Gpt>();
    const auto captured = perigee::capture(
        *net, piece(batch, 0, size_),
        [&](const perigee::Batch& b) { return perigee::Result{net->loss(b)}; });
    perigee::plan::Plan plan;
    plan.graph_hash = perigee::graph::structural_hash(captured.graph);
    plan.mesh.axes = {{"data", 1}};
    plan.microbatches = microbatches;
    if (low) plan.precision.dtype = perigee::graph::DType::bfloat16;
    DryRuns traces(*device);
    const perigee::compile::StepSpec spec{.weight_decay = kWeightDecay, .clip_norm = kClip};
    executor = std::make_unique<perigee::exec::Executor>(
        perigee::compile::compile(captured.graph, plan, spec, 0, traces), *communicator_, plan.mesh,
        perigee::exec::ExecutorOptions{.device = device});
    const at::NoGradGuard no_grad;
    for (const auto& parameter : initial.named_parameters()) {
      executor->tensor(Binding::Kind::parameter, parameter.key()).copy_(parameter.value());
    }
  }

  // Returns the loss.
  double step(const perigee::Batch& batch) {
    executor->run({.step = ++steps_,
                   .scalars = {{"lr.0", kLearningRate}},
                   .data = [&](const std::string& name, int64_t m) {
                     return batch.at(name).narrow(0, m * size_, size_);
                   }});
    return executor->tensor(Binding::Kind::result, "loss").item<double>();
  }

  std::unique_ptr<perigee::exec::Executor> executor;

 private:
  int64_t size_, steps_ = 0;
  std::unique_ptr<perigee::exec::Communicator> communicator_;
};

// ---- measurements

double milliseconds(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Returns the peak of allocated bytes during `run`, less `base`.
int64_t peak_bytes(Device& device, int64_t base, const std::function<void()>& run) {
  if (!device.place().is_cpu()) {
    device.reset_peak();
    run();
    return device.peak() - base;
  }
  perigee::exec::reset_peak();
  run();
  return perigee::exec::memory_count().peak - base;
}

int64_t bytes_now(Device& device) {
  if (!device.place().is_cpu()) {
    device.reset_peak();
    return device.peak();
  }
  const auto count = perigee::exec::memory_count();
  return count.arenas + count.others;
}

using Milliseconds = std::map<std::string, double>;

void print_times(const char* side, const Milliseconds& times) {
  std::vector<std::pair<double, std::string>> sorted;
  double total = 0;
  for (const auto& [name, ms] : times) {
    sorted.emplace_back(ms, name);
    total += ms;
  }
  std::sort(sorted.rbegin(), sorted.rend());
  fmt::print("  {}, {:.1f} ms in ops:\n", side, total);
  for (size_t i = 0; i < std::min<size_t>(sorted.size(), 25); ++i) {
    fmt::print("    {:9.2f} ms  {}\n", sorted[i].first, sorted[i].second);
  }
}

// Eager's time in each op, without nested ops.
Milliseconds eager_times;
thread_local std::vector<std::pair<std::chrono::steady_clock::time_point, double>> eager_open;

std::unique_ptr<at::ObserverContext> begin_op(const at::RecordFunction&) {
  eager_open.emplace_back(std::chrono::steady_clock::now(), 0.0);
  return nullptr;
}

void end_op(const at::RecordFunction& op, at::ObserverContext*) {
  const auto [begin, inside] = eager_open.back();
  eager_open.pop_back();
  const double taken =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  eager_times[op.name()] += taken - inside;
  if (!eager_open.empty()) eager_open.back().second += taken;
}

void profile(Eager& eager, Perigee& ours, const perigee::Batch& batch) {
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(begin_op, end_op).scopes({at::RecordScope::FUNCTION}));
  eager.step(batch);
  at::removeCallback(handle);
  print_times("eager", eager_times);
  eager_times.clear();
  ours.executor->record(true);
  ours.step(batch);
  Milliseconds times;
  for (const auto& interval : ours.executor->intervals()) {
    times[interval.name] += static_cast<double>(interval.end - interval.begin) / 1e6;
  }
  ours.executor->record(false);
  print_times("perigee", times);
}

struct Options {
  bool profile = false, on_gpu = false, low = false;
};

bool compare(const std::shared_ptr<Device>& device, int64_t samples, int64_t microbatches,
             const Options& options) {
  torch::manual_seed(1);
  const auto batch = batch_of(samples);
  torch::manual_seed(2);
  const Gpt initial;
  const int64_t base = bytes_now(*device);
  torch::manual_seed(2);
  Eager eager(microbatches, device->place(), options.low);
  double eager_loss = 0, loss = 0, loss_difference = 0;
  std::vector<double> eager_losses;
  const int64_t eager_peak = peak_bytes(*device, base, [&] {
    for (int k = 0; k < kWarmUp; ++k) eager_losses.push_back(eager.step(batch));
  });
  const int64_t before = bytes_now(*device);
  Perigee ours(initial, batch, microbatches, options.low, device);
  const int64_t peak = peak_bytes(*device, before, [&] {
    for (int k = 0; k < kWarmUp; ++k) {
      loss = ours.step(batch);
      loss_difference = std::max(loss_difference,
                                 std::abs(loss - eager_losses[k]) / std::abs(eager_losses[k]));
    }
  });

  std::vector<double> eager_ms, ms;
  for (int k = 0; k < kRuns; ++k) {
    eager_ms.push_back(milliseconds([&] { eager_loss = eager.step(batch); }));
    ms.push_back(milliseconds([&] { loss = ours.step(batch); }));
    loss_difference = std::max(loss_difference, std::abs(loss - eager_loss) / std::abs(eager_loss));
  }
  constexpr double kMega = 1e6;
  const double time_ratio = median(ms) / median(eager_ms);
  const double memory_ratio = static_cast<double>(peak) / static_cast<double>(eager_peak);
  fmt::print("batch {} as {} microbatch{}\n", samples, microbatches, microbatches > 1 ? "es" : "");
  fmt::print("  loss after {} steps: {:.6f}, eager {:.6f}; at most {:.1e} apart in all steps\n",
             kWarmUp + kRuns, loss, eager_loss, loss_difference);
  fmt::print("  step: {:.1f} ms, eager {:.1f} ms, ratio {:.3f} (goal 0.9)\n", median(ms),
             median(eager_ms), time_ratio);
  fmt::print("  peak: {:.1f} MB (frames {:.1f} MB), eager {:.1f} MB, ratio {:.3f} (goal 1)\n",
             static_cast<double>(peak) / kMega,
             static_cast<double>(ours.executor->frame_bytes()) / kMega,
             static_cast<double>(eager_peak) / kMega, memory_ratio);
  std::fflush(stdout);
  if (options.profile) profile(eager, ours, batch);
  return loss_difference < (options.low ? 5e-2 : 1e-3) && time_ratio <= 0.9 && memory_ratio <= 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--profile") {
      options.profile = true;
    } else if (words[i] == "--bfloat16") {
      options.low = true;
    } else if (words[i] == "--device" && i + 1 < words.size() &&
               (words[i + 1] == "cpu" || words[i + 1] == "cuda")) {
      options.on_gpu = words[++i] == "cuda";
    } else {
      fmt::print(stderr, "usage: bench_step [--device cpu|cuda] [--bfloat16] [--profile]\n");
      return 2;
    }
  }
  try {
    const auto device = options.on_gpu ? perigee::exec::cuda_host().device({})
                                       : perigee::exec::cpu_device();
    at::set_num_threads(1);
    perigee::exec::install_allocator();
    bool good = compare(device, 8, 1, options);
    good &= compare(device, 32, 4, options);
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_step: {}\n", error.what());
    return 1;
  }
}
