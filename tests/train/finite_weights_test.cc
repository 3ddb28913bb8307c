// Numbers that are not finite, in the pieces of a checkpoint.
#include "train/output/finite_weights.h"

#include <torch/nn/module.h>

#include <cmath>

#include "tests/support/temporary_folder.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

using namespace perigee;
using namespace perigee::train;

TEST_CASE("only wanted tensors count, and the first is named with its box") {
  const auto piece = [](const std::string& name) {
    return checkpoint::Piece{{name, graph::DType::float32, {200}, {{0, 100}}}, {}};
  };
  const Snapshot snapshot = {.pieces = {piece("good"), piece("mask"), piece("w"), piece("x")},
                             .not_finite = {1, 2, 3}};
  CHECK(find_not_finite(snapshot, [](const auto& name) { return name != "mask"; }) == "w[0:100]");
  CHECK(find_not_finite(snapshot, [](const auto&) { return true; }) == "mask[0:100]");
  CHECK(find_not_finite(snapshot, [](const auto&) { return false; }) == "");
  CHECK(find_not_finite({.pieces = snapshot.pieces}, [](const auto&) { return true; }) == "");
}

TEST_CASE("an application that saves weights which are not finite gets an error") {
  struct Net : torch::nn::Module {
    at::Tensor w = register_parameter("w", torch::ones({2}));
  };
  const auto net = std::make_shared<Net>();
  const auto forward = [net](const Batch& batch) {
    return Result{(net->w * batch.at("x")).mean()};
  };
  const auto job = Job::parse(
      "name = 't'\n[batch]\nglobal = 2\n[train]\nsteps = 1\nstop_if_not_finite = false\n"
      "[cluster]\ndevice = 'cpu'",
      "test.toml");
  const auto plan = make_plan(source(net, {{"x", torch::ones({1, 2})}}, forward), Strategy(), job,
                              {1});
  Trainer trainer{*net, plan, job, Ranks::threads(1), nullptr};
  const test::Folder folder;
  trainer.save(folder.at("run"));
  trainer.step({{"x", torch::full({2, 2}, NAN)}});
  CHECK_THROWS_WITH(trainer.save(folder.at("run")),
                    Catch::Contains("weights must be finite to be saved"));
}
