// Joins tensors along a dim on several threads; LibTorch copies contiguous parts on one.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "exec/kernels/kernels.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

constexpr int64_t kGrainBytes = int64_t{1} << 17;  // of a thread, at least

// Rows of the result are made of a row of each part, in their order.
struct Part {
  const std::byte* data;
  int64_t begin, end;  // bytes in a row of the result

  int64_t row() const { return end - begin; }
};

// Returns the parts, of which `dim` is joined or, as the dim of a stack, missing.
std::vector<Part> parts_of(std::span<const Tensor> in, const std::vector<int>& tensors,
                           int64_t dim) {
  std::vector<Part> parts;
  int64_t at = 0;
  for (const int position : tensors) {
    const auto& t = in[position];
    if (t.numel() == 0) continue;
    int64_t row = t.element_size();
    for (int64_t d = dim; d < t.dim(); ++d) row *= t.size(d);
    parts.push_back({static_cast<const std::byte*>(t.const_data_ptr()), at, at + row});
    at += row;
  }
  return parts;
}

// Writes bytes [begin, end) of the result.
void copy_range(const std::vector<Part>& parts, std::byte* to, int64_t begin, int64_t end) {
  const int64_t row = parts.back().end;
  for (int64_t at = begin; at < end;) {
    const int64_t offset = at % row;
    const auto part = std::ranges::upper_bound(parts, offset, {}, &Part::end);
    const int64_t count = std::min(part->end - offset, end - at);
    std::memcpy(to + at, part->data + at / row * part->row() + offset - part->begin,
                static_cast<size_t>(count));
    at += count;
  }
}

bool is_plain(std::span<const Tensor> in, const std::vector<int>& tensors) {
  return std::ranges::all_of(tensors, [&](int position) {
    const auto& t = in[position];
    return t.is_contiguous() && t.scalar_type() == in[tensors[0]].scalar_type() &&
           t.dim() == in[tensors[0]].dim();
  });
}

}  // namespace

Kernel join(const Arguments& a) {
  const auto tensors = a.operands("tensors");
  const auto& shape = a.type().shape;
  int64_t dim = a.integer("dim", 0);
  if (dim < 0) dim += std::ssize(shape);
  if (tensors.empty()) return {};
  return [tensors, shape, dim, library = dispatcher_kernel(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    if (!is_plain(in, tensors)) return library(in, out, draw);
    out[0] = at::empty(shape, in[tensors[0]].options());
    if (out[0].numel() == 0) return;
    const auto parts = parts_of(in, tensors, dim);
    auto* to = static_cast<std::byte*>(out[0].mutable_data_ptr());
    at::parallel_for(0, static_cast<int64_t>(out[0].nbytes()), kGrainBytes,
                     [&](int64_t begin, int64_t end) { copy_range(parts, to, begin, end); });
  };
}

}  // namespace perigee::exec::kernels
