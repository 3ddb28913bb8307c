#include "exec/ops/expert_ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "base/fail.h"
#include "capture/composites/experts.h"
#include "exec/kernels/gemm.h"
#include "exec/tensor.h"

namespace perigee::exec {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;
using Shape = std::vector<int64_t>;

const int64_t* integers(const Tensor& t) { return t.const_data_ptr<int64_t>(); }

// Rows of a tensor [*, w] with any strides, except that a row is contiguous.
class Rows {
 public:
  explicit Rows(const Tensor& t)
      : tensor_(t.stride(-1) == 1 || t.size(-1) == 1 ? t : t.contiguous()) {
    bytes_ = tensor_.size(-1) * static_cast<int64_t>(tensor_.element_size());
  }
  int64_t bytes() const { return bytes_; }
  // Returns the row at an index into the leading dims, row-major.
  const char* at(int64_t index) const {
    int64_t offset = 0;
    for (int64_t d = tensor_.dim() - 2; d >= 0; --d) {
      offset += index % tensor_.size(d) * tensor_.stride(d);
      index /= tensor_.size(d);
    }
    return static_cast<const char*>(tensor_.const_data_ptr()) +
           offset * static_cast<int64_t>(tensor_.element_size());
  }

 private:
  Tensor tensor_;
  int64_t bytes_ = 0;
};

char* data(const Tensor& t) { return static_cast<char*>(t.mutable_data_ptr()); }

// ---- slots

// Calls f(group, row of the group, expert) for each choice of [g, t, k], in order.
template <class F>
void each_choice(const Tensor& expert, int64_t experts, F f) {
  const int64_t groups = expert.size(0), rows = expert.size(1) * expert.size(2);
  const auto* chosen = integers(expert);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < rows; ++r) {
      const auto e = chosen[g * rows + r];
      if (e < 0 || e >= experts) {
        fail_run("exec", "experts are 0 to {}, but a token chose {}", experts - 1, e);
      }
      f(g, r, e);
    }
  }
}

void count(const Tensor& expert, int64_t experts, int64_t* counts) {
  std::fill_n(counts, expert.size(0) * experts, 0);
  each_choice(expert, experts, [&](int64_t g, int64_t, int64_t e) { ++counts[g * experts + e]; });
}

Kernel expert_counts(const Arguments& a) {
  return [expert = a.operand("expert"), shape = a.type().shape](Operands in, Results out,
                                                                const Draw&) {
    const auto& chosen = in[expert];
    if (!chosen.is_cpu()) {
      out[0] = at::one_hot(chosen.reshape({chosen.size(0), -1}), shape[2]).sum(1, true).view(shape);
      return;
    }
    out[0] = at::empty(shape, chosen.options());
    count(chosen.contiguous(), shape[2], out[0].mutable_data_ptr<int64_t>());
  };
}

struct Slots {
  int expert, before;
  int64_t experts, places, index;
  bool dropless;

  explicit Slots(const Arguments& a)
      : expert(a.operand("expert")),
        before(a.optional_operand("before")),
        experts(a.integer("experts")),
        places(a.integer("places")),
        index(a.integer("index", 0)),
        dropless(a.flag("dropless", false)) {}

  [[noreturn]] void overflow(int64_t e, int64_t asked) const {
    fail_run("exec",
             "no token may be left out (dropless), but expert {} gets {} or more of a group and "
             "has {} slots: raise model.capacity, or set it to 0 for a slot for every token",
             e, asked, places);
  }

