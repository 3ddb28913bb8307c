// Effects of optimizer keys on weights, and the samples that a step reads.
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "capture/models/models.h"
#include "checkpoint/safetensors.h"
#include "exec/memory/allocator.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

using namespace perigee;

namespace {

using Weights = std::map<std::string, at::Tensor>;

// A linear model in float64 whose first weights are drawn once.
struct OptimizerSetup {
  Job job;
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
  Batch batch;

  explicit OptimizerSetup(const std::string& more) {
    job = Job::parse(
        "[model]\nkind = 'mlp'\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3\nloss = 'mse'\n"
        "dtype = 'float64'\n" +
            more,
        "test.toml");
    auto built = make_model(job.model, 0);
    module = built.model.module;
    forward = built.model.forward;
    batch = data::open_synthetic(job).training->at(1, {0, job.batch.global});
  }

  // Returns the weights before and after `steps` steps on the same batch.
  std::pair<Weights, Weights> run(int64_t steps) const {
    const auto source = perigee::source(module, batch, forward);
    Trainer trainer{*module, make_plan(source, Strategy(), job, {1}), job, Ranks::threads(1),
                    nullptr};
    const auto before = weights(trainer);
    for (int64_t i = 0; i < steps; ++i) trainer.step(batch);
    return {before, weights(trainer)};
  }

  Weights weights(Trainer& trainer) const {
    const auto copy = make_model(job.model, 0).model.module;
    trainer.copy_to(*copy);
    Weights result;
    for (const auto& item : copy->named_parameters())
      result[item.key()] = item.value().detach().clone();
    return result;
  }
};

const std::string kPlain =
    "[data]\nsynthetic = true\n[batch]\nglobal = 8\n"
    "[lr_schedule]\nkind = 'constant'\nwarmup = 0\n[train]\nsteps = 5\n";
const std::string kSgd =
    "[optimizer]\nname = 'sgd'\nlr = 0.125\nmomentum = 0\nweight_decay = 0\nclip_norm = 0\n";

// Records the requested ranges of samples.
struct RecordingSource : DataSource {
  std::unique_ptr<DataSource> inner;
  std::vector<std::tuple<int64_t, int64_t, int64_t>> ranges;  // step, begin, length

  Batch at(int64_t step, Range samples) override {
    ranges.emplace_back(step, samples.begin, samples.length);
    return inner->at(step, samples);
  }
};

}  // namespace

TEST_CASE("frozen parameters keep their values, all others change") {
  for (const std::string optimizer : {"sgd", "adam", "adamw", "lion"}) {
    INFO(optimizer);
    const OptimizerSetup setup("frozen = ['blocks.*.weight', 'head.bias']\n" + kPlain +
                               "[optimizer]\nname = '" + optimizer + "'\nweight_decay = 0.1\n");
    const auto [before, after] = setup.run(2);
    REQUIRE(before.size() == 4);
    int frozen = 0;
    for (const auto& [name, value] : before) {
      const bool stays = name == "blocks.0.weight" || name == "head.bias";
      frozen += stays;
      INFO(name);
      CHECK(after.at(name).equal(value) == stays);
    }
    CHECK(frozen == 2);
  }
}

TEST_CASE(
    "groups have their own learning rate and weight decay, and the first matching group applies") {
  const auto plain = OptimizerSetup(kPlain + kSgd).run(1);
  const auto grouped = OptimizerSetup(
                           kPlain + kSgd +
                           "[[optimizer.group]]\nmatch = ['blocks.0.weight']\nlr = 0.5\n"
                           "[[optimizer.group]]\nmatch = ['blocks.0.*']\nlr = 0.0\n"
                           "[[optimizer.group]]\nmatch = ['head.weight']\nweight_decay = 0.25\n")
                           .run(1);
  for (const auto& [name, value] : plain.first) {
    INFO(name);
    REQUIRE(grouped.first.at(name).equal(value));
    const auto moved = plain.second.at(name) - value;  // -lr g
    at::Tensor expected = moved;
    if (name == "blocks.0.weight") expected = 4 * moved;
    if (name == "blocks.0.bias") expected = 0 * moved;
    if (name == "head.weight") expected = moved - 0.125 * 0.25 * value;
    CHECK(at::allclose(grouped.second.at(name) - value, expected, 1e-12, 1e-14));
  }
}

TEST_CASE("every optimizer uses the scheduled weight decay of each step") {
  for (const std::string optimizer : {"sgd", "adamw", "lion", "adafactor", "muon"}) {
    INFO(optimizer);
    const auto keys = [&](const std::string& more) {
      return kPlain + "[optimizer]\nname = '" + optimizer + "'\nlr = 0.125\n" + more;
    };
    // After the first of five steps the decay is 0.25 + (0.5 - 0.25) / 5 = 0.3.
    const auto rising =
        OptimizerSetup(keys("weight_decay = 0.5\n[weight_decay_schedule]\nstart = 0.25\n")).run(1);
    const auto fixed = OptimizerSetup(keys("weight_decay = 0.3\n")).run(1);
    const auto end = OptimizerSetup(keys("weight_decay = 0.5\n")).run(1);
    bool apart = false;
    for (const auto& [name, value] : fixed.second) {
      INFO(name);
      CHECK(at::allclose(rising.second.at(name), value, 1e-12, 1e-14));
      apart = apart || !at::allclose(rising.second.at(name), end.second.at(name), 1e-6, 1e-8);
    }
    CHECK(apart);
  }
}

