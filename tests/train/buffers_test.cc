// Models that read buffers which they change, in pipelines, and buffers of copies of a model.
#include <fmt/format.h>
#include <torch/nn.h>

#include <limits>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

using namespace perigee;

namespace {

// A linear map of rows that are divided by a running size, which is updated after its use.
class Scaled : public torch::nn::Module {
 public:
  Scaled() {
    linear_ = register_module("linear", torch::nn::Linear(6, 6));
    size_ = register_buffer("size", torch::ones({6}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = linear_->forward(x) * torch::rsqrt(size_ + 1e-3);
    {
      const torch::NoGradGuard frozen;
      size_.mul_(0.9).add_(y.detach().pow(2).mean(0), 0.1);
    }
    return y.tanh();
  }

 private:
  torch::nn::Linear linear_{nullptr};
  torch::Tensor size_;
};

class Blocks : public torch::nn::Module {
 public:
  explicit Blocks(bool shared) {
    torch::manual_seed(3);
    blocks_ = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 4; ++i) blocks_->push_back(std::make_shared<Scaled>());
    rate_ = register_buffer("rate", torch::ones({1}));
    shared_ = shared;
    to(torch::kDouble);
  }
  Result run(const Batch& batch) {
    auto x = shared_ ? batch.at("x") * rate_ : batch.at("x");
    for (const auto& block : *blocks_) x = block->as<Scaled>()->forward(x);
    if (shared_) x = x + rate_;
    const auto loss = (x - batch.at("y")).pow(2).mean();
    const torch::NoGradGuard frozen;
    rate_.mul_(0.5);
    return {loss};
  }

 private:
  torch::nn::ModuleList blocks_{nullptr};
  torch::Tensor rate_;
  bool shared_ = false;
};

// A linear map that reads two buffers of extreme numbers, and counts its calls from 200.
class Counted : public torch::nn::Module {
 public:
  Counted() {
    linear_ = register_module("linear", torch::nn::Linear(6, 6));
    linear_->to(torch::kDouble);
    lowest_ = register_buffer(
        "lowest", torch::full({6}, std::numeric_limits<double>::lowest(), torch::kDouble));
    most_ = register_buffer("most",
                            torch::full({6}, std::numeric_limits<int64_t>::max(), torch::kLong));
    calls_ = register_buffer("calls", torch::full({6}, 200, torch::kByte));
  }
  Result run(const Batch& batch) {
    const auto y = linear_->forward(batch.at("x")) * (lowest_ < 0) * (most_ > 0);
    const auto loss = (y - batch.at("y")).pow(2).mean();
    const torch::NoGradGuard frozen;
    calls_.add_(1);
    return {loss};
  }

 private:
  torch::nn::Linear linear_{nullptr};
  torch::Tensor lowest_, most_, calls_;
};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> tensors;
};

Trained run_blocks(const std::string& methods, int64_t ranks, bool shared = false) {
  const auto net = std::make_shared<Blocks>(shared);
  const auto rows = [](double phase) {
    return torch::arange(48, torch::kDouble).mul(0.7).add(phase).sin().view({8, 6});
  };
  const Batch batch = {{"x", rows(0)}, {"y", rows(1)}};
  const auto source = perigee::source(net, batch, [net](const Batch& b) { return net->run(b); });
  auto job = Job::parse(
      "[model]\nkind = 'mlp'\ndtype = 'float64'\n[batch]\nglobal = 8\nmicro = 2\n[train]\nsteps "
      "= 3\nvalidate_every = 0\n[cluster]\ndevice = 'cpu'\n",
      "test.toml");
  Trainer trainer{*net, make_plan(source, Strategy::data(methods), job, {ranks}), job,
                  Ranks::threads(ranks), nullptr};
  Trained trained;
  for (int step = 0; step < 3; ++step) trained.losses.push_back(trainer.step(batch).loss);
  trainer.copy_to(*net);
  for (const auto& item : net->named_parameters()) {
    trained.tensors[item.key()] = item.value().detach();
  }
  for (const auto& item : net->named_buffers()) trained.tensors[item.key()] = item.value();
  return trained;
}

std::string pipeline(const std::string& schedule, const std::string& more) {
  return fmt::format(
      R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {{"schedule": "{}", "starts": ["blocks.2"]}}]{}])",
      schedule, more);
}

}  // namespace

TEST_CASE("blocks that are computed again read buffers as they were in the forward pass") {
  const auto one = run_blocks("[]", 1);
  const std::string checkpoint = R"(, ["checkpoint", ["blocks.*"]])";
  const auto check = [&](const Trained& other) {
    for (size_t i = 0; i < 3; ++i) CHECK(std::abs(one.losses[i] - other.losses[i]) < 1e-12);
    for (const auto& [name, tensor] : one.tensors) {
      INFO(name);
      CHECK(at::allclose(tensor, other.tensors.at(name), 1e-11, 1e-12));
    }
  };
  CHECK(one.losses[0] != one.losses[2]);
  check(run_blocks("[" + checkpoint.substr(2) + "]", 1));
  for (const std::string schedule : {"1f1b", "gpipe"}) {
    for (const auto& more : {std::string(), checkpoint}) {
      CAPTURE(schedule, more);
      check(run_blocks(pipeline(schedule, more), 2));
    }
  }
}

TEST_CASE("a buffer that changes is refused where several stages read it") {
  CHECK_NOTHROW(run_blocks("[]", 1, /*shared=*/true));
  CHECK_THROWS_WITH(run_blocks(pipeline("1f1b", ""), 2, /*shared=*/true),
                    Catch::Contains("but \"rate\" is used in stages 0, 1"));
}

TEST_CASE("copies of a model average the buffers that the model changes alone") {
  const auto net = std::make_shared<Counted>();
  const Batch batch = {{"x", torch::ones({8, 6}, torch::kDouble)},
                       {"y", torch::zeros({8, 6}, torch::kDouble)}};
  const auto source = perigee::source(net, batch, [net](const Batch& b) { return net->run(b); });
  const auto job = Job::parse(
      "[model]\nkind = 'mlp'\ndtype = 'float64'\n[batch]\nglobal = 8\n[train]\nsteps = "
      "3\nvalidate_every = 0\n[cluster]\ndevice = 'cpu'\n",
      "test.toml");
  const auto plan = make_plan(source, Strategy::file("strategies/data_parallel/local_sgd.lua"), job,
                              {2});
  Trainer trainer{*net, plan, job, Ranks::threads(2), nullptr};
  std::map<std::string, at::Tensor> expected;
  for (const auto& item : net->named_buffers()) expected[item.key()] = item.value().clone();
  expected.at("calls") += 1;
  trainer.step(batch);
  const test::Folder folder;
  trainer.save(folder.path());
  trainer.copy_to(*net);
  const checkpoint::Checkpoint saved(checkpoint::newest_checkpoint(folder.path()));
  CHECK(saved.find("copies:linear.weight"));
  for (const auto& item : net->named_buffers()) {
    INFO(item.key());
    const auto& wanted = expected.at(item.key());
    CHECK(at::equal(item.value(), wanted));
    const auto* found = saved.find(item.key());
    REQUIRE(found);
    const auto stored = at::zeros_like(wanted);
    saved.read({found->name, found->dtype, found->shape, {{0, 6}}},
               {static_cast<std::byte*>(stored.mutable_data_ptr()), stored.nbytes()});
    CHECK(at::equal(stored, wanted));
    CHECK((saved.find("copies:" + item.key()) != nullptr) == (item.key() == "calls"));
  }
}
