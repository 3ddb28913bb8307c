#include "exec/comm/communicator.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/fail.h"
#include "compile/draft/collective.h"
#include "exec/memory/allocator.h"
#include "exec/tensor.h"

namespace perigee::exec {
namespace {

using Kind = Collective::Kind;
using at::Tensor;

struct Done : Work {
  Done() { began = ended = now(); }
  void wait() override {}
};

class LoneGroup : public Group {
 public:
  LoneGroup(const std::string& name, int64_t rank) : Group(name, {rank}, rank) {}

 protected:
  std::shared_ptr<Work> transfer(Transfer) override { return std::make_shared<Done>(); }
};

class LoneCommunicator : public Communicator {
 public:
  int64_t rank() const override { return 0; }
  int64_t world() const override { return 1; }
  std::shared_ptr<Group> group(const std::string& name,
                               const std::vector<int64_t>& ranks) override {
    if (ranks != std::vector<int64_t>{0}) {
      fail("communicator", "a job of one rank has groups of rank 0 only, but \"{}\" has {} ranks",
           name, ranks.size());
    }
    return std::make_shared<LoneGroup>(name, 0);
  }
  void abort(const std::string&) override {}
};

class EchoGroup : public Group {
 public:
  using Group::Group;
  std::shared_ptr<std::byte> one_memory(int64_t bytes) override {
    return counted_frames(allocate_uncounted(bytes), bytes / size(), false);
  }

 protected:
  std::shared_ptr<Work> transfer(Transfer t) override {
    if (t.pack) t.pack();
    const bool gathers = t.kind == Kind::all_gather, scatters = t.kind == Kind::reduce_scatter;
    if (gathers || scatters || t.kind == Kind::all_to_all) {
      int64_t from = 0, to = 0;
      for (int64_t i = 0; i < size(); ++i) {
        const auto sent = gathers ? t.input.numel() : t.input_counts[i];
        const auto brought = scatters ? t.output.numel() : t.output_counts[i];
        if (!scatters || i == index()) {
          const auto count = std::min(sent, brought);
          auto part = t.output.view({-1}).narrow(0, to, brought);
          part.narrow(0, 0, count).copy_(t.input.view({-1}).narrow(0, from, count));
          part.narrow(0, count, brought - count).zero_();
        }
        if (!gathers) from += sent;
        if (!scatters) to += brought;
      }
    } else if (t.input.defined() && t.output.defined() && !t.output.is_alias_of(t.input)) {
      t.output.view({-1}).copy_(t.input.view({-1}));
    }
    if (t.unpack) t.unpack();
    return std::make_shared<Done>();
  }
};

class EchoCommunicator : public Communicator {
 public:
  EchoCommunicator(int64_t rank, int64_t world) : rank_(rank), world_(world) {}
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return world_; }
  std::shared_ptr<Group> group(const std::string& name,
                               const std::vector<int64_t>& ranks) override {
    return std::make_shared<EchoGroup>(name, ranks, rank_);
  }
  void abort(const std::string&) override {}

 private:
  int64_t rank_, world_;
};

// Returns whether the parts of `dim` are consecutive in memory.
bool outermost(const Tensor& t, int64_t dim) {
  return t.is_contiguous() && compile::is_outermost(t.sizes().vec(), dim);
}

// Returns the elements of one index of `dim`.
int64_t slice_elements(const Tensor& t, int64_t dim) {
  int64_t n = 1;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (d != dim) n *= t.size(d);
  }
  return n;
}

std::vector<int64_t> times(std::vector<int64_t> lengths, int64_t factor) {
  for (auto& length : lengths) length *= factor;
  return lengths;
}

// Copies between a tensor whose `dim` is cut into parts and `flat`, the concatenation of the parts,
// each contiguous.
void copy_parts(const Tensor& whole, int64_t dim, const std::vector<int64_t>& lengths,
                const Tensor& flat, bool to_flat) {
  int64_t at = 0, offset = 0;
  for (auto length : lengths) {
    const auto part = whole.narrow(dim, at, length);
    const auto image = flat.narrow(0, offset, part.numel()).view(part.sizes());
    if (to_flat) {
      image.copy_(part);
    } else {
      part.copy_(image);
    }
    at += length;
    offset += part.numel();
  }
}

