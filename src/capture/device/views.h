// Strided geometry as a chain of ordinary views.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace perigee::tracing {

// Sizes and strides in elements; the offset counts from the storage's start.
struct Geometry {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;

  static Geometry of(const at::Tensor& tensor);
  int64_t span() const;  // elements from the first to past the last
  bool operator==(const Geometry&) const = default;
};

// Returns the view of `base` (whose memory is described by `from`) that as_strided with `to` would
// give, as views, slices, permutations and expansions; undefined where there is no such chain
// (overlapping windows, elements outside of base).
at::Tensor strided_view(const at::Tensor& base, const Geometry& from, const Geometry& to);

}  // namespace perigee::tracing