  void on_cpu(const Tensor& chosen, const Tensor& all, Tensor& slot, Tensor& counts) const {
    const int64_t groups = chosen.size(0), rows = chosen.size(1) * chosen.size(2);
    slot = at::empty(chosen.sizes(), chosen.options());
    counts = at::empty({groups, experts}, chosen.options());
    auto* next = counts.mutable_data_ptr<int64_t>();
    std::fill_n(next, groups * experts, 0);
    const auto add_ranks = [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const auto* of_rank = integers(all) + i * groups * experts;
        for (int64_t k = 0; k < groups * experts; ++k) next[k] += of_rank[k];
      }
    };
    if (all.defined()) add_ranks(0, index);
    auto* to = slot.mutable_data_ptr<int64_t>();
    each_choice(chosen, experts, [&](int64_t g, int64_t r, int64_t e) {
      const auto place = next[g * experts + e]++;
      if (dropless && place >= places) overflow(e, place + 1);
      to[g * rows + r] = place < places ? e * places + place : -1;
    });
    if (all.defined()) add_ranks(index + 1, all.size(0));
    for (int64_t k = 0; k < groups * experts; ++k) next[k] = std::min(next[k], places);
  }

  // Returns whether slots and counts are computed through the host: other ranks' counts shift the
  // queues, or an overflow is an error.
  bool by_host() const { return before >= 0 || dropless; }

  void on_device(const Tensor& chosen, const Tensor& all, Tensor& slot, Tensor& counts) const {
    if (!by_host()) {
      std::tie(slot, counts) = experts::plain::slots(chosen, experts, places);
      return;
    }
    on_cpu(chosen.cpu().contiguous(), all.defined() ? all.cpu().contiguous() : all, slot, counts);
    slot = slot.to(chosen.device());
    counts = counts.to(chosen.device());
  }
};

Kernel expert_slots(const Arguments& a) {
  return [slots = Slots(a)](Operands in, Results out, const Draw&) {
    const auto& chosen = in[slots.expert];
    const auto all = slots.before < 0 ? Tensor() : in[slots.before];
    Tensor slot, counts;
    if (chosen.is_cpu()) {
      slots.on_cpu(chosen.contiguous(), all.defined() ? all.contiguous() : all, slot, counts);
    } else {
      slots.on_device(chosen, all, slot, counts);
    }
    out[0] = slot;
    if (out.size() > 1) out[1] = counts;
  };
}

// ---- rows to slots and back

// Returns the row of a queue [experts, groups, places] that a slot of group g refers to, or -1.
struct Place {
  int64_t experts, groups, places, first;
  int64_t operator()(int64_t slot, int64_t g) const {
    if (slot < 0) return -1;
    const auto e = slot / places - first;
    return e < 0 || e >= experts ? -1 : (e * groups + g) * places + slot % places;
  }
};

Kernel dispatch(const Arguments& a) {
  return [source = a.operand("source"), slot = a.operand("slot"), first = a.integer("first", 0),
          shape = a.type().shape](Operands in, Results out, const Draw&) {
    if (!in[source].is_cpu()) {
      out[0] = experts::plain::dispatch(in[source], in[slot], shape[0], shape[2], first);
      return;
    }
    const Rows rows(in[source]);
    const auto slots = in[slot].contiguous();
    const Place place{shape[0], shape[1], shape[2], first};
    out[0] = at::zeros(shape, in[source].options());
    char* to = data(out[0]);
    const auto per_group = slots.size(1) * slots.size(2);
    for (int64_t r = 0; r < slots.numel(); ++r) {
      const auto row = place(integers(slots)[r], r / per_group);
      if (row >= 0) std::memcpy(to + row * rows.bytes(), rows.at(r), rows.bytes());
    }
  };
}

Kernel combine(const Arguments& a) {
  return [queue = a.operand("queue"), slot = a.operand("slot"), first = a.integer("first", 0),
          shape = a.type().shape](Operands in, Results out, const Draw&) {
    if (!in[queue].is_cpu()) {
      out[0] = experts::plain::combine(in[queue], in[slot], first);
      return;
    }
    const auto& from = in[queue];
    const Rows rows(from);
    const auto slots = in[slot].contiguous();
    const Place place{from.size(0), from.size(1), from.size(2), first};
    out[0] = at::empty(shape, from.options());
    char* to = data(out[0]);
    const auto per_group = slots.size(1) * slots.size(2);
    for (int64_t r = 0; r < slots.numel(); ++r, to += rows.bytes()) {
      const auto row = place(integers(slots)[r], r / per_group);
      if (row >= 0) {
        std::memcpy(to, rows.at(row), rows.bytes());
      } else {
        std::memset(to, 0, rows.bytes());
      }
    }
  };
}

// ---- products

bool has_gemm(const Tensor& t) {
  return t.is_cpu() && (t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble);
}

