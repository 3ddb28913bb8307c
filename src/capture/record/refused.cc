// Ops that LibTorch does not tag, but that depend on values or have no meaning in a graph.
#include <algorithm>
#include <array>

#include "capture/record/op.h"

namespace perigee::tracing {
namespace {

struct Entry {
  std::string_view name;
  const char* why;
};

constexpr const char* lengths = "it reads lengths from a tensor, so its work depends on values";
constexpr const char* sparse = "a graph has no sparse tensors";

constexpr std::array entries = {
    Entry{"aten::_ctc_loss", lengths},
    Entry{"aten::_ctc_loss.Tensor", lengths},
    Entry{"aten::_pack_padded_sequence", lengths},
    Entry{"aten::segment_reduce", lengths},
    Entry{"aten::repeat_interleave.Tensor", lengths},
    Entry{"aten::_to_sparse", sparse},
    Entry{"aten::_to_sparse.sparse_dim", sparse},
    Entry{"aten::_sparse_coo_tensor_with_dims_and_tensors", sparse},
    Entry{"aten::embedding_renorm",
          "it rescales the rows in use, which depend on values "
          "(max_norm of Embedding)"},
    Entry{"aten::randperm", "a random permutation couples all elements"},
    Entry{"aten::as_strided_scatter", "it writes through strides that are no chain of views"},
};

}  // namespace

const char* find_refusal(const std::string& name) {
  const auto* found = std::ranges::find(entries, std::string_view(name), &Entry::name);
  return found == entries.end() ? nullptr : found->why;
}

}  // namespace perigee::tracing
