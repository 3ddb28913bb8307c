#include "compile/draft/layout.h"

#include <algorithm>
#include <numeric>

#include "base/fail.h"

namespace perigee::compile {

namespace {

int64_t wrap(int64_t dim, int64_t rank) { return dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim; }

// The bounds of a slice, clamped as LibTorch does.
std::pair<int64_t, int64_t> slice_bounds(const graph::Node& node, int64_t size) {
  auto bound = [&](const char* name, int64_t otherwise) {
    int64_t value = otherwise;
    if (const auto* arg = node.find(name); arg && std::holds_alternative<int64_t>(*arg)) {
      value = std::get<int64_t>(*arg);
    }
    if (value < 0) value += size;
    return std::clamp<int64_t>(value, 0, size);
  };
  const int64_t start = bound("start", 0);
  return {start, std::max(start, bound("end", size))};
}

}  // namespace

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

bool is_contiguous(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != step) return false;
    step *= shape[d];
  }
  return true;
}

bool is_dense(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if ((shape[a] < 2) != (shape[b] < 2)) return shape[b] < 2;
    return shape[a] >= 2 && strides[a] < strides[b];
  });
  int64_t step = 1;
  for (size_t d : order) {
    if (shape[d] < 2) return true;
    if (strides[d] != step) return false;
    step *= shape[d];
  }
  return true;
}

int64_t extent(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return 0;
    last += (shape[d] - 1) * strides[d];
  }
  return last + 1;
}

std::optional<std::vector<int64_t>> reshape_strides(const std::vector<int64_t>& from,
                                                    const std::vector<int64_t>& strides,
                                                    const std::vector<int64_t>& to) {
  int64_t numel = 1;
  for (int64_t size : from) numel *= size;
  if (numel == 0) return from == to ? strides : contiguous_strides(to);
  std::vector<int64_t> result(to.size());
  if (from.empty()) return std::vector<int64_t>(to.size(), 1);

  auto d = static_cast<int64_t>(to.size()) - 1;
  int64_t chunk_stride = strides.back(), chunk = 1, taken = 1;
  for (auto k = static_cast<int64_t>(from.size()) - 1; k >= 0; --k) {
    chunk *= from[k];
    // A chunk ends where the next dim does not continue this one in memory.
    if (k == 0 || (from[k - 1] != 1 && strides[k - 1] != chunk * chunk_stride)) {
      while (d >= 0 && (taken < chunk || to[d] == 1)) {
        result[d] = taken * chunk_stride;
        taken *= to[d--];
      }
      if (taken != chunk) return std::nullopt;
      if (k > 0) {
        chunk_stride = strides[k - 1];
        chunk = taken = 1;
      }
    }
  }
  if (d != -1) return std::nullopt;
  return result;
}