template <class F>
void dispatch_gemm(const Tensor& t, F f) {
  if (t.scalar_type() == at::kFloat) {
    f.template operator()<float>();
  } else {
    f.template operator()<double>();
  }
}

// [e, g, c, w] in rows.
template <class T>
kernels::Matrix<const T> block(const Tensor& t, int64_t e, int64_t g) {
  return {t.const_data_ptr<T>() + e * t.stride(0) + g * t.stride(1), t.stride(2)};
}

// Returns whether the matrices of a batch are stored by columns (transposed).
bool by_columns(const Tensor& t) { return t.stride(2) != 1 && t.stride(1) == 1; }

Kernel grouped_mm(const Arguments& a) {
  return [self = a.operand("self"), weight = a.operand("mat2"), taken = a.operand("counts"),
          shape = a.type().shape](Operands in, Results out, const Draw&) {
    if (!has_gemm(in[self])) {
      out[0] = experts::plain::grouped_mm(in[self], in[weight], in[taken]);
      return;
    }
    const auto x = in[self].contiguous(), counts = in[taken].contiguous();
    const bool columns = by_columns(in[weight]);
    const auto w = columns || in[weight].stride(2) == 1 ? in[weight] : in[weight].contiguous();
    const auto [experts, groups, places, width] = std::array{shape[0], shape[1], shape[2],
                                                             shape[3]};
    const auto inner = x.size(3);
    out[0] = at::empty(shape, x.options());
    dispatch_gemm(x, [&]<class T>() {
      T* to = out[0].mutable_data_ptr<T>();
      for (int64_t e = 0; e < experts; ++e) {
        const kernels::Matrix<const T> matrix{
            w.const_data_ptr<T>() + e * w.stride(0),
            columns ? std::max(w.stride(2), inner) : std::max(w.stride(1), width)};
        for (int64_t g = 0; g < groups; ++g, to += places * width) {
          const auto rows = integers(counts)[g * experts + e];
          if (rows > 0) {
            kernels::multiply<T>({rows, width, inner}, 1, block<T>(x, e, g), false, matrix, columns,
                                 0, {to, width});
          }
          std::fill(to + rows * width, to + places * width, T(0));
        }
      }
    });
  };
}

Kernel grouped_outer(const Arguments& a) {
  return [self = a.operand("self"), grad = a.operand("grad"), taken = a.operand("counts"),
          shape = a.type().shape](Operands in, Results out, const Draw&) {
    if (!has_gemm(in[self])) {
      out[0] = experts::plain::grouped_outer(in[self], in[grad], in[taken]);
      return;
    }
    const auto x = in[self].contiguous(), d = in[grad].contiguous(),
               counts = in[taken].contiguous();
    const int64_t experts = shape[0], groups = x.size(1), inner = shape[1], width = shape[2];
    out[0] = at::zeros(shape, x.options());
    dispatch_gemm(x, [&]<class T>() {
      T* to = out[0].mutable_data_ptr<T>();
      for (int64_t e = 0; e < experts; ++e, to += inner * width) {
        for (int64_t g = 0; g < groups; ++g) {
          const auto rows = integers(counts)[g * experts + e];
          if (rows == 0) continue;
          kernels::multiply<T>({inner, width, rows}, 1, block<T>(x, e, g), true, block<T>(d, e, g),
                               false, 1, {to, width});
        }
      }
    });
  };
}

// ---- exchange

Kernel route(const Arguments& a) {
  struct Route {
    int slot;
    int64_t places, held, group, groups;
    Shape owners;
  };
  const Route route{a.operand("slot"),     a.integer("places"), a.integer("held"),
                    a.integer("group", 0), a.integer("groups"), a.integers("owners")};
  return [route](Operands in, Results out, const Draw&) {
    const auto& given = in[route.slot];
    const auto slots = given.cpu().contiguous();
    const auto rows = slots.numel(), per_group = slots.size(1) * slots.size(2);
    const auto ranks = std::ssize(route.owners);
    for (size_t r = 0; r < 3; ++r) {
      out[r] = at::zeros({r < 2 ? rows : ranks}, slots.options());
    }
    auto* order = out[0].mutable_data_ptr<int64_t>();
    auto* target = out[1].mutable_data_ptr<int64_t>();
    auto* counts = out[2].mutable_data_ptr<int64_t>();
    int64_t next = 0;
    for (int64_t owner = 0; owner < ranks; ++owner) {
      const Place place{route.held, route.groups, route.places, route.owners[owner]};
      for (int64_t r = 0; r < rows; ++r) {
        const auto row = place(integers(slots)[r], route.group + r / per_group);
        if (row < 0) continue;
        order[next] = r;
        target[next++] = row;
        ++counts[owner];
      }
    }
    if (given.is_cpu()) return;
    for (size_t r = 0; r < 3; ++r) out[r] = out[r].to(given.device());
  };
}

