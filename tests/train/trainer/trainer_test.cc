#include "train/trainer.h"

#include <torch/nn/modules/linear.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/trainer/setup.h"

using namespace perigee;
using namespace perigee::trainer_test;

namespace {

void check_equal(const std::pair<std::vector<double>, std::vector<at::Tensor>>& a,
                 const std::pair<std::vector<double>, std::vector<at::Tensor>>& b) {
  REQUIRE(a.first.size() == 3);
  for (size_t i = 0; i < a.first.size(); ++i) CHECK(std::abs(a.first[i] - b.first[i]) < 1e-10);
  REQUIRE(a.second.size() == b.second.size());
  for (size_t i = 0; i < a.second.size(); ++i)
    CHECK(at::allclose(a.second[i], b.second[i], 1e-10, 1e-10));
}

// Checks that `ranks` sharded ranks and a rank with whole tensors read each other's
// checkpoints, and have equal losses afterwards. `job` is the setup's job with the microbatch
// of the sharded ranks.
void check_checkpoint_exchange(Setup& setup, const Job& job, const Strategy& strategy,
                               int64_t ranks) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("perigee-trainer-" + std::to_string(::getpid()));
  const auto data = setup.data();
  const auto batch = data->at(1, {0, 8});
  Trainer parts{*setup.module, make_plan(setup.source, strategy, job, {ranks}), job,
                Ranks::threads(ranks), nullptr};
  Trainer whole{*setup.module, make_plan(setup.source, Strategy(), setup.job, {1}), setup.job,
                Ranks::threads(1), nullptr};
  parts.step(batch);
  parts.save(folder.string());
  whole.load(folder.string());
  // The evaluation's program reads the sharded weights of the training program.
  CHECK(std::abs(parts.evaluate(batch).at("loss") - whole.evaluate(batch).at("loss")) < 1e-10);
  // The second loss depends on the optimizer's state, too.
  const auto check_steps = [&] {
    for (int i = 0; i < 2; ++i) {
      CHECK(std::abs(parts.step(batch).loss - whole.step(batch).loss) < 1e-10);
    }
  };
  check_steps();
  whole.step(batch);  // the parts fall behind
  whole.save(folder.string());
  parts.load(folder.string());
  check_steps();
  std::filesystem::remove_all(folder);
}

}  // namespace

TEST_CASE("a built-in model trained over ranks and microbatches equals one rank", "[device]") {
  const std::string models[] = {
      "kind = 'gpt'\nlayers = 2\nwidth = 16\nheads = 2\nvocab = 32\ndropout = 0.1",
      "kind = 'gpt'\nlayers = 1\nwidth = 16\nheads = 2\nvocab = 32\ntied = false\nbias = false",
      "kind = 'llama'\nlayers = 2\nwidth = 16\nheads = 4\nkv_heads = 2\nvocab = 32",
      "kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3\ndropout = 0.2",
      "kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 3\noutputs = 3\nloss = 'mse'\nactivation = "
      "'gelu'"};
  for (const auto& model : models) {
    CAPTURE(model);
    Setup setup(toml(model));
    const auto one = setup.run(1, 8);
    check_equal(one, setup.run(1, 2));
    check_equal(one, setup.run(1, 1));
    check_equal(one, setup.run(2, 4));
    check_equal(one, setup.run(2, 1));
    check_equal(one, setup.run(4, 2));
  }
}

TEST_CASE("models that couple samples equal one rank with the same microbatches", "[device]") {
  const std::string models[] = {
      "kind = 'moe'\nlayers = 1\nwidth = 16\nheads = 2\nvocab = 32\nexperts = 4\nhidden = 16",
      "kind = 'resnet'\ndepth = 18\nwidth = 2\nclasses = 3\nimage = 8"};
  for (const auto& model : models) {
    CAPTURE(model);
    Setup setup(toml(model));
    check_equal(setup.run(1, 8, data_parallel(1)), setup.run(2, 4, data_parallel(2)));
    check_equal(setup.run(1, 4, data_parallel(1)), setup.run(2, 2, data_parallel(2)));
  }
}

