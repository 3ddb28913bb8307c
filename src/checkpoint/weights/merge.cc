#include "checkpoint/weights/merge.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/target.h"
#include "exec/tensor.h"
#include "plan/plan.h"

namespace perigee::checkpoint {

std::optional<graph::Adapters> adapters_of_run(const std::string& run,
                                               const Checkpoint& checkpoint) {
  // A model may have parameters of such names of its own.
  const auto some = std::ranges::find_if(checkpoint.tensors(), [](const StoredTensor& tensor) {
    return tensor.weight && tensor.name.ends_with("lora_A.weight");
  });
  if (some == checkpoint.tensors().end()) return std::nullopt;
  std::string text;
  try {
    text = read_text(inside(run, "plan.json"));
  } catch (const Error& error) {
    fail("export", "the adapters of {} are of the plan of its run, but {} has no plan.json: {}",
         checkpoint.folder(), run, error.what());
  }
  return plan::parse(text, inside(run, "plan.json")).adapters;
}

void require_scale_of_run(const std::optional<graph::Adapters>& adapters,
                          const Checkpoint& checkpoint) {
  if (!adapters) return;
  const auto run = run_of(checkpoint.folder());
  const auto trained = adapters_of_run(run, checkpoint);
  if (!trained || trained->scale() == adapters->scale()) return;
  const auto text = [](const graph::Adapters& a) {
    return fmt::format("alpha = {:g}, rank = {}{}", a.alpha, a.rank, a.rslora ? ", rslora" : "");
  };
  fail("lora",
       "the adapters of {} keep the scale that they were trained with, {:.4g} ({}), but the "
       "strategy "
       "has {:.4g} ({}): set alpha back",
       checkpoint.folder(), trained->scale(), text(*trained), adapters->scale(), text(*adapters));
}

bool is_of_adapter(const std::optional<graph::Adapters>& adapters, std::string_view name) {
  return adapters && std::ranges::any_of(adapters->weights, [&](const std::string& weight) {
           return name == graph::adapter_a(weight) || name == graph::adapter_b(weight);
         });
}

at::Tensor merged(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b,
                  double scale) {
  return weight.to(at::kDouble)
      .addmm(b.to(at::kDouble), a.to(at::kDouble), 1, scale)
      .to(weight.scalar_type());
}

at::Tensor read_whole(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  TensorPart part{tensor.name, tensor.dtype, tensor.shape, {}};
  for (const auto size : part.shape) part.ranges.push_back({0, size});
  const auto whole = at::empty(part.shape, exec::scalar_type(part.dtype));
  checkpoint.read(part, {static_cast<std::byte*>(whole.data_ptr()), whole.nbytes()});
  return whole;
}

at::Tensor read_merged(const Checkpoint& checkpoint, const StoredTensor& tensor,
                       const std::optional<graph::Adapters>& adapters) {
  const auto whole = read_whole(checkpoint, tensor);
  if (!adapters || std::ranges::find(adapters->weights, tensor.name) == adapters->weights.end()) {
    return whole;
  }
  const auto part = [&](const std::string& name) {
    const auto* stored = checkpoint.find(name);
    if (!stored) {
      fail("export", "checkpoint {} must have {} of its plan's adapters, but does not",
           checkpoint.folder(), name);
    }
    return read_whole(checkpoint, *stored);
  };
  return merged(whole, part(graph::adapter_a(tensor.name)), part(graph::adapter_b(tensor.name)),
                adapters->scale());
}

void export_merged(const Checkpoint& checkpoint, const graph::Adapters& adapters,
                   const std::string& file) {
  checkpoint.verify();  // then no tensor is larger than the files, and its memory can be allocated
  std::vector<TensorBytes> weights;
  for (const auto& tensor : checkpoint.tensors()) {
    if (!tensor.weight || is_of_adapter(adapters, tensor.name)) continue;
    weights.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
  }
  at::Tensor held;
  const auto read = [&](size_t i) -> std::span<const std::byte> {
    held = read_merged(checkpoint, *checkpoint.find(weights[i].name), adapters);
    return {static_cast<const std::byte*>(held.data_ptr()), held.nbytes()};
  };
  const Destination to(file);
  write_safetensors(*folder_target(), to.written(), weights, read, {{"format", "pt"}});
  to.rename();
}

}  // namespace perigee::checkpoint
