#include "train/ranks/blueprint.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "train/ranks/share.h"

namespace perigee::train {

Blueprint share(Blueprint blueprint, exec::Communicator& communicator) {
  if (communicator.world() == 1) return blueprint;
  const auto group = everyone(communicator);
  const bool root = communicator.rank() == 0;
  std::string text;
  if (root) {
    nlohmann::json value = {{"training", graph::print(blueprint.training)},
                            {"evaluation", graph::print(blueprint.evaluation)},
                            {"init", graph::print(blueprint.init)},
                            {"tied", blueprint.tied},
                            {"plan", plan::print(blueprint.plan)}};
    if (blueprint.two_microbatches) {
      value["two_microbatches"] = graph::print(*blueprint.two_microbatches);
    }
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
    if (value.contains("two_microbatches")) {
      blueprint.two_microbatches = graph::parse(
          value["two_microbatches"].get_ref<const std::string&>());
    }
    blueprint.plan = plan::parse(value["plan"].get_ref<const std::string&>(), "rank 0's plan");
  }
  // The hashes, 4 x 32 bits, are equal on all ranks if their maximum and minimum are.
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
