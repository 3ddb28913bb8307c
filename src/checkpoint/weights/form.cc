#include "checkpoint/weights/form.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace perigee::checkpoint {
namespace {

using hf::Form;

at::Tensor narrowed(at::Tensor view, const std::vector<mesh::Range>& ranges, size_t first) {
  for (size_t d = first; d < ranges.size(); ++d) {
    view = view.narrow(static_cast<int64_t>(d), ranges[d].begin, ranges[d].length);
  }
  return view;
}

bool is_transposed(Form form) {
  return form == Form::transposed || form == Form::heads_transposed ||
         form == Form::experts_transposed;
}

bool is_by_heads(Form form) { return form == Form::heads || form == Form::heads_transposed; }

}  // namespace

at::Tensor part_in_model(const at::Tensor& stored, Form form, int64_t heads,
                         const std::vector<mesh::Range>& ranges) {
  auto view = is_transposed(form) ? stored.t() : stored;
  if (!is_by_heads(form)) return narrowed(view, ranges, 0);
  // [3, h, d, *] -> [h, 3, d, *], of the heads that the rows touch.
  const int64_t rows = view.size(0) / heads;
  const int64_t begin = ranges[0].begin, end = begin + ranges[0].length;
  const int64_t first = begin / rows, last = (end + rows - 1) / rows;
  view = narrowed(view, ranges, 1);
  auto by_head = view.unflatten(0, {3, heads, rows / 3}).transpose(0, 1);
  by_head = by_head.narrow(0, first, std::max<int64_t>(0, last - first)).flatten(0, 2);
  return by_head.narrow(0, begin - first * rows, end - begin);
}

at::Tensor as_stored(const at::Tensor& whole, Form form, int64_t heads) {
  auto view = whole;
  if (is_by_heads(form)) {
    view = view.unflatten(0, {heads, 3, view.size(0) / heads / 3}).transpose(0, 1).flatten(0, 2);
  }
  return (is_transposed(form) ? view.t() : view).contiguous();
}

std::vector<int64_t> shape_in_model(std::vector<int64_t> stored, Form form) {
  if (is_transposed(form)) std::ranges::reverse(stored);
  return stored;
}

}  // namespace perigee::checkpoint