TEST_CASE("a mixture of experts in microbatches gives the mean of the microbatches' results") {
  const std::string model =
      "kind = 'moe'\nlayers = 2\nwidth = 16\nheads = 2\nvocab = 32\nexperts = 4\nhidden = 16\n"
      "capacity = 0.75\nbalance = 0.1";
  Setup setup(toml(model));
  // Runs with the same global microbatch are equal; another microbatch changes the loss.
  const auto four = setup.run(1, 4, data_parallel(1));
  check_equal(four, setup.run(2, 2, data_parallel(2)));
  check_equal(four, setup.run(4, 1, data_parallel(4)));
  check_equal(setup.run(1, 2, data_parallel(1)), setup.run(2, 1, data_parallel(2)));
  CHECK(std::abs(four.first[0] - setup.run(1, 8, data_parallel(1)).first[0]) > 1e-6);

  // The loss and the gradients of two microbatches are the means over the two halves of the batch.
  auto half = setup.job;
  half.batch.global = 4;
  half.optimizer.clip_norm = setup.job.optimizer.clip_norm = 0;
  half.optimizer.name = setup.job.optimizer.name = "sgd";
  half.optimizer.options["momentum"] = setup.job.optimizer.options["momentum"] = 0.0;
  half.optimizer.weight_decay = setup.job.optimizer.weight_decay = 0;
  half.lr_schedule.kind = setup.job.lr_schedule.kind = "constant";
  half.lr_schedule.warmup = setup.job.lr_schedule.warmup = 0;
  setup.job.batch.micro = 4;
  const auto batch = setup.data()->at(1, {0, 8});
  const auto weights = [&](const Job& job, const Batch& given, double& loss) {
    Trainer trainer{*setup.module, make_plan(setup.source, Strategy(), job, {1}), job,
                    Ranks::threads(1), nullptr};
    loss = trainer.step(given).loss;
    Setup other(job::to_toml(setup.job));
    trainer.copy_to(*other.module);
    std::vector<at::Tensor> result;
    for (const auto& parameter : other.module->parameters())
      result.push_back(parameter.detach().clone());
    return result;
  };
  const auto part = [&](int64_t first) {
    Batch piece;
    for (const auto& [name, tensor] : batch) piece[name] = tensor.narrow(0, first, 4);
    return piece;
  };
  double whole = 0, first = 0, second = 0;
  const auto both = weights(setup.job, batch, whole);
  const auto a = weights(half, part(0), first), b = weights(half, part(4), second);
  CHECK(whole == Approx((first + second) / 2).epsilon(1e-12));
  // A step of sgd without momentum is linear in the gradient.
  for (size_t i = 0; i < both.size(); ++i)
    CHECK(at::allclose(both[i], (a[i] + b[i]) / 2, 1e-10, 1e-12));
}

