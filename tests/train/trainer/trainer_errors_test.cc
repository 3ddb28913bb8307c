// What a trainer refuses, and how it goes on after errors.
#include <chrono>
#include <thread>

#include "base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/trainer/setup.h"

using namespace perigee;
using namespace perigee::trainer_test;

// Gives all samples of a step, whichever are asked for.
struct WholeBatches : DataSource {
  std::unique_ptr<DataSource> source;
  explicit WholeBatches(std::unique_ptr<DataSource> given) : source(std::move(given)) {}
  Batch at(int64_t step, Range) override { return source->at(step, {0, 8}); }
};

TEST_CASE("a source that gives other samples than those asked for is refused") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  const auto plan = make_plan(setup.source, data_parallel(2), setup.job, {2});
  Trainer trainer{*setup.module, plan, setup.job, Ranks::threads(2),
                  std::make_unique<WholeBatches>(setup.data())};
  CHECK_THROWS_WITH(trainer.run(), Catch::Contains("where 4 samples are asked for, but is [8"));
}

TEST_CASE("a trainer of several ranks goes on after a batch or a checkpoint that it refused") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  const auto make = [&](const std::string& optimizer) {
    auto job = setup.job;
    job.optimizer = Job::parse("name = 'test'\n[model]\nkind = 'mlp'\n[optimizer]\nname = '" +
                                   optimizer + "'",
                               "test.toml")
                        .optimizer;
    const auto plan = make_plan(setup.source, data_parallel(2), job, {2});
    return Trainer{*setup.module, plan, job, Ranks::threads(2), setup.data()};
  };
  auto trainer = make("adamw");
  const auto batch = setup.data()->at(1, {0, 8});
  trainer.step(batch);
  const test::Folder folder;
  trainer.save(folder.at("run"));
  CHECK_THROWS(trainer.save("/dev/null/run"));
  CHECK_THROWS(trainer.evaluate({{"x", at::zeros({8, 7}, at::kDouble)}}));
  auto other = make("sgd");
  const auto before = other.evaluate(batch).at("loss");
  CHECK_THROWS(other.load(folder.at("run")));
  CHECK(other.evaluate(batch).at("loss") == before);
  CHECK(trainer.step(batch).step == 2);
}

// Throws once, when the second of two ranks reads its samples of step 2.
struct FailsOnce : DataSource {
  std::unique_ptr<DataSource> source;
  std::chrono::milliseconds after;  // time in which the other rank goes as far as it can
  int calls = 0;                    // of step 2
  explicit FailsOnce(std::unique_ptr<DataSource> given, std::chrono::milliseconds after = {})
      : source(std::move(given)), after(after) {}
  Batch at(int64_t step, Range samples) override {
    if (step == 2 && ++calls == 2) {
      std::this_thread::sleep_for(after);
      throw 5;
    }
    return source->at(step, samples);
  }
};

TEST_CASE("a trainer of several ranks goes on after an error within a step") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  const auto make = [&](const std::string& method) {
    auto plan = make_plan(setup.source,
                          Strategy::data(R"([["parallel_mode", [["data", 2]]])" + method + "]"),
                          setup.job, {2});
    return Trainer{*setup.module, plan, setup.job, Ranks::threads(2),
                   std::make_unique<FailsOnce>(setup.data())};
  };
  const auto data = setup.data();
  const auto batch = [&](int64_t step) { return data->at(step, {0, 8}); };
  for (const std::string method : {"", R"(, "zero1")", R"(, "fsdp")"}) {
    CAPTURE(method);
    auto trainer = make(method), other = make(method);
    for (int64_t step = 1; step <= 3; ++step) other.step(batch(step));
    CHECK_THROWS_WITH(trainer.run(), Catch::Contains("that is no std::exception"));
    CHECK(trainer.last_step() == 1);
    auto wrong = batch(2);
    wrong["y"][7] = 3;  // of rank 1 alone; labels are below 3
    CHECK_THROWS(trainer.step(wrong));
    CHECK_THROWS(trainer.evaluate(wrong));
    trainer.run();
    CHECK(trainer.last_step() == 3);
    CHECK(trainer.evaluate(batch(4)) == other.evaluate(batch(4)));
  }
}