// Sets `flat` to a view of `whole` where the parts are consecutive in memory; else to a new buffer,
// and `copy` to the packing or unpacking.
void stage(const Tensor& whole, int64_t dim, const std::vector<int64_t>& lengths, bool to_flat,
           Tensor& flat, std::function<void()>& copy) {
  if (outermost(whole, dim)) {
    flat = whole.view({-1});
    return;
  }
  flat = at::empty({whole.numel()}, whole.options());
  copy = [=, buffer = flat] { copy_parts(whole, dim, lengths, buffer, to_flat); };
}

// Sets `flat` and `copy` for a tensor that is not cut, in any layout.
void stage(const Tensor& whole, bool to_flat, Tensor& flat, std::function<void()>& copy) {
  if (whole.dim() == 0) {
    flat = whole.view({1});
  } else {
    stage(whole, 0, {whole.size(0)}, to_flat, flat, copy);
  }
}

[[noreturn]] void misfit(const Group& group, const Collective& c) {
  const auto shape = [](const Tensor& t) {
    return t.defined() ? to_string(type_of(t)) : "nothing";
  };
  fail("communicator",
       "{} over {} ({} ranks) must have an operand and a result that fit, but got {} and {}",
       name_of(c.kind), group.name(), group.size(), shape(c.input), shape(c.output));
}

// Throws Error where the shapes of operand and result do not fit the collective.
void check(const Group& group, const Collective& c) {
  const auto need = [&](bool holds) {
    if (!holds) misfit(group, c);
  };
  const bool in = c.input.defined(), out = c.output.defined();
  const auto n = group.size();
  const auto part_of = [&](const Tensor& part, const Tensor& whole, int64_t dim, int64_t index) {
    need(part.dim() == whole.dim() && dim < whole.dim() && dim >= 0);
    auto shape = whole.sizes().vec();
    shape[dim] = mesh::split(shape[dim], n, index).length;
    need(part.sizes().vec() == shape);
  };
  if (in && out) need(c.input.scalar_type() == c.output.scalar_type());
  switch (c.kind) {
    case Kind::all_reduce:
      return need(in && out && c.input.sizes() == c.output.sizes());
    case Kind::all_gather:
      need(in && out);
      return part_of(c.input, c.output, c.dim, group.index());
    case Kind::reduce_scatter:
      need(in && out);
      return part_of(c.output, c.input, c.dim, group.index());
    case Kind::all_to_all: {
      need(in && out && c.dim != c.other_dim && c.input.dim() == c.output.dim());
      need(std::min(c.dim, c.other_dim) >= 0 && std::max(c.dim, c.other_dim) < c.input.dim());
      auto shape = c.input.sizes().vec();
      shape[c.dim] = mesh::split(shape[c.dim], n, group.index()).length;
      shape[c.other_dim] = c.output.size(c.other_dim);
      need(c.output.sizes().vec() == shape);
      return need(c.input.size(c.other_dim) ==
                  mesh::split(shape[c.other_dim], n, group.index()).length);
    }
    case Kind::broadcast:
      need(out && c.peer >= 0 && c.peer < n && (in || c.peer != group.index()));
      return need(!in || c.input.sizes() == c.output.sizes());
    case Kind::send:
      return need(in && c.peer >= 0 && c.peer < n);
    case Kind::receive:
      return need(out && c.peer >= 0 && c.peer < n);
    case Kind::barrier:
      return;
  }
}