TEST_CASE("a resumed run continues bit for bit, on another number of ranks to rounding",
          "[device]") {
  Setup setup(toml("kind = 'gpt'\nlayers = 1\nwidth = 16\nheads = 2\nvocab = 32\ndropout = 0.1"));
  const auto folder = std::filesystem::temp_directory_path() /
                      ("perigee-trainer-" + std::to_string(::getpid()));
  const auto plan = make_plan(setup.source, Strategy(), setup.job, {2});
  const auto data = setup.data();
  const auto batch = [&](int64_t step) { return data->at(step, {0, 8}); };
  Trainer through{*setup.module, plan, setup.job, Ranks::threads(2), nullptr};
  through.step(batch(1));
  through.save(folder.string());
  // The last loss depends on the optimizer's state, too.
  const double expected[] = {through.step(batch(2)).loss, through.step(batch(3)).loss};
  Trainer again{*setup.module, plan, setup.job, Ranks::threads(2), nullptr};
  again.load(folder.string());
  CHECK(again.last_step() == 1);
  for (const int64_t step : {2, 3}) CHECK(again.step(batch(step)).loss == expected[step - 2]);
  Trainer four{*setup.module, make_plan(setup.source, Strategy(), setup.job, {4}), setup.job,
               Ranks::threads(4), nullptr};
  four.load(folder.string());
  for (const int64_t step : {2, 3}) {
    CHECK(std::abs(four.step(batch(step)).loss - expected[step - 2]) < 1e-10);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("a trainer reports and saves the loss scale and the number of skipped steps",
          "[device]") {
  auto text = toml("kind = 'gpt'\nlayers = 1\nwidth = 16\nheads = 2\nvocab = 32");
  text.replace(text.find("float64"), 7, "float32");
  Setup setup(text);
  const auto folder = std::filesystem::temp_directory_path() /
                      ("perigee-scale-" + std::to_string(::getpid()));
  const auto batch = setup.data()->at(1, {0, 8});
  const auto planned = [&](int64_t ranks) {
    auto plan = make_plan(setup.source, Strategy(), setup.job, {ranks});
    plan.plan.precision = {
        .dtype = graph::DType::float16,
        .loss_scale = {.kind = plan::LossScale::Kind::dynamic, .init_scale = 0x1p100}};
    return plan;
  };
  Trainer two{*setup.module, planned(2), setup.job, Ranks::threads(2), nullptr};
  auto report = two.step(batch);
  CHECK(report.skipped);
  CHECK(report.loss_scale == 0x1p100);
  const auto loss = report.loss;
  report = two.step(batch);
  CHECK(report.skipped);
  CHECK(report.loss_scale == 0x1p99);
  CHECK(report.loss == loss);  // the weights are unchanged
  two.save(folder.string());
  Trainer one{*setup.module, planned(1), setup.job, Ranks::threads(1), nullptr};
  one.load(folder.string());
  CHECK(one.step(batch).loss_scale == 0x1p98);
  two.step(batch);
  two.load(folder.string());
  report = two.step(batch);  // as if the step before had not run
  CHECK(report.skipped);
  CHECK(report.loss_scale == 0x1p98);
  std::filesystem::remove_all(folder);

  Trainer plain{*setup.module, make_plan(setup.source, Strategy(), setup.job, {1}), setup.job,
                Ranks::threads(1), nullptr};
  report = plain.step(batch);
  CHECK(!report.skipped);
  CHECK(!report.loss_scale);
}

TEST_CASE("only a dynamic loss scale goes on where it was, in a plan whose scale is dynamic too") {
  using Kind = plan::LossScale::Kind;
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  setup.job.train.skip_bad_steps = 1;
  const auto batch = setup.data()->at(1, {0, 8});
  auto bad = batch;
  bad["x"] = at::full_like(batch.at("x"), NAN);
  const auto make = [&](Kind kind, double scale) {
    auto plan = make_plan(setup.source, data_parallel(1), setup.job, {1});
    plan.plan.precision.loss_scale = {.kind = kind, .init_scale = scale};
    return Trainer{*setup.module, plan, setup.job, Ranks::threads(1), nullptr};
  };
  struct Case {
    Kind before, after;
    std::optional<double> scale;  // after the load
  };
  const test::Folder folder;
  const auto norm = make(Kind::none, 1).step(batch).grad_norm;
  for (const auto& c :
       {Case{Kind::dynamic, Kind::dynamic, 512}, Case{Kind::dynamic, Kind::fixed, 4096},
        Case{Kind::dynamic, Kind::none, std::nullopt}, Case{Kind::fixed, Kind::dynamic, 4096},
        Case{Kind::fixed, Kind::fixed, 4096}, Case{Kind::none, Kind::dynamic, 4096}}) {
    CAPTURE(name_of(c.before), name_of(c.after));
    auto before = make(c.before, 1024), after = make(c.after, 4096);
    CHECK(before.step(bad).skipped);
    before.save(folder.at("run"));
    after.load(folder.at("run"));
    const auto report = after.step(batch);
    CHECK(report.loss_scale == c.scale);
    CHECK(report.grad_norm == Approx(norm).epsilon(1e-10));
  }
}

TEST_CASE("a trainer asks the strategy for a loss scale that is given") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  const test::Folder folder;
  const auto strategy = Strategy::file(
      folder.add("s.lua",
                 "return { methods = { { 'parallel_mode', { { 'data', 2 } } } },\n"
                 "  events = { loss_scale = function(step) return 2 ^ step end } }\n"));
  auto plan = make_plan(setup.source, strategy, setup.job, {2});
  Trainer plain{*setup.module, plan, setup.job, Ranks::threads(2), nullptr};
  plan.plan.precision.loss_scale.kind = plan::LossScale::Kind::given;
  Trainer scaled{*setup.module, plan, setup.job, Ranks::threads(2), nullptr};
  const auto batch = setup.data()->at(1, {0, 8});
  for (const double scale : {2, 4}) {
    const auto report = scaled.step(batch);
    CHECK(report.loss_scale == scale);
    CHECK(report.grad_norm == Approx(plain.step(batch).grad_norm).epsilon(1e-10));
  }
}

TEST_CASE("sharded parameters train as on one rank, also a parameter of one element", "[device]") {
  // The last bias is one element: most ranks hold no part of it.
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 5\nlayers = 2\noutputs = 1\nloss = 'mse'"));
  const auto one = setup.run(1, 8);
  for (const std::string method : {"zero1", "zero2", "fsdp"}) {
    for (int size : {1, 20}) {
      CAPTURE(method, size);
      const auto strategy = Strategy::data(
          fmt::format(R"([["{}", {{"atorch_size_based_min_num_params": {}}}]])", method, size));
      check_equal(one, setup.run(4, 2, strategy));
      check_equal(one, setup.run(2, 2, strategy));
      check_checkpoint_exchange(setup, setup.job, strategy, 4);
    }
  }
}

TEST_CASE("weights sharded over one axis and stored in parts over another are saved and assembled",
          "[device]") {
  Setup setup(toml("kind = 'gpt'\nlayers = 2\nwidth = 12\nheads = 6\nvocab = 10\ndropout = 0.1"));
  const auto one = setup.run(1, 8);
  for (const std::string mesh :
       {R"([["tensor", 3], ["data", 2]])", R"([["data", 2], ["tensor", 2]])",
        R"([["tensor", 2], ["zero", 2], ["data", 1]])"}) {
    for (const std::string method : {"zero1", "fsdp"}) {
      CAPTURE(mesh, method);
      const auto strategy = Strategy::data(
          fmt::format(R"([["parallel_mode", {}], "tensor_parallel", "{}"])", mesh, method));
      const int64_t ranks = mesh.find('3') == std::string::npos ? 4 : 6;
      check_equal(one, setup.run(ranks, 4, strategy));
      check_checkpoint_exchange(setup, setup.job, strategy, ranks);
    }
  }
}

TEST_CASE("pipeline stages save, load, evaluate and assemble the weights", "[device]") {
  const auto check = [](const std::string& model, const std::string& mesh, int64_t ranks,
                        const std::string& methods) {
    CAPTURE(model, mesh, methods);
    Setup setup(toml(model));
    setup.job.batch.micro = 4;
    const auto strategy = Strategy::data(
        fmt::format(R"([["parallel_mode", {}], ["pipeline_parallel", {})", mesh, methods));
    auto job = setup.job;
    job.batch.micro = 4 / (ranks / 2);
    check_equal(setup.run(1, 4), setup.run(ranks, job.batch.micro, strategy));
    check_checkpoint_exchange(setup, job, strategy, ranks);
  };
  const std::string two = R"([["pipe", 2]])", four = R"([["data", 2], ["pipe", 2]])";
  const std::string tied = "kind = 'gpt'\nlayers = 2\nwidth = 12\nheads = 6\nvocab = 10";
  check(tied, two, 2, "{}]]");
  check(tied + "\ntied = false", four, 4, R"({"schedule": "zb1p"}], "zero1"])");
  check(tied, four, 4, R"({}], "fsdp"])");
  check("kind = 'resnet'\ndepth = 18\nwidth = 2\nclasses = 3\nimage = 8", two, 2, "{}]]");
}

TEST_CASE("stages whose units have a parameter that nothing uses train and evaluate") {
  struct Net : torch::nn::Module {
    torch::nn::Linear first{6, 8}, last{8, 3}, spare{4, 4};
    Net() {
      register_module("first", first);
      register_module("last", last);
      register_module("spare", spare);
      to(at::kDouble);
    }
  };
  const auto net = std::make_shared<Net>();
  const auto source = perigee::source(
      net, {{"x", at::zeros({1, 6}, at::kDouble)}}, [net](const Batch& b) {
        return Result{net->last(torch::relu(net->first(b.at("x")))).square().mean()};
      });
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  setup.job.batch.micro = 4;
  const Batch batch = {{"x", at::randn({8, 6}, at::kDouble)}};
  std::vector<double> losses;
  for (
      const std::string methods :
      {R"([["parallel_mode", [["data", 1]]]])",
       R"([["parallel_mode", [["data", 2], ["pipe", 2]]], ["pipeline_parallel", {"starts": ["last"]}], "fsdp"])"}) {
    const int64_t ranks = losses.empty() ? 1 : 4;
    auto job = setup.job;
    job.batch.micro = ranks == 1 ? 4 : 2;
    Trainer trainer{*net, make_plan(source, Strategy::data(methods), job, {ranks}), job,
                    Ranks::threads(ranks), nullptr};
    losses.push_back(trainer.evaluate(batch).at("loss"));
    losses.push_back(trainer.step(batch).loss);
    losses.push_back(trainer.evaluate(batch).at("loss"));
  }
  for (int i = 0; i < 3; ++i) CHECK(losses[i] == Approx(losses[i + 3]).epsilon(1e-10));
}

TEST_CASE("a stage that trains nothing scales, skips, saves and resumes as others", "[device]") {
  for (const std::string frozen : {"blocks.0.*", "head.*"}) {
    CAPTURE(frozen);
    Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
    setup.job.batch.micro = 4;
    setup.job.model.frozen = {frozen};
    const auto make = [&](const Strategy& strategy, int64_t ranks) {
      auto plan = make_plan(setup.source, strategy, setup.job, {ranks});
      plan.plan.precision.loss_scale = {.kind = plan::LossScale::Kind::dynamic, .init_scale = 1024};
      return Trainer{*setup.module, plan, setup.job, Ranks::threads(ranks), nullptr};
    };
    const auto stages = Strategy::data(
        R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {"starts": ["head"]}]])");
    const auto batch = setup.data()->at(1, {0, 8});
    auto bad = batch;
    bad["x"] = at::full_like(batch.at("x"), NAN);
    auto one = make(data_parallel(1), 1), two = make(stages, 2);
    const auto check_step = [&](Trainer& trainer, const Report& expected) {
      const auto report = trainer.step(batch);
      CHECK(report.loss == Approx(expected.loss).epsilon(1e-10));
      CHECK(report.grad_norm == Approx(expected.grad_norm).epsilon(1e-10));
      CHECK(report.loss_scale == expected.loss_scale);
      CHECK_FALSE(report.skipped);
    };
    check_step(two, one.step(batch));
    CHECK(one.step(bad).skipped);
    CHECK(two.step(bad).skipped);
    const test::Folder folder;
    two.save(folder.at("run"));
    auto resumed = make(stages, 2);
    resumed.load(folder.at("run"));
    const auto expected = one.step(batch);
    CHECK(expected.loss_scale == 512);
    check_step(two, expected);
    check_step(resumed, expected);
  }
}

