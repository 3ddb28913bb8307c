#include "profile/measure.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "compile/layout.h"
#include "compile/program.h"
#include "exec/communicator.h"
#include "exec/executor.h"

namespace perigee::profile {
namespace {

using compile::Binding;
using compile::Frame;
using compile::OpTrace;
using compile::Program;
using graph::ValueId;

constexpr int64_t kAlignment = 64;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t reserve(Frame& frame, int64_t bytes) {
  const int64_t offset = frame.bytes;
  frame.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return offset;
}

// A program that runs the op `repeats` times: operands in one frame, results in another.
std::optional<Program> program_of(const compile::OpInstance& instance,
                                  const std::optional<OpTrace>& trace, int64_t repeats) {
  Program program;
  program.streams = {"compute"};
  program.frames = {{Frame::Kind::persistent, "operands"}, {Frame::Kind::scratch, "results"}};
  compile::Instruction instruction{.op = instance.op, .args = instance.args};
  for (size_t i = 0; i < instance.operands.size(); ++i) {
    const auto& type = instance.operands[i];
    const auto& strides = instance.operand_strides[i];
    const auto bytes =
        compile::extent(type.shape, strides) * static_cast<int64_t>(graph::size_of(type.dtype));
    program.values.push_back({.type = type,
                              .strides = strides,
                              .place = {0, reserve(program.frames[0], bytes)},
                              .name = fmt::format("operand.{}", i)});
    Binding binding{.kind = Binding::Kind::parameter, .name = program.values.back().name};
    binding.value = ValueId{static_cast<int32_t>(i)};
    binding.shape = type.shape;
    for (auto size : type.shape) binding.ranges.push_back({0, size});
    program.bindings.push_back(std::move(binding));
  }
  instruction.in_place = instance.outputs.empty();
  instruction.traced = trace && trace->complete;
  if (instruction.traced) {
    for (const auto bytes : trace->allocations) {
      instruction.allocations.push_back({bytes, {1, reserve(program.frames[1], bytes)}, -1});
    }
    for (size_t k = 0; k < trace->freed_before.size(); ++k) {
      for (int32_t j : trace->freed_before[k]) {
        auto& until = instruction.allocations[j].until;
        if (until < 0) until = static_cast<int32_t>(k);
      }
    }
  }
  for (size_t k = 0; k < instance.outputs.size(); ++k) {
    const auto& type = instance.outputs[k];
    if (!type) {
      instruction.outputs.push_back({});
      continue;
    }
    compile::ProgramValue value{.type = *type, .name = fmt::format("result.{}", k)};
    if (trace && !trace->output_strides[k].empty()) value.strides = trace->output_strides[k];
    if (value.strides.size() != type->shape.size()) {
      value.strides = compile::contiguous_strides(type->shape);
    }
    if (instruction.traced) {
      const int32_t allocation = trace->output_allocation[k];
      if (allocation < 0) return std::nullopt;
      value.place = instruction.allocations[allocation].place;
    } else {
      value.place = {
          1, reserve(program.frames[1], compile::extent(type->shape, value.strides) *
                                            static_cast<int64_t>(graph::size_of(type->dtype)))};
    }
    instruction.outputs.push_back(ValueId{static_cast<int32_t>(program.values.size())});
    program.values.push_back(std::move(value));
  }
  for (const auto& value : program.values) {
    if (value.type.numel() == 0) return std::nullopt;
  }
  compile::Section section{.name = "op"};
  section.instructions.assign(static_cast<size_t>(repeats), instruction);
  program.sections.push_back(std::move(section));
  program.order = {{0, 0, 0}};
  return program;
}

}  // namespace

Measured median_of(const std::function<double()>& sample, const Effort& effort) {
  std::vector<double> samples;
  const double end = now() + effort.budget;
  Measured result;
  for (;;) {
    samples.push_back(sample());
    const auto count = static_cast<int64_t>(samples.size());
    if (count < effort.fewest) continue;
    auto sorted = samples;
    std::sort(sorted.begin(), sorted.end());
    const auto half = sorted.size() / 2;
    result.seconds = sorted.size() % 2 ? sorted[half] : 0.5 * (sorted[half - 1] + sorted[half]);
    // Order statistics: distribution-free for a median.
    const double spread = 0.98 * std::sqrt(static_cast<double>(count));
    const auto at = [&](double position) {
      const auto index = std::clamp<int64_t>(std::llround(position), 0, count - 1);
      return sorted[static_cast<size_t>(index)];
    };
    const double middle = 0.5 * static_cast<double>(count - 1);
    result.interval = 0.5 * (at(middle + spread) - at(middle - spread));
    result.samples = count;
    if (result.interval <= effort.precision * result.seconds || now() >= end) return result;
  }
}

std::optional<Measured> measure(const compile::OpInstance& instance, compile::TraceSource& traces,
                                const std::shared_ptr<exec::Device>& device, int threads,
                                const Effort& effort) {
  const auto trace = traces.find(instance);
  const auto alone = exec::single_communicator();
  const auto time = [&](int64_t repeats) -> std::optional<Measured> {
    auto program = program_of(instance, trace, repeats);
    if (!program) return std::nullopt;
    exec::Executor executor(std::move(*program), *alone, {},
                            {.threads = threads, .device = device});
    for (const auto& name : executor.names(Binding::Kind::parameter)) {
      auto operand = executor.tensor(Binding::Kind::parameter, name);
      if (operand.is_floating_point()) operand.fill_(0.5);
    }
    const auto run = [&] {
      const double begin = now();
      executor.run({});
      return (now() - begin) / static_cast<double>(repeats);
    };
    run();  // warm-up
    if (repeats == 1) return Measured{run(), 0, 1};
    return median_of(run, effort);
  };
  const auto first = time(1);
  if (!first) return std::nullopt;
  // Long enough that neither the clock nor the step around it shows.
  constexpr double kSample = 2e-3;
  const auto repeats = std::llround(kSample / std::max(first->seconds, 1e-7));
  return time(std::clamp<int64_t>(repeats, 2, 500));
}

Line fit(const std::vector<std::pair<double, Measured>>& by_bytes) {
  // Weighted least squares of t = a + b x.
  double w = 0, wx = 0, wt = 0, wxx = 0, wxt = 0;
  Line line;
  for (const auto& [x, measured] : by_bytes) {
    const double t = measured.seconds;
    if (t <= 0) continue;
    const double weight = 1 / (t * t);
    w += weight;
    wx += weight * x;
    wt += weight * t;
    wxx += weight * x * x;
    wxt += weight * x * t;
    line.interval = std::max(line.interval, measured.interval / t);
  }
  if (w == 0) return line;
  const double determinant = w * wxx - wx * wx;
  line.per_byte = determinant > 0 ? (w * wxt - wx * wt) / determinant : 0;
  line.per_byte = std::max(0.0, line.per_byte);
  line.latency = (wt - line.per_byte * wx) / w;
  if (line.latency < 0) {
    line.latency = 0;
    line.per_byte = wxx > 0 ? wxt / wxx : 0;
  }
  return line;
}

}  // namespace perigee::profile