// Evaluates its own trainer.
struct CallsTrainer : DataSource {
  std::unique_ptr<DataSource> source;
  Trainer* trainer = nullptr;
  explicit CallsTrainer(std::unique_ptr<DataSource> given) : source(std::move(given)) {}
  Batch at(int64_t step, Range samples) override {
    if (step == 2) trainer->evaluate(source->at(step, {0, 8}));
    return source->at(step, samples);
  }
};

TEST_CASE("a trainer is not called before its last call returned") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  for (const int64_t ranks : {1, 2}) {
    auto source = std::make_unique<CallsTrainer>(setup.data());
    auto& calls = *source;
    Trainer trainer{*setup.module,
                    make_plan(setup.source, data_parallel(ranks), setup.job, {ranks}), setup.job,
                    Ranks::threads(ranks), std::move(source)};
    calls.trainer = &trainer;
    CHECK_THROWS_WITH(trainer.run(), Catch::Contains("must not be called before its last call"));
    CHECK(trainer.last_step() == 1);
    CHECK(trainer.step(setup.data()->at(2, {0, 8})).step == 2);
  }
}

TEST_CASE("after an error while weights changed a trainer needs a checkpoint") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  // Each rank steps by itself.
  const auto plan = make_plan(
      setup.source, Strategy::file("strategies/data_parallel/local_sgd.lua"), setup.job, {2});
  Trainer trainer{*setup.module, plan, setup.job, Ranks::threads(2),
                  std::make_unique<FailsOnce>(setup.data(), std::chrono::milliseconds(300))};
  const auto batch = setup.data()->at(1, {0, 8});
  trainer.step(batch);
  const test::Folder folder;
  trainer.save(folder.at("run"));
  CHECK_THROWS(trainer.run());
  CHECK_THROWS_WITH(trainer.run(),
                    Catch::Contains("step 2 ended by an error when ranks had begun to change"));
  CHECK_THROWS_WITH(trainer.save(folder.at("run")), Catch::Contains("call load"));
  trainer.load(folder.at("run"));
  trainer.run();
  CHECK(trainer.last_step() == 3);
}

TEST_CASE("after an error while buffers changed a trainer needs a checkpoint") {
  Setup setup(toml("kind = 'resnet'\ndepth = 18\nwidth = 2\nclasses = 3\nimage = 8"));
  setup.job.batch.micro = 4;
  const auto plan = make_plan(setup.source, data_parallel(1), setup.job, {1});
  const auto make = [&] {
    return Trainer{*setup.module, plan, setup.job, Ranks::threads(1), nullptr};
  };
  auto trainer = make(), other = make();
  const auto batch = setup.data()->at(1, {0, 8});
  const test::Folder folder;
  trainer.step(batch);
  trainer.save(folder.at("run"));
  other.step(batch);
  const auto bad = [&](int64_t sample) {
    auto labels = batch.at("label").clone();
    labels[sample] = 3;  // labels are below 3
    return Batch{{"image", batch.at("image")}, {"label", labels}};
  };
  CHECK_THROWS(trainer.step(bad(0)));  // in the first microbatch, before running means change
  CHECK(trainer.step(batch).loss == other.step(batch).loss);
  CHECK_THROWS(trainer.step(bad(4)));  // in the second one
  CHECK_THROWS_WITH(trainer.step(batch),
                    Catch::Contains("step 3 ended by an error when ranks had begun to change"));
  trainer.load(folder.at("run"));
  CHECK(trainer.step(batch).step == 2);
}