TEST_CASE("a job without [model] trains an application's own module", "[device]") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  const auto trained = setup.run(2, 0, data_parallel(2));
  auto job = Job::parse("name = 'test'\n[batch]\nglobal = 8\n[train]\nsteps = 3", "test.toml");
  job.cluster.device = setup.job.cluster.device;
  Trainer trainer{*setup.module, make_plan(setup.source, data_parallel(2), job, {2}), job,
                  Ranks::threads(2), setup.data()};
  std::vector<double> losses;
  trainer.on_step([&](const Report& report) {
    losses.push_back(report.loss);
    return Control::go;
  });
  trainer.run();
  CHECK(losses == trained.first);
}

TEST_CASE("recorded steps train as others, and on a CPU are left out or an error where required",
          "[device]") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3\ndropout = 0.2"));
  const auto run = [&](const std::string& graphs) {
    setup.job.cluster.graphs = graphs;
    return setup.run(1, 2, data_parallel(1));
  };
  const auto expected = run("false");
  check_equal(run("auto"), expected);
  if (on_gpu()) {
    check_equal(run("true"), expected);
    return;
  }
  CHECK_THROWS_WITH(run("true"),
                    Catch::Contains("[cluster] cluster.graphs = true records steps on GPUs, but") &&
                        Catch::Contains("set cluster.graphs = \"auto\""));
}

