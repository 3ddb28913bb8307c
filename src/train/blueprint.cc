#include "train/blueprint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"

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

Blueprint share(Blueprint blueprint, exec::Communicator& communicator) {
  if (communicator.world() == 1) return blueprint;
  const auto group = everyone(communicator);
  const bool root = communicator.rank() == 0;
  std::string text;
  if (root) {
    const nlohmann::json value = {{"training", graph::print(blueprint.training)},
                                  {"evaluation", graph::print(blueprint.evaluation)},
                                  {"init", graph::print(blueprint.init)},
                                  {"tied", blueprint.tied},
                                  {"plan", plan::print(blueprint.plan)}};
    const auto packed = nlohmann::json::to_msgpack(value);
    text.assign(packed.begin(), packed.end());
  }
  text = share_text(std::move(text), *group);
  if (!root) {
    const auto value = nlohmann::json::from_msgpack(text);
    blueprint.training = graph::parse(value["training"].get_ref<const std::string&>());
    blueprint.evaluation = graph::parse(value["evaluation"].get_ref<const std::string&>());
    blueprint.init = graph::parse(value["init"].get_ref<const std::string&>());
    blueprint.tied = value["tied"].get<std::map<std::string, std::string>>();
    blueprint.plan = plan::parse(value["plan"].get_ref<const std::string&>(), "rank 0's plan");
  }
  // Equal on all ranks when its maximum and minimum are; 4 x 32 bits of the hash.
  const auto hash = plan::hash(blueprint.plan);
  auto words = at::empty({8}, at::kLong);
  for (int i = 0; i < 4; ++i) {
    const auto word = static_cast<int64_t>(std::stoul(hash.substr(8 * i, 8), nullptr, 16));
    words.data_ptr<int64_t>()[i] = word;
    words.data_ptr<int64_t>()[4 + i] = -word;
  }
  group->run({.input = words, .output = words, .reduce = mesh::Reduce::max});
  for (int i = 0; i < 4; ++i) {
    if (words.data_ptr<int64_t>()[i] != -words.data_ptr<int64_t>()[4 + i]) {
      fail_run("plan",
               "all ranks must have one plan, but rank {} has {}: mixed versions of Perigee?",
               communicator.rank(), hash);
    }
  }
  return blueprint;
}

}  // namespace perigee::train