Transfer plan(const Group& group, const Collective& c) {
  Transfer t{.kind = c.kind, .reduce = c.reduce, .peer = c.peer};
  const auto n = group.size();
  switch (c.kind) {
    case Kind::all_gather: {
      const auto lengths = compile::part_lengths(c.output.size(c.dim), n);
      stage(c.input, true, t.input, t.pack);
      stage(c.output, c.dim, lengths, false, t.output, t.unpack);
      t.output_counts = times(lengths, slice_elements(c.output, c.dim));
      break;
    }
    case Kind::reduce_scatter: {
      const auto lengths = compile::part_lengths(c.input.size(c.dim), n);
      stage(c.input, c.dim, lengths, true, t.input, t.pack);
      stage(c.output, false, t.output, t.unpack);
      t.input_counts = times(lengths, slice_elements(c.input, c.dim));
      t.workspace = at::empty({compile::workspace_elements("comm::reduce_scatter", t.input_counts)},
                              c.input.options());
      break;
    }
    case Kind::all_to_all: {
      const auto sent = compile::part_lengths(c.input.size(c.dim), n),
                 received = compile::part_lengths(c.output.size(c.other_dim), n);
      stage(c.input, c.dim, sent, true, t.input, t.pack);
      stage(c.output, c.other_dim, received, false, t.output, t.unpack);
      t.input_counts = times(sent, slice_elements(c.input, c.dim));
      t.output_counts = times(received, slice_elements(c.output, c.other_dim));
      break;
    }
    default:
      if (c.input.defined()) stage(c.input, true, t.input, t.pack);
      if (c.output.defined()) stage(c.output, false, t.output, t.unpack);
  }
  return t;
}

}  // namespace

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::all_gather:
      return "all_gather";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::broadcast:
      return "broadcast";
    case Kind::send:
      return "send";
    case Kind::receive:
      return "receive";
    case Kind::barrier:
      return "barrier";
  }
  return "collective";
}

Group::Group(std::string name, std::vector<int64_t> ranks, int64_t rank)
    : name_(std::move(name)), ranks_(std::move(ranks)) {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end()) {
    fail("communicator", "group \"{}\" must hold rank {}, but does not", name_, rank);
  }
  index_ = found - ranks_.begin();
}

std::shared_ptr<Work> Group::start(const Collective& collective) {
  check(*this, collective);
  if (size() == 1) {
    if (collective.kind == Kind::send || collective.kind == Kind::receive) {
      fail("communicator", "{} over {} needs another rank, but the group has one",
           name_of(collective.kind), name_);
    }
    if (collective.input.defined() && collective.output.defined() &&
        collective.input.data_ptr() != collective.output.data_ptr()) {
      Tensor(collective.output).copy_(collective.input.view_as(collective.output));
    }
    return std::make_shared<Done>();
  }
  return transfer(plan(*this, collective));
}

std::shared_ptr<Work> Group::start_flat(Transfer t) {
  const auto sum = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  const auto need = [&](bool holds) {
    if (holds) return;
    const auto numel = [](const Tensor& tensor) { return tensor.defined() ? tensor.numel() : 0; };
    fail("communicator",
         "{} over {} ({} ranks) must have buffers that fit its counts, but got {} and {} elements "
         "for [{}] and [{}]",
         name_of(t.kind), name(), size(), numel(t.input), numel(t.output),
         fmt::join(t.input_counts, ", "), fmt::join(t.output_counts, ", "));
  };
  const bool scatters = t.kind == Kind::reduce_scatter, gathers = t.kind == Kind::all_gather;
  if (scatters || t.kind == Kind::all_to_all) {
    need(std::ssize(t.input_counts) == size() && t.input.numel() == sum(t.input_counts));
  }
  if (gathers || t.kind == Kind::all_to_all) {
    need(std::ssize(t.output_counts) == size() && t.output.numel() == sum(t.output_counts));
  }
  if (scatters) need(t.output.numel() == t.input_counts[index()]);
  if (gathers) need(t.input.numel() == t.output_counts[index()]);
  if (t.kind == Kind::all_reduce) need(t.input.numel() == t.output.numel());
  // Back ends have no eight-bit floats; collectives that do not reduce move them as bytes.
  if (!scatters && t.kind != Kind::all_reduce) {
    for (auto* tensor : {&t.input, &t.output}) {
      if (tensor->defined() && c10::isFloat8Type(tensor->scalar_type())) {
        *tensor = tensor->view(at::kByte);
      }
    }
  }
  if (size() > 1) return transfer(std::move(t));
  if (t.input.defined() && t.output.defined() && t.input.data_ptr() != t.output.data_ptr()) {
    t.output.copy_(t.input);
  }
  return std::make_shared<Done>();
}

std::unique_ptr<Communicator> echo_communicator(int64_t rank, int64_t world) {
  return std::make_unique<EchoCommunicator>(rank, world);
}

std::unique_ptr<Communicator> single_communicator() { return std::make_unique<LoneCommunicator>(); }

}  // namespace perigee::exec