TEST_CASE("a trainer refuses ranks, batches and keys that do not match its plan") {
  Setup setup(toml("kind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3"));
  const auto plan = make_plan(setup.source, Strategy(), setup.job, {2});
  CHECK_THROWS_WITH(make_plan(setup.source, Strategy(), setup.job, {-3}),
                    Catch::Contains("at least 1 rank, but got -3"));
  auto incomplete = setup.job;
  incomplete.lr_schedule = {};
  CHECK_THROWS_WITH((Trainer{*setup.module, plan, incomplete, Ranks::threads(2), nullptr}),
                    Catch::Contains("call Job::complete()"));
  setenv("WORLD_SIZE", "2", 1);
  CHECK_THROWS_WITH(Ranks::from_environment(), Catch::Contains("only WORLD_SIZE is set"));
  unsetenv("WORLD_SIZE");
  CHECK_THROWS_WITH((Trainer{*setup.module, plan, setup.job, Ranks::threads(3), nullptr}),
                    Catch::Contains("it has 2 and there are 3"));
  Trainer trainer{*setup.module, plan, setup.job, Ranks::threads(2), nullptr};
  CHECK_THROWS_WITH(trainer.run(), Catch::Contains("needs a data source"));
  auto larger = setup.job;
  larger.batch.global = 16;
  Trainer first{*setup.module, plan, setup.job, Ranks::threads(2), nullptr};
  const Trainer second = std::move(first);
  CHECK_THROWS_WITH(first.last_step(), Catch::Contains("this trainer was moved from"));
  CHECK_THROWS_WITH((Trainer{*setup.module, plan, larger, Ranks::threads(2), nullptr}),
                    Catch::Contains("which has batch.global = 8, but has 16: make a plan"));
  CHECK_THROWS_WITH(trainer.step({{"x", at::zeros({3, 6}, at::kDouble)}}),
                    Catch::Contains("has 3"));
  CHECK_THROWS_WITH(trainer.step({{"z", at::zeros({8, 6}, at::kDouble)}}),
                    Catch::Contains("the model reads the input \"x\""));
  CHECK_THROWS_WITH(
      trainer.step({{"x", at::zeros({8, 7}, at::kDouble)}, {"y", at::zeros({8}, at::kLong)}}),
      Catch::Contains("\"x\" must be float64 [6], as the model takes it"));
  CHECK_THROWS_WITH(trainer.step({{"x", at::Tensor()}, {"y", at::zeros({8}, at::kLong)}}),
                    Catch::Contains("\"x\" must be a dense tensor, but it is undefined"));
  const auto stages = make_plan(
      setup.source,
      Strategy::data(
          R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {"starts": ["head"]}]])"),
      setup.job, {2});
  Trainer piped{*setup.module, stages, setup.job, Ranks::threads(2), nullptr};
  CHECK_THROWS_WITH(piped.forward(setup.data()->at(1, {0, 8})),
                    Catch::Contains("but the plan has a pipeline over pipe"));
  auto scaled = plan;
  scaled.plan.precision.loss_scale.kind = plan::LossScale::Kind::given;
  Trainer asks{*setup.module, scaled, setup.job, Ranks::threads(2), nullptr};
  CHECK_THROWS_WITH(asks.step(setup.data()->at(1, {0, 8})),
                    Catch::Contains("needs a strategy script with an event loss_scale"));
  setup.job.batch.global = 7;
  const auto data = Strategy::data(R"([["parallel_mode", [["data", 2]]]])");
  CHECK_THROWS_WITH(make_plan(setup.source, data, setup.job, {2}),
                    Catch::Contains("batch.global must divide"));
  setup.job.batch.global = 8;
  setup.job.model.frozen = {"hed.**"};
  CHECK_THROWS_WITH((Trainer{*setup.module, plan, setup.job, Ranks::threads(2), nullptr}),
                    Catch::Contains("model.frozen must match a parameter"));
  setup.job.model.frozen = {"**"};
  CHECK_THROWS_WITH((Trainer{*setup.module, plan, setup.job, Ranks::threads(2), nullptr}),
                    Catch::Contains("model.frozen must leave a parameter to train, but it matches "
                                    "all of them"));
}
