// The work of attention, by groups of heads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace perigee::exec::kernels {

// Of query [b,h,s,d], key [b,g,t,d], value [b,g,t,e]; h / g heads of queries share keys and values.
struct HeadSizes {
  int64_t batch, heads, groups, queries, keys, size, value_size;
  HeadSizes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)
      : batch(q.size(0)),
        heads(q.size(1)),
        groups(k.size(1)),
        queries(q.size(2)),
        keys(k.size(2)),
        size(q.size(3)),
        value_size(v.size(3)) {}
  int64_t repeats() const { return heads / groups; }
};

// Returns a tensor [b, heads, rows, size] stored as `stored` = [b, rows, heads, size].
inline at::Tensor make_rows(const at::Tensor& like, at::IntArrayRef stored) {
  return at::empty(stored, like.options()).transpose(1, 2);
}

// Runs f(b, group, scratch) for every group of heads, each thread with `each` elements.
template <class T, class F>
void each_group(const HeadSizes& n, int64_t each, const at::Tensor& like, F f) {
  const int64_t work = n.batch * n.groups;
  const int64_t parts = std::min<int64_t>(at::get_num_threads(), work);
  const at::Tensor scratch = at::empty({parts, each},
                                       like.options().dtype(c10::CppTypeToScalarType<T>::value));
  T* data = scratch.mutable_data_ptr<T>();
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      for (int64_t w = work * p / parts; w < work * (p + 1) / parts; ++w) {
        f(w / n.groups, w % n.groups, data + p * each);
      }
    }
  });
}

}  // namespace perigee::exec::kernels