View view_of_operand(const graph::Node& node, int32_t result, const graph::TensorType& self,
                     const std::vector<int64_t>& strides, const graph::TensorType& type) {
  const auto rank = static_cast<int64_t>(self.shape.size());
  auto dim = [&](const char* name, int64_t otherwise) {
    return wrap(node.get<int64_t>(name, otherwise), rank);
  };
  View view{strides, 0};
  const std::string& op = node.op;
  if (op == "aten::alias" || op == "aten::detach" || op == "aten::lift_fresh" ||
      op == "perigee::step_average") {
    return view;
  }
  if (op == "aten::t") {
    if (rank == 2) std::swap(view.strides[0], view.strides[1]);
    return view;
  }
  if (op == "aten::transpose.int" || op == "aten::swapaxes") {
    if (rank > 0) std::swap(view.strides[dim("dim0", 0)], view.strides[dim("dim1", 0)]);
    return view;
  }
  if (op == "aten::permute") {
    const auto dims = node.get<std::vector<int64_t>>("dims", {});
    for (size_t k = 0; k < dims.size(); ++k) view.strides[k] = strides[wrap(dims[k], rank)];
    return view;
  }
  if (op == "aten::unsqueeze") {
    const int64_t raw = node.get<int64_t>("dim", 0);
    const int64_t at = raw < 0 ? raw + rank + 1 : raw;
    const int64_t stride = at < rank ? self.shape[at] * strides[at] : 1;
    view.strides.insert(view.strides.begin() + at, stride);
    return view;
  }
  if (op.starts_with("aten::squeeze")) {
    // The result's type decides which size-1 dims are removed, not the op's arguments.
    std::vector<int64_t> wanted;
    if (const auto* arg = node.find("dim")) {
      if (const auto* one = std::get_if<int64_t>(arg)) wanted = {*one};
      if (const auto* many = std::get_if<std::vector<int64_t>>(arg)) wanted = *many;
    }
    for (auto& d : wanted) d = wrap(d, rank);
    view.strides.clear();
    for (int64_t d = 0; d < rank; ++d) {
      const bool named = op == "aten::squeeze" ||
                         std::find(wanted.begin(), wanted.end(), d) != wanted.end();
      if (!(named && self.shape[d] == 1)) view.strides.push_back(strides[d]);
    }
    return view;
  }
  if (op == "aten::expand" || op == "perigee::expand") {
    const size_t added = type.shape.size() - self.shape.size();
    view.strides.assign(type.shape.size(), 0);
    for (size_t d = added; d < type.shape.size(); ++d) {
      const bool repeats = self.shape[d - added] == 1 && type.shape[d] != 1;
      view.strides[d] = repeats ? 0 : strides[d - added];
    }
    return view;
  }
  if (op == "aten::select.int") {
    const int64_t d = dim("dim", 0);
    int64_t index = node.get<int64_t>("index", 0);
    if (index < 0) index += self.shape[d];
    view.offset = index * strides[d];
    view.strides.erase(view.strides.begin() + d);
    return view;
  }
  if (op == "aten::slice.Tensor") {
    const int64_t d = dim("dim", 0);
    const auto [start, end] = slice_bounds(node, self.shape[d]);
    view.offset = type.numel() == 0 ? 0 : start * strides[d];
    view.strides[d] *= node.get<int64_t>("step", 1);
    return view;
  }
  if (op == "aten::narrow") {
    const int64_t d = dim("dim", 0);
    int64_t start = node.get<int64_t>("start", 0);
    if (start < 0) start += self.shape[d];
    view.offset = start * strides[d];
    return view;
  }
  if (op == "aten::unbind.int") {
    const int64_t d = dim("dim", 0);
    view.offset = result * strides[d];
    view.strides.erase(view.strides.begin() + d);
    return view;
  }
  if (op == "aten::split.Tensor" || op == "aten::split_with_sizes" || op == "aten::chunk") {
    const int64_t d = dim("dim", 0);
    int64_t start = 0;
    if (op == "aten::split_with_sizes") {
      const auto sizes = node.get<std::vector<int64_t>>("split_sizes", {});
      start = std::accumulate(sizes.begin(), sizes.begin() + result, int64_t{0});
    } else if (op == "aten::split.Tensor") {
      start = result * node.get<int64_t>("split_size", 1);
    } else {
      const int64_t chunks = node.get<int64_t>("chunks", 1);
      start = result * ((self.shape[d] + chunks - 1) / chunks);
    }
    view.offset = type.numel() == 0 ? 0 : start * strides[d];
    return view;
  }
  if (op == "aten::diagonal") {
    const int64_t a = dim("dim1", 0), b = dim("dim2", 1);
    const int64_t shift = node.get<int64_t>("offset", 0);
    if (type.numel() != 0) view.offset = shift >= 0 ? shift * strides[b] : -shift * strides[a];
    view.strides.clear();
    for (int64_t d = 0; d < rank; ++d) {
      if (d != a && d != b) view.strides.push_back(strides[d]);
    }
    view.strides.push_back(strides[a] + strides[b]);
    return view;
  }
  if (op == "aten::view_as_complex") {
    view.strides.pop_back();
    for (auto& stride : view.strides) stride /= 2;
    return view;
  }
  if (op == "aten::view_as_real" || op == "aten::real" || op == "aten::imag") {
    for (auto& stride : view.strides) stride *= 2;
    if (op == "aten::view_as_real") view.strides.push_back(1);
    if (op == "aten::imag") view.offset = 1;
    return view;
  }
  if (op == "aten::unfold") {
    const int64_t d = dim("dimension", 0);
    view.strides.push_back(rank == 0 ? 1 : strides[d]);
    if (rank > 0) view.strides[d] = strides[d] * node.get<int64_t>("step", 1);
    return view;
  }
  fail("compile",
       "an op that shares its operand's memory needs a layout rule, but {} in scope '{}' has none",
       op, node.scope);
}

std::vector<int64_t> pointwise_strides(const std::vector<int64_t>& shape,
                                       const std::vector<Operand>& operands) {
  const size_t rank = shape.size();
  // Strides of the operands broadcast to the result's dims: missing and size-1 dims have stride 0.
  std::vector<std::vector<int64_t>> seen;
  bool all_contiguous = true, all_equal = true;
  for (const auto& operand : operands) {
    std::vector<int64_t> strides(rank, 0);
    const size_t added = rank - std::min(rank, operand.shape->size());
    for (size_t d = added; d < rank; ++d) {
      const int64_t size = (*operand.shape)[d - added];
      strides[d] = size == 1 && shape[d] != 1 ? 0 : (*operand.strides)[d - added];
    }
    const bool same_shape = *operand.shape == shape;
    all_contiguous = all_contiguous && same_shape && is_contiguous(shape, strides);
    all_equal = all_equal && same_shape && is_dense(shape, strides) &&
                (seen.empty() || seen.front() == strides);
    seen.push_back(std::move(strides));
  }
  if (seen.empty() || all_contiguous) return contiguous_strides(shape);
  if (all_equal) return seen.front();

  // TensorIterator's order: fastest dim first, found by insertion over the operands' strides.
  std::vector<size_t> order(rank);
  for (size_t d = 0; d < rank; ++d) order[d] = rank - 1 - d;
  auto compare = [&](size_t a, size_t b) {
    for (const auto& strides : seen) {
      if (strides[a] == 0 || strides[b] == 0) continue;
      if (strides[a] != strides[b]) return strides[a] < strides[b] ? -1 : 1;
      if (shape[a] > shape[b]) return 1;
    }
    return 0;
  };
  for (size_t i = 1; i < rank; ++i) {
    size_t at = i;
    for (size_t back = i; back-- > 0;) {
      const int c = compare(order[back], order[at]);
      if (c > 0) {
        std::swap(order[back], order[at]);
        at = back;
      } else if (c < 0) {
        break;
      }
    }
  }
  std::vector<int64_t> strides(rank);
  int64_t step = 1;
  for (size_t d : order) {
    strides[d] = step;
    step *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

}  // namespace perigee::compile
