#include "train/generate/rank_command.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace perigee::train {
namespace {

constexpr int64_t kHead = 3;    // kind, slot, number of tokens
constexpr int64_t kFirst = 64;  // tokens in the first message

void broadcast(const at::Tensor& tensor, exec::Group& group) {
  group.run({.kind = exec::Collective::Kind::broadcast,
             .input = group.index() == 0 ? tensor : at::Tensor(),
             .output = tensor,
             .peer = 0});
}

}  // namespace

RankCommand share(RankCommand command, exec::Group& group) {
  if (group.size() == 1) return command;
  const bool root = group.index() == 0;
  const auto first = at::zeros({kHead + kFirst}, at::kLong);
  auto* numbers = first.data_ptr<int64_t>();
  if (root) {
    numbers[0] = static_cast<int64_t>(command.kind);
    numbers[1] = command.slot;
    numbers[2] = std::ssize(command.tokens);
    std::copy_n(command.tokens.begin(), std::min(numbers[2], kFirst), numbers + kHead);
  }
  broadcast(first, group);
  const auto count = numbers[2];
  if (!root) {
    command = {static_cast<RankCommand::Kind>(numbers[0]), numbers[1],
               std::vector<int64_t>(numbers + kHead, numbers + kHead + std::min(count, kFirst))};
  }
  if (count <= kFirst) return command;
  const auto rest = at::empty({count - kFirst}, at::kLong);
  if (root)
    std::copy(command.tokens.begin() + kFirst, command.tokens.end(), rest.data_ptr<int64_t>());
  broadcast(rest, group);
  const auto* more = rest.const_data_ptr<int64_t>();
  if (!root) command.tokens.insert(command.tokens.end(), more, more + rest.numel());
  return command;
}

}  // namespace perigee::train
