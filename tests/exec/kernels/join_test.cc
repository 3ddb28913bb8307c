// Tensors that are joined along a dim.
#include "exec/kernels/kernels.h"
#include "exec/op_threads.h"
#include "exec/tensor.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

// Calls aten::cat or aten::stack as an instruction of a program does.
at::Tensor join(const std::string& name, const std::vector<at::Tensor>& parts, int64_t dim,
                const at::Tensor& like) {
  Op op{.name = name};
  std::vector<graph::ValueId> values;
  for (size_t i = 0; i < parts.size(); ++i) values.push_back({static_cast<int32_t>(i)});
  op.args = {{"tensors", values}, {"dim", dim}};
  op.outputs = {type_of(like)};
  std::vector<at::Tensor> out(1);
  cpu_kernel(op)(parts, out, {});
  return out[0];
}

TEST_CASE("tensors are joined along any dim on any number of threads") {
  torch::manual_seed(5);
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kLong, at::kBool);
  const int64_t width = GENERATE(1, 7, 600);
  const int threads = GENERATE(1, 3);
  const OpThreads given(threads);
  const auto part = [&](at::IntArrayRef sizes) { return at::randint(0, 90, sizes).to(type); };
  for (const int64_t dim : {0, 1, 2, -1}) {
    std::vector<at::Tensor> parts;
    for (const int64_t size : {5, 0, 31}) {
      std::vector<int64_t> sizes = {9, 11, width};
      sizes[static_cast<size_t>(dim < 0 ? 2 : dim)] = size;
      parts.push_back(part(sizes));
    }
    const auto wanted = at::cat(parts, dim);
    const auto made = join("aten::cat", parts, dim, wanted);
    CHECK(made.is_contiguous());
    CHECK(at::equal(made, wanted));
    // The operands of a stack have one dim less than its result.
    const std::vector<at::Tensor> alike = {part({9, 31, width}), part({9, 31, width}),
                                           part({9, 31, width})};
    const auto stacked = at::stack(alike, dim);
    CHECK(at::equal(join("aten::stack", alike, dim, stacked), stacked));
  }
  const auto strided = part({width, 4, 6}).transpose(0, 2);
  const auto dense = part({6, 4, width});
  const auto both = at::cat({strided, dense}, 1);
  CHECK(at::equal(join("aten::cat", {strided, dense}, 1, both), both));
  const auto nothing = part({2, 0});
  CHECK(join("aten::cat", {nothing, nothing}, 0, part({4, 0})).sizes() == at::IntArrayRef{4, 0});
}

}  // namespace
}  // namespace perigee::exec
