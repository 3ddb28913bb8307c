#include "compile/draft/copy_parts.h"

#include <string>
#include <utility>

#include "compile/draft/layout.h"

namespace perigee::compile {

std::vector<mesh::Range> ranges_of(const std::vector<int64_t>& lengths) {
  std::vector<mesh::Range> ranges;
  int64_t begin = 0;
  for (int64_t length : lengths) {
    ranges.push_back({begin, length});
    begin += length;
  }
  return ranges;
}

void copy_parts(Draft& draft, ValueId whole, int64_t dim, const std::vector<mesh::Range>& parts,
                ValueId flat, bool to_flat, const Instruction& like,
                std::vector<DraftInstruction>& out) {
  const ProgramValue tensor = draft.value(whole);
  const ValueName flat_name = draft.value(flat).name;
  const auto bytes = static_cast<int64_t>(graph::size_of(tensor.type.dtype));
  const int64_t across =  // elements of one index of the dim
      tensor.type.shape[dim] == 0 ? 0 : tensor.type.numel() / tensor.type.shape[dim];
  int64_t copied = 0;  // indices of the dim
  for (size_t first = 0, next; first < parts.size(); first = next) {
    const auto [begin, length] = parts[first];
    const auto distance = [&](size_t k) { return parts[k].begin - parts[k - 1].begin; };
    for (next = first + 1; next < parts.size() && parts[next].length == length &&
                           distance(next) == distance(first + 1);) {
      ++next;
    }
    const auto several = static_cast<int64_t>(next - first);
    if (length * across == 0) continue;
    // [parts, shape with one part's length]
    graph::TensorType type{tensor.type.dtype, tensor.type.shape};
    type.shape[dim] = length;
    auto image = contiguous_strides(type.shape), strides = tensor.strides;
    type.shape.insert(type.shape.begin(), several);
    image.insert(image.begin(), length * across);
    strides.insert(strides.begin(),
                   (several > 1 ? distance(next - 1) : length) * tensor.strides[dim]);
    const ValueId piece = draft.add_view(whole, begin * tensor.strides[dim] * bytes, type, strides,
                                         tensor.name);
    const ValueId packed = draft.add_view(flat, copied * across * bytes, type, image, flat_name);
    const ValueId target = to_flat ? packed : piece, source = to_flat ? piece : packed;
    auto copy = in_place("perigee::copy_", {{"self", target}, {"source", source}}, {target});
    copy.instruction.scope = like.scope;
    copy.instruction.phase = like.phase;
    out.push_back(std::move(copy));
    copied += several * length;
  }
}

}  // namespace perigee::compile
