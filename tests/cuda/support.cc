#include "tests/cuda/support.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>

#include "exec/kernels/kernels.h"
#include "exec/reference/ops.h"
#include "exec/tensor.h"

namespace perigee::exec {

namespace {

Op op_for(const std::string& name, const Named& tensors, const Args& args, const Types& types) {
  Op op{.name = name, .args = {}, .outputs = {types.begin(), types.end()}};
  int32_t next = 0;
  // Tensors named "gradients*" form the list "gradients".
  std::map<std::string, std::vector<graph::ValueId>> lists;
  for (const auto& [key, tensor] : tensors) {
    if (key.ends_with('*')) {
      lists[key.substr(0, key.size() - 1)].push_back({next++});
    } else {
      op.args.emplace_back(key, graph::ValueId{next++});
    }
  }
  for (const auto& [key, list] : lists) op.args.emplace_back(key, list);
  op.args.insert(op.args.end(), args.begin(), args.end());
  return op;
}

class HostDevice : public Device {
 public:
  HostDevice(std::string kind, std::function<Kernel(const Op&)> kernel_of,
             std::function<void()> settle)
      : kind_(std::move(kind)), kernel_of_(std::move(kernel_of)), settle_(std::move(settle)) {}

  at::Device place() const override { return at::kCPU; }
  Kernel kernel(const Op& op) override { return kernel_of_(op); }
  std::shared_ptr<std::byte> allocate(int64_t, bool) override { return nullptr; }
  std::shared_ptr<std::byte> allocate_host(int64_t) override { return nullptr; }
  std::shared_ptr<Work> copy(const at::Tensor&, const at::Tensor&, bool) override {
    return nullptr;
  }
  std::string kind() const override { return kind_; }
  bool plans_memory() const override { return false; }
  std::optional<compile::OpTrace> dry_run(const compile::OpInstance&) override { return {}; }
  void reset_peak() override {}
  int64_t peak() const override { return 0; }
  std::shared_ptr<void> enter() override { return nullptr; }
  void upload(const at::Tensor& target, const at::Tensor& source) override { target.copy_(source); }
  void synchronize(const std::function<void()>&) override { settle_(); }
  int64_t mark() override { return 0; }
  int64_t time(int64_t mark) override { return mark; }

 private:
  std::string kind_;
  std::function<Kernel(const Op&)> kernel_of_;
  std::function<void()> settle_;
};

}  // namespace

std::shared_ptr<Device> host_device(std::string kind, std::function<Kernel(const Op&)> kernel_of,
                                    std::function<void()> settle) {
  return std::make_shared<HostDevice>(std::move(kind), std::move(kernel_of), std::move(settle));
}

std::shared_ptr<Device> reference_device() {
  return host_device("reference", [](const Op& op) {
    auto kernel = reference_op(op);
    return kernel ? kernel : cpu_kernel(op);
  });
}

namespace {

// Returns a copy whose memory begins at the same byte of 16: kernels read aligned tensors in packs.
at::Tensor copy_at_offset(const at::Tensor& tensor, const at::Device& place) {
  const auto element = static_cast<int64_t>(tensor.element_size());
  if (tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense()) {
    return tensor.to(place, /*non_blocking=*/false, /*copy=*/true);
  }
  const auto bytes = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16;
  const auto before = static_cast<int64_t>(bytes) / element;
  const auto buffer = at::empty({before + tensor.numel()}, tensor.options().device(place));
  return buffer.as_strided(tensor.sizes(), tensor.strides(), before).copy_(tensor);
}

}  // namespace

std::vector<at::Tensor> run_on(Device& device, const std::string& name, const Named& tensors,
                               const Args& args, const Types& types, const Draw& draw) {
  const auto kernel = device.kernel(op_for(name, tensors, args, types));
  std::vector<at::Tensor> operands, results(types.size());
  {
    const auto entered = device.enter();
    for (const auto& [key, tensor] : tensors) {
      operands.push_back(copy_at_offset(tensor, device.place()));
    }
    kernel(operands, results, draw);
    device.synchronize({});
  }
  results.insert(results.end(), operands.begin(), operands.end());
  for (auto& result : results) result = result.cpu();
  return results;
}

namespace {

// Returns the operands and options as text: "self bfloat16[2, 3], causal true, p 0.2".
std::string case_of(const Named& tensors, const Args& args) {
  std::vector<std::string> texts;
  for (const auto& [key, t] : tensors) {
    texts.push_back(fmt::format("{} {}", key, to_string(type_of(t))));
  }
  for (const auto& [key, arg] : args) {
    std::visit(
        [&](const auto& value) {
          if constexpr (fmt::is_formattable<std::decay_t<decltype(value)>>::value) {
            texts.push_back(fmt::format("{} {}", key, value));
          }
        },
        arg);
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Returns "0.25 at element 7, where 1.5 is expected; the largest is 3", of the element that is the
// farthest beyond the tolerance.
std::string difference(const at::Tensor& given, const at::Tensor& expected, double tolerance) {
  const auto a = given.to(at::kDouble).flatten(), b = expected.to(at::kDouble).flatten();
  if (a.numel() == 0) return "no element";
  const auto beyond = (a - b).abs() - tolerance * b.abs();
  const auto worst = at::where(a.isnan().logical_xor(b.isnan()), INFINITY, beyond.nan_to_num(0.0))
                         .argmax()
                         .item<int64_t>();
  return fmt::format("{} at element {}, where {} is expected; the largest is {}",
                     a[worst].item<double>(), worst, b[worst].item<double>(),
                     b.abs().nan_to_num(0.0).max().item<double>());
}

}  // namespace

void same_everywhere(const std::string& name, const Named& tensors, const Args& args,
                     const Types& types, double tolerance, const Draw& draw) {
  const auto expected = run_on(*reference_device(), name, tensors, args, types, draw);
  for (const auto& [called, device] : devices()) {
    const auto results = run_on(*device, name, tensors, args, types, draw);
    for (size_t i = 0; i < results.size(); ++i) {
      INFO(name << " on " << called << ", tensor " << i << " of " << case_of(tensors, args));
      REQUIRE(results[i].scalar_type() == expected[i].scalar_type());
      REQUIRE(results[i].sizes() == expected[i].sizes());
      const bool same = at::allclose(results[i].to(at::kDouble), expected[i].to(at::kDouble),
                                     tolerance, tolerance, /*equal_nan=*/true);
      INFO((same ? "" : difference(results[i], expected[i], tolerance))
           << ", tolerance " << tolerance);
      REQUIRE(same);
    }
  }
}

void seed(uint64_t value) {
  devices();
  at::manual_seed(value);
}

}  // namespace perigee::exec
