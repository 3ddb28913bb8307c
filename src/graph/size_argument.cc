#include <algorithm>
#include <array>

#include "graph/ops.h"

namespace perigee::graph {

std::string_view size_argument(std::string_view op) {
  static constexpr std::array<std::string_view, 4> input_sizes = {
      "aten::select_backward", "aten::slice_backward", "aten::diagonal_backward",
      "aten::unfold_backward"};
  if (std::ranges::find(input_sizes, op) != input_sizes.end()) return "input_sizes";
  const bool upsample = op.starts_with("aten::upsample_") || op.starts_with("aten::_upsample_");
  return upsample && op.find("_backward") != op.npos ? "input_size" : "";
}

}  // namespace perigee::graph