// The rows of an exchange on one rank: those that it sends, or (`back`) those that it receives.
struct ExchangedRows {
  int index, counts;
  int64_t position;
  bool back;

  explicit ExchangedRows(const Arguments& a)
      : index(a.operand("index")),
        counts(a.operand("counts")),
        position(a.integer("position")),
        back(a.flag("back", false)) {}

  int64_t rows(Operands in) const {
    const auto matrix = in[counts].cpu().contiguous();
    const auto ranks = matrix.size(0);
    int64_t sum = 0;
    for (int64_t i = 0; i < ranks; ++i) {
      sum += integers(matrix)[back ? i * ranks + position : position * ranks + i];
    }
    return sum;
  }
};

Kernel take_rows(const Arguments& a) {
  return [self = a.operand("self"), share = ExchangedRows(a), shape = a.type().shape](
             Operands in, Results out, const Draw&) {
    const auto& from = in[self];
    out[0] = at::empty(shape, from.options());
    const auto rows = share.rows(in);
    if (!from.is_cpu()) {
      const auto index = in[share.index].narrow(0, 0, rows);
      out[0].narrow(0, 0, rows).copy_(from.reshape({-1, shape[1]}).index_select(0, index));
      return;
    }
    const Rows given(from);
    char* to = data(out[0]);
    for (int64_t r = 0; r < rows; ++r, to += given.bytes()) {
      std::memcpy(to, given.at(integers(in[share.index])[r]), given.bytes());
    }
  };
}

Kernel put_rows(const Arguments& a) {
  return [given = a.operand("rows"), share = ExchangedRows(a), shape = a.type().shape](
             Operands in, Results out, const Draw&) {
    const auto& from = in[given];
    out[0] = at::zeros(shape, from.options());
    const auto rows = share.rows(in);
    if (!from.is_cpu()) {
      out[0]
          .view({-1, shape.back()})
          .index_copy_(0, in[share.index].narrow(0, 0, rows), from.narrow(0, 0, rows));
      return;
    }
    const Rows source(from);
    char* to = data(out[0]);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(to + integers(in[share.index])[r] * source.bytes(), source.at(r), source.bytes());
    }
  };
}

using Maker = Kernel (*)(const Arguments&);
struct ExpertOp {
  Maker make;
  // Whether the kernel on a GPU reads values on the host.
  bool (*reads_on_host)(const Arguments&) = [](const Arguments&) { return false; };
};

bool reads_always(const Arguments&) { return true; }

const std::map<std::string_view, ExpertOp> kOps = {
    {"perigee::combine", {combine}},
    {"perigee::dispatch", {dispatch}},
    {"perigee::expert_counts", {expert_counts}},
    {"perigee::expert_slots",
     {expert_slots, [](const Arguments& a) { return Slots(a).by_host(); }}},
    {"perigee::grouped_mm", {grouped_mm}},
    {"perigee::grouped_outer", {grouped_outer}},
    {"perigee::put_rows", {put_rows, reads_always}},
    {"perigee::route", {route, reads_always}},
    {"perigee::take_rows", {take_rows, reads_always}},
};

}  // namespace

Kernel expert_op(const Op& op) {
  const auto found = kOps.find(op.name);
  return found == kOps.end() ? Kernel() : found->second.make(Arguments(op));
}

bool expert_op_reads_on_host(const Op& op) {
  const auto found = kOps.find(op.name);
  return found != kOps.end() && found->second.reads_on_host(Arguments(op));
}

}  // namespace perigee::exec