TEST_CASE("weights start from a file, and initialise = false requires all of them in it") {
  const OptimizerSetup setup(kPlain + kSgd);
  const auto file = std::filesystem::temp_directory_path() /
                    ("perigee-weights-" + std::to_string(::getpid()) + ".safetensors");
  const auto write = [&](const std::set<std::string>& names) {
    std::vector<std::vector<double>> numbers;
    std::vector<std::string> written;
    std::vector<std::vector<int64_t>> shapes;
    for (const auto& item : setup.module->named_parameters()) {
      if (!names.empty() && !names.contains(item.key())) continue;
      written.push_back(item.key());
      shapes.push_back(item.value().sizes().vec());
      numbers.emplace_back(item.value().numel(), 0.5);
    }
    std::vector<checkpoint::TensorBytes> tensors;
    for (size_t i = 0; i < written.size(); ++i) {
      tensors.push_back(
          {written[i], graph::DType::float64, shapes[i], std::as_bytes(std::span(numbers[i]))});
    }
    checkpoint::write_safetensors(file.string(), tensors);
  };
  const auto first = [&](bool initialise, int64_t steps = 0) {
    auto from = setup;
    from.job.train.weights = file.string();
    from.job.train.initialise = initialise;
    return from.run(steps).first;
  };
  write({});
  for (const auto& [name, value] : first(false)) {
    INFO(name);
    CHECK(value.eq(0.5).all().item<bool>());
  }
  write({"head.weight"});
  const auto own = setup.run(0).first;
  for (const auto& [name, value] : first(true)) {
    INFO(name);
    CHECK(value.eq(0.5).all().item<bool>() == (name == "head.weight"));
    CHECK(value.equal(own.at(name)) == (name != "head.weight"));
  }
  CHECK_THROWS_WITH(first(false), Catch::Contains("train.weights holds the") &&
                                      Catch::Contains("are missing: ") &&
                                      Catch::Contains(file.string()));
  auto none = setup;
  none.job.train.initialise = false;
  CHECK_THROWS_WITH(none.run(1), Catch::Contains("weights need values") &&
                                     Catch::Contains("call load, or name job.train.weights"));
  std::filesystem::remove(file);
}

TEST_CASE("a step reads every sample of its global batch once for any ranks and microbatches") {
  OptimizerSetup setup(kPlain + kSgd);
  const auto source = perigee::source(setup.module, setup.batch, setup.forward);
  for (const int64_t ranks : {1, 2, 4}) {
    for (const int64_t micro : {8, 4, 2, 1}) {
      if (ranks * micro > 8) continue;
      INFO(ranks << " ranks, micro " << micro);
      auto job = setup.job;
      job.batch.micro = micro;
      auto recording = std::make_unique<RecordingSource>();
      auto* recorded = recording.get();
      recording->inner = data::open_synthetic(job).training;
      Trainer trainer{*setup.module, make_plan(source, Strategy(), job, {ranks}), job,
                      Ranks::threads(ranks), std::move(recording)};
      trainer.run();
      auto ranges = recorded->ranges;
      std::sort(ranges.begin(), ranges.end());
      int64_t step = 1, next = 0;
      for (const auto& [at, begin, length] : ranges) {
        CHECK(at == step);
        CHECK(begin == next);
        CHECK(length == micro);
        next += length;
        if (next == 8) {
          next = 0;
          ++step;
        }
      }
      CHECK(step == 6);
    }
  }
}

TEST_CASE("validation uses the current weights without a copy") {
  const OptimizerSetup setup(
      "[data]\nsynthetic = true\n[batch]\nglobal = 4\n[train]\nsteps = 5\n"
      "[lr_schedule]\nkind = 'constant'\nwarmup = 0\n[optimizer]\nlr = 0.01\n");
  auto job = setup.job;
  job.model.values["width"] = int64_t{600};
  job.model.values["layers"] = int64_t{3};
  auto built = make_model(job.model, 0);
  const auto source = perigee::source(built.model.module, setup.batch, built.model.forward);
  exec::install_allocator();
  Trainer trainer{*built.model.module, make_plan(source, Strategy(), job, {1}), job,
                  Ranks::threads(1), nullptr};
  double last = 0;
  for (int step = 1; step <= 3; ++step) {
    exec::reset_peak();
    const auto before = exec::memory_count();
    const double loss = trainer.evaluate(setup.batch).at("loss");
    const auto held = exec::memory_count().peak - before.arenas - before.others;
    CHECK(held < 4 * 600 * 8 * 16);  // activations; the weights are 600 x 600
    CHECK(loss != last);
    CHECK(trainer.step(setup.batch).loss == Approx(loss).epsilon(1e-14));
    last = loss;
  }
}