TEST_CASE("a trainer on a module that was trained starts from its weights") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  const auto plan = make_plan(setup.source, data_parallel(2), setup.job, {2});
  Trainer first{*setup.module, plan, setup.job, Ranks::threads(2), setup.data()};
  const auto batch = setup.data()->at(1, {0, 8});
  const auto begin = first.evaluate(batch).at("loss");
  first.run();
  const auto trained = first.evaluate(batch).at("loss");
  first.copy_to(*setup.module);
  Trainer second{*setup.module, plan, setup.job, Ranks::threads(2), nullptr};
  CHECK(second.evaluate(batch).at("loss") == trained);
  CHECK(trained != begin);
  Setup wider(toml("kind = 'mlp'\ninputs = 6\nwidth = 9\nlayers = 2\noutputs = 3"));
  CHECK_THROWS_WITH(first.copy_to(*wider.module),
                    Catch::Contains("a module like that of the plan"));
  torch::nn::Module other;
  CHECK_THROWS_WITH(first.copy_to(other), Catch::Contains("no tensor of its names, such as"));
  CHECK_THROWS_WITH(perigee::source(nullptr, batch, [](const Batch&) { return Result(); }),
                    Catch::Contains("needs a module, but it is null"));
}

TEST_CASE("weights that stages of a pipeline keep in bfloat16 alone are copied to a module") {
  auto text = toml("kind = 'gpt'\nlayers = 2\nwidth = 16\nheads = 2\nvocab = 32\ntied = false");
  text.replace(text.find("float64"), 7, "float32");
  Setup setup(text);
  setup.job.batch.micro = 4;
  const auto strategy = Strategy::data(
      R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {}],
          ["half", {"dtype": "bf16", "masters": false}]])");
  const auto plan = make_plan(setup.source, strategy, setup.job, {2});
  Trainer first{*setup.module, plan, setup.job, Ranks::threads(2), setup.data()};
  const auto batch = setup.data()->at(1, {0, 8});
  const auto begin = first.evaluate(batch).at("loss");
  first.run();
  const auto trained = first.evaluate(batch).at("loss");
  first.copy_to(*setup.module);
  Trainer second{*setup.module, plan, setup.job, Ranks::threads(2), nullptr};
  CHECK(second.evaluate(batch).at("loss") == trained);
  CHECK(trained != begin);
}
