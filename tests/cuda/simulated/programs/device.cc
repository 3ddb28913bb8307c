#include "tests/cuda/simulated/programs/device.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "base/fail.h"
#include "cuda/check.h"
#include "exec/kernels/kernels.h"
#include "exec/memory/allocator.h"
#include "exec/submitter.h"
#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/races.h"
#include "tests/cuda/simulated/turns.h"

namespace perigee::cuda {
namespace {

using compile::Instruction;
using compile::Program;
using compile::ValueId;
using simulated::Accesses;
using simulated::Bytes;

// Appends the bytes of a strided tensor, in as few pieces as its layout allows.
void add_bytes(std::vector<Bytes>& to, const std::byte* begin, const graph::TensorType& type,
               const std::vector<int64_t>& strides) {
  const auto size = static_cast<int64_t>(graph::size_of(type.dtype));
  std::vector<size_t> dims;  // from the inner one
  for (size_t d = 0; d < type.shape.size(); ++d) {
    if (type.shape[d] == 0) return;
    if (type.shape[d] > 1) dims.push_back(d);
  }
  std::sort(dims.begin(), dims.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t run = 1;  // consecutive elements
  size_t next = 0;
  for (; next < dims.size() && strides[dims[next]] <= run; ++next) {
    // An expanded dim repeats the same bytes.
    if (strides[dims[next]] == run) run *= type.shape[dims[next]];
  }
  std::vector<const std::byte*> starts{begin};
  for (; next < dims.size(); ++next) {
    const auto known = starts;
    for (int64_t i = 1; i < type.shape[dims[next]]; ++i) {
      for (const auto* start : known) starts.push_back(start + i * strides[dims[next]] * size);
    }
  }
  for (const auto* start : starts) to.push_back({start, static_cast<size_t>(run * size)});
}

Accesses accesses_of(const exec::Running& running) {
  const auto& [program, section, instruction, microbatch, bases] = running;
  Accesses accesses;
  const auto add = [&](std::vector<Bytes>& to, ValueId v) {
    if (!v.defined()) return;
    const auto& value = program.values[v.index];
    // Frames of borrowed values have offsets and no memory.
    if (value.place.frame < 0 || program.frames[value.place.frame].borrowed) return;
    add_bytes(to, bases[value.place.frame] + value.place.offset, value.type, value.strides);
  };
  const graph::Node node{.op = instruction.op, .args = instruction.args};
  node.each_operand([&](ValueId v) { add(accesses.reads, v); });
  for (const auto v : instruction.outputs) add(accesses.writes, v);
  if (!instruction.traced || instruction.in_place) return accesses;
  for (const auto& allocation : instruction.allocations) {
    if (allocation.place.frame < 0) continue;
    accesses.writes.push_back({bases[allocation.place.frame] + allocation.place.offset,
                               static_cast<size_t>(allocation.bytes)});
  }
  return accesses;
}

class ProgramDevice : public exec::Device, public exec::Submitter {
 public:
  ProgramDevice(CudaDevice& gpu, int64_t rank, exec::Recorder* recorder)
      : gpu_(gpu), rank_(rank), recorder_(recorder ? recorder : gpu.recorder()) {
    exec::install_allocator();
    simulated::name_stream(gpu.stream(), fmt::format("rank {}'s compute stream", rank));
  }

  at::Device place() const override { return at::kCPU; }
  std::string kind() const override { return gpu_.kind(); }
  exec::Kernel kernel(const exec::Op& op) override { return exec::cpu_kernel(op); }
  // Planned addresses are served in frames of this kind alone.
  std::shared_ptr<std::byte> allocate(int64_t bytes, bool communicates) override {
    auto memory = exec::allocate_frames(bytes);
    return communicates ? simulated::as_nccl_memory(std::move(memory), bytes) : memory;
  }
  std::shared_ptr<std::byte> allocate_host(int64_t bytes) override {
    return gpu_.allocate_host(bytes);
  }
  std::shared_ptr<exec::Work> copy(const at::Tensor& to, const at::Tensor& from,
                                   bool to_host) override {
    return gpu_.copy(to, from, to_host);
  }
  bool plans_memory() const override { return true; }
  std::optional<compile::OpTrace> dry_run(const compile::OpInstance&) override { return {}; }
  void reset_peak() override {}
  int64_t peak() const override { return 0; }
  std::shared_ptr<void> enter() override { return gpu_.enter(); }
  void upload(const at::Tensor& target, const at::Tensor& source) override {
    gpu_.upload(target, source);
  }
  // Without `check`, which the GPU would call by the clock, so that runs would differ. A rank that has
  // failed is found by the others' turns.
  void synchronize(const std::function<void()>&) override {
    simulated::set_label({fmt::format("the end of a step of rank {}", rank_), ""});
    gpu_.synchronize({});
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }
  int64_t mark() override { return gpu_.mark(); }
  int64_t time(int64_t mark) override { return gpu_.time(mark); }
  exec::Submitter* submitter() override { return this; }
  exec::Recorder* recorder() override { return recorder_; }

  void begin(const exec::Running& running) override {
    const auto& instruction = running.instruction;
    const auto& stream = running.program.streams[instruction.stream];
    const bool waits = instruction.kind == Instruction::Kind::wait;
    simulated::set_label(
        {fmt::format("{} of rank {} ({}, microbatch {}, scope \"{}\")",
                     waits ? fmt::format("the wait for event {}", instruction.event)
                     : instruction.kind == Instruction::Kind::load ? "load of " + instruction.op
                                                                   : instruction.op,
                     rank_, running.section.name(), running.microbatch, instruction.scope),
         instruction.stream > 0 ? fmt::format("rank {}'s stream {}", rank_, stream.name()) : ""});
    if (instruction.kind != Instruction::Kind::op) return;
    const auto [at, added] = known_.try_emplace({&instruction, running.bases.data()});
    if (added) at->second = accesses_of(running);
    accesses_ = &at->second;
  }

  void submit(std::function<void()> run) override {
    simulated::submit(
        gpu_.stream(),
        [this, run = std::move(run)] {
          // Any thread runs it.
          at::AutoDispatchBelowADInplaceOrView below_autograd;
          try {
            run();
          } catch (const std::exception& error) {
            if (failure_.empty()) failure_ = error.what();
          }
        },
        *accesses_);
  }

  void fill(const at::Tensor& target, double value) override {
    simulated::set_label({fmt::format("a scalar of rank {}", rank_), ""});
    simulated::submit(gpu_.stream(), [target, value] { *target.data_ptr<double>() = value; },
                      {.reads = {}, .writes = {simulated::bytes_of(target)}});
  }

  void finish(const at::Tensor& read) override {
    PERIGEE_CUDA(cudaStreamSynchronize, gpu_.stream());
    simulated::host_accesses({.reads = {simulated::bytes_of(read)}, .writes = {}});
  }

 private:
  CudaDevice& gpu_;
  int64_t rank_;
  exec::Recorder* recorder_;
  std::map<std::pair<const Instruction*, std::byte* const*>, Accesses> known_;
  const Accesses* accesses_ = nullptr;  // of the running instruction
  std::string failure_;                 // of the first op that threw
};

}  // namespace

std::shared_ptr<exec::Device> program_device(CudaDevice& gpu, int64_t rank,
                                             exec::Recorder* recorder) {
  return std::make_shared<ProgramDevice>(gpu, rank, recorder);
}

}  // namespace perigee::cuda
