#include "train/ranks/share.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace perigee::train {

std::shared_ptr<exec::Group> everyone(exec::Communicator& communicator) {
  std::vector<int64_t> ranks(communicator.world());
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  return communicator.group("all ranks", ranks);
}

double share_number(double number, exec::Group& group) {
  if (group.size() == 1) return number;
  auto shared = at::full({}, number, at::kDouble);
  group.run({.kind = exec::Collective::Kind::broadcast,
             .input = group.index() == 0 ? shared : at::Tensor(),
             .output = shared,
             .peer = 0});
  return shared.item<double>();
}

std::string share_text(std::string text, exec::Group& group) {
  using Kind = exec::Collective::Kind;
  if (group.size() == 1) return text;
  const bool root = group.index() == 0;
  auto size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  group.run(
      {.kind = Kind::broadcast, .input = root ? size : at::Tensor(), .output = size, .peer = 0});
  auto bytes = at::empty({size.item<int64_t>()}, at::kByte);
  if (root) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  group.run(
      {.kind = Kind::broadcast, .input = root ? bytes : at::Tensor(), .output = bytes, .peer = 0});
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(bytes.numel())};
}

std::vector<std::string> gather_texts(const std::string& text, exec::Group& group) {
  using Kind = exec::Collective::Kind;
  auto size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  auto sizes = at::empty({group.size()}, at::kLong);
  group.run({.kind = Kind::all_gather, .input = size, .output = sizes, .dim = 0});
  const auto most = std::max<int64_t>(1, sizes.max().item<int64_t>());
  auto mine = at::zeros({most}, at::kByte);
  std::memcpy(mine.data_ptr(), text.data(), text.size());
  auto all = at::empty({most * group.size()}, at::kByte);
  group.run({.kind = Kind::all_gather, .input = mine, .output = all, .dim = 0});
  std::vector<std::string> texts;
  for (int64_t i = 0; i < group.size(); ++i) {
    const auto* begin = static_cast<const char*>(all.data_ptr()) + i * most;
    texts.emplace_back(begin, static_cast<size_t>(sizes.data_ptr<int64_t>()[i]));
  }
  return texts;
}

void barrier(exec::Communicator& communicator) {
  everyone(communicator)->run({.kind = exec::Collective::Kind::barrier});
}

}  // namespace perigee::train
