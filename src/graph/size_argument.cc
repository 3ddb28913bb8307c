#include <algorithm>
#include <array>

#include "graph/ops.h"

namespace perigee::graph {

std::string_view size_argument(std::string_view op) {
  static constexpr std::array<std::string_view, 4> input_sizes = {
      "aten::select_backward", "aten::slice_backward", "aten::diagonal_backward",
      "aten::unfold_backward"};
  if (std::ranges::find(input_sizes, op) != input_sizes.end()) return "input_sizes";
  static constexpr std::array<std::string_view, 12> upsample_backward = {
      "aten::upsample_linear1d_backward",         "aten::upsample_bilinear2d_backward",
      "aten::upsample_bicubic2d_backward",        "aten::upsample_trilinear3d_backward",
      "aten::upsample_nearest1d_backward",        "aten::upsample_nearest2d_backward",
      "aten::upsample_nearest3d_backward",        "aten::_upsample_nearest_exact1d_backward",
      "aten::_upsample_nearest_exact2d_backward", "aten::_upsample_nearest_exact3d_backward",
      "aten::_upsample_bilinear2d_aa_backward",   "aten::_upsample_bicubic2d_aa_backward"};
  return std::ranges::find(upsample_backward, op) != upsample_backward.end() ? "input_size" : "";
}

}  // namespace perigee::graph
