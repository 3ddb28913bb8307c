#include "tests/checkpoint/support.h"

#include <cmath>
#include <map>

namespace perigee::test {

checkpoint::TensorPart whole_of(const Sharded& tensor) {
  checkpoint::TensorPart part{tensor.name, graph::DType::float64, tensor.shape, {}};
  for (const auto size : tensor.shape) part.ranges.push_back({0, size});
  return part;
}

std::vector<double> values_of(const checkpoint::TensorPart& part, int64_t step) {
  double name = 0;  // a number of the name: all sums below are exact
  for (const char c : part.name) name = std::fmod(name * 31 + c, 8191);
  std::vector<double> values = {0};  // row-major indices
  for (size_t d = 0; d < part.shape.size(); ++d) {
    std::vector<double> next;
    for (const auto value : values) {
      for (int64_t i = 0; i < part.ranges[d].length; ++i) {
        next.push_back(value * double(part.shape[d]) + double(part.ranges[d].begin + i));
      }
    }
    values = std::move(next);
  }
  for (auto& value : values) value += 1e10 * name + 1e6 * double(step);
  return values;
}

void write_checkpoint(const std::string& run, int64_t step, const std::string& axes,
                      const std::vector<Sharded>& tensors, int64_t keep) {
  const auto mesh = mesh::parse_axes(axes);
  std::vector<checkpoint::Holding> holdings;
  for (const auto& tensor : tensors) {
    for (auto& holding : checkpoint::holdings_of(whole_of(tensor),
                                                 mesh::parse_placements(tensor.placements), mesh)) {
      holdings.push_back(std::move(holding));
    }
  }
  const auto owner = checkpoint::owners(holdings);
  checkpoint::CheckpointWriter(run, step).begin();
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    std::vector<std::vector<double>> memory;
    std::vector<checkpoint::Piece> pieces;
    for (size_t i = 0; i < holdings.size(); ++i) {
      if (owner[i] != rank) continue;
      memory.push_back(values_of(holdings[i].part, step));
      pieces.push_back({holdings[i].part, std::as_bytes(std::span(memory.back())),
                        holdings[i].part.name.find(':') == std::string::npos});
    }
    checkpoint::CheckpointWriter(run, step).write_rank(rank, pieces);
  }
  checkpoint::CheckpointWriter(run, step).finish({step, 32 * step, "plan", "{\"lr_scale\":0.5}"},
                                                 mesh.size(), keep);
}

bool is_right(const checkpoint::Checkpoint& checkpoint, const checkpoint::TensorPart& part) {
  const auto expected = values_of(part, checkpoint.info().step);
  std::vector<double> got(expected.size(), -1);
  checkpoint.read(part, std::as_writable_bytes(std::span(got)));
  return got == expected;
}

}  // namespace perigee::test
