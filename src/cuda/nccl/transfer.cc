#include "cuda/nccl/transfer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace perigee::cuda {
namespace {

using Kind = exec::Collective::Kind;
using at::Tensor;
using mesh::Reduce;

c10d::ReduceOp reduce_op(Reduce reduce) {
  switch (reduce) {
    case Reduce::max:
      return c10d::ReduceOp::MAX;
    case Reduce::min:
      return c10d::ReduceOp::MIN;
    case Reduce::average:
      return c10d::ReduceOp::AVG;
    default:
      return c10d::ReduceOp::SUM;
  }
}

// Reduces the contributions of all ranks, consecutive in `all`, in a fixed order.
void reduce_to(const Tensor& all, int64_t ranks, Reduce reduce, Tensor& out) {
  const auto rows = all.view({ranks, out.numel()});
  switch (reduce) {
    case Reduce::max:
      out.copy_(rows.amax(0));
      break;
    case Reduce::min:
      out.copy_(rows.amin(0));
      break;
    case Reduce::average:
      out.copy_(rows.mean(0));
      break;
    default:
      out.copy_(rows.sum(0, false, out.scalar_type()));
  }
}

bool even(const std::vector<int64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t c) { return c == counts.front(); });
}

// Makes the current stream wait for a call that used a stream of NCCL's own; a call on the current
// stream returns no work.
void follow(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}

}  // namespace

void carry_out(c10d::ProcessGroupNCCL& nccl, exec::Transfer& t, int64_t ranks, int64_t index) {
  switch (t.kind) {
    case Kind::all_reduce: {
      if (t.input.data_ptr() != t.output.data_ptr()) t.output.copy_(t.input);
      if (t.output.numel() == 0) return;
      std::vector<Tensor> tensors = {t.output};
      return follow(nccl.allreduce(tensors, {.reduceOp = reduce_op(t.reduce), .asyncOp = false}));
    }
    case Kind::all_gather: {
      const auto most = *std::max_element(t.output_counts.begin(), t.output_counts.end());
      if (most == 0) return;
      if (even(t.output_counts)) {
        return follow(nccl._allgather_base(t.output, t.input, {.asyncOp = false}));
      }
      // Uneven parts are padded to the largest.
      auto mine = at::zeros({most}, t.input.options());
      mine.narrow(0, 0, t.input.numel()).copy_(t.input);
      auto all = at::empty({most * ranks}, t.input.options());
      follow(nccl._allgather_base(all, mine, {.asyncOp = false}));
      int64_t at = 0;
      for (int64_t i = 0; i < ranks; ++i) {
        const auto count = t.output_counts[i];
        t.output.narrow(0, at, count).copy_(all.narrow(0, i * most, count));
        at += count;
      }
      return;
    }
    case Kind::reduce_scatter: {
      if (even(t.input_counts)) {
        if (t.output.numel() == 0) return;
        return follow(nccl._reduce_scatter_base(
            t.output, t.input, {.reduceOp = reduce_op(t.reduce), .asyncOp = false}));
      }
      // Every rank receives all contributions to its part.
      const auto count = t.input_counts[index];
      auto all = at::empty({count * ranks}, t.input.options());
      std::vector<int64_t> received(ranks, count);
      follow(nccl.alltoall_base(all, t.input, received, t.input_counts, {.asyncOp = false}));
      if (count > 0) reduce_to(all, ranks, t.reduce, t.output);
      return;
    }
    case Kind::all_to_all:
      return follow(nccl.alltoall_base(t.output, t.input, t.output_counts, t.input_counts,
                                       {.asyncOp = false}));
    case Kind::broadcast: {
      if (t.peer == index && t.input.data_ptr() != t.output.data_ptr()) t.output.copy_(t.input);
      if (t.output.numel() == 0) return;
      std::vector<Tensor> tensors = {t.output};
      return follow(nccl.broadcast(tensors, {.rootRank = t.peer, .asyncOp = false}));
    }
    case Kind::barrier: {
      std::vector<Tensor> tensors = {t.output};
      return follow(nccl.allreduce(tensors, {.asyncOp = false}));
    }
    case Kind::send:
    case Kind::receive:
      return;
  }
}

}  // namespace perigee::cuda
