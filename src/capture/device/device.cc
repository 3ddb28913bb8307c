#include "capture/device/device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <mutex>

#include "capture/device/tensor.h"

namespace perigee::tracing {
namespace {

// The device is always available. LibTorch asks the registered accelerator for pinned memory, so in
// a process that captures this is ordinary memory.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetDefaultCPUAllocator();
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return capture_device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

struct NoMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t) override { return {nullptr, capture_device}; }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

bool runs_on_meta(const c10::OperatorHandle& op) {
  using Key = c10::DispatchKey;
  return op.hasKernelForDispatchKey(Key::Meta) ||
         op.hasKernelForDispatchKey(Key::CompositeImplicitAutograd) ||
         op.hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional);
}

// Functionalisation first runs a mutating op on the meta device. An op that writes to its first
// operand, or to `out`, keeps that operand's shape.
void write_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto self = torch::jit::peek(*stack, 0, arguments.size());
  const auto last = stack->back();
  const bool by_out = arguments.back().is_out();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !by_out || (self.isTensor() && last.isTensor() && self.toTensor().is_same(last.toTensor())),
      op.operator_name(), " has no fake impl or Meta kernel");
  torch::jit::drop(*stack, arguments.size());
  stack->push_back(self);
}

// A catch-all is not enough: ops with a composite kernel for every back end would run it.
void register_kernels(torch::Library& library, torch::Library& meta) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      continue;
    }
    auto local = name.name.substr(6);
    if (!name.overload_name.empty()) local += "." + name.overload_name;
    library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunction<&record_kernel>());
    if (op->schema().is_mutable() && op->schema().returns().size() == 1 && !runs_on_meta(*op)) {
      meta.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunction<&write_on_meta>());
    }
  }
}

}  // namespace

c10::Allocator* no_memory_allocator() {
  static NoMemory allocator;
  return &allocator;
}

void register_device() {
  static std::once_flag once;
  std::call_once(once, [] {
    static Hooks hooks;
    static Guard guard;
    // Never destroyed: the dispatcher may be gone before them when the process ends.
    constexpr auto kind = torch::Library::IMPL;
    static auto& aten = *new torch::Library(kind, "aten", c10::DispatchKey::PrivateUse1, "", 0);
    static auto& meta = *new torch::Library(kind, "aten", c10::DispatchKey::Meta, "", 0);
    static auto& rest = *new torch::Library(kind, "_", c10::DispatchKey::PrivateUse1, "", 0);
    c10::register_privateuse1_backend("capture");
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kPrivateUse1)].store(&guard);
    c10::SetAllocator(c10::kPrivateUse1, no_memory_allocator());
    register_kernels(aten, meta);
    rest.fallback(torch::CppFunction::makeFromBoxedFunction<&record_kernel>());
  });
}

}  // namespace perigee::tracing
