// Model inputs without a batch dim: the same for all samples.
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "base/error.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

using namespace perigee;

namespace {

// Scores of each sample against all rows of a table.
class Scores : public torch::nn::Module {
 public:
  Scores() {
    torch::manual_seed(5);
    linear_ = register_module("linear", torch::nn::Linear(4, 4));
    to(torch::kDouble);
  }
  // x [b, 4], table [t, 4] -> the mean of [b, t] squares
  Result run(const Batch& batch) {
    const auto scores = torch::mm(linear_->forward(batch.at("x")), batch.at("table").t());
    return {(scores * scores).mean()};
  }

 private:
  torch::nn::Linear linear_{nullptr};
};

struct Samples : DataSource {
  explicit Samples(at::Tensor table, bool batched) : table(std::move(table)), batched(batched) {}
  Batch at(int64_t step, Range samples) override {
    const auto first = double(8 * step + samples.begin);
    const auto x = torch::arange(0, 4 * samples.length, torch::kDouble).add(4 * first).sin();
    return {{"x", x.reshape({samples.length, 4})},
            {"table", batched ? table.narrow(0, samples.begin, samples.length) : table}};
  }
  at::Tensor table;
  bool batched;
};

struct Setup {
  // `rows`: of the table. `batched`: its rows are treated as samples.
  Setup(int64_t rows, bool batched) : batched(batched) {
    table = torch::arange(0, 4 * rows, torch::kDouble).cos().reshape({rows, 4});
    if (!batched) names = {"x"};
    net = std::make_shared<Scores>();
    source = perigee::source(
        net, {{"x", torch::zeros({1, 4}, torch::kDouble)}, {"table", table}},
        [net = net](const Batch& batch) { return net->run(batch); }, names);
  }

  Job job(int64_t micro) const {
    auto job = Job::parse(
        "[model]\nkind = 'mlp'\ndtype = 'float64'\n[batch]\nglobal = 8\n[train]\nsteps = 3\n"
        "validate_every = 0\n[cluster]\ndevice = 'cpu'\n",
        "test.toml");
    job.batch.micro = micro;
    job.data.batched = names;
    return job;
  }

  // Returns the losses of three steps, and the weight after them.
  std::pair<std::vector<double>, at::Tensor> run(int64_t ranks, int64_t micro,
                                                 const std::string& more = "") const {
    const auto strategy = Strategy::data(
        fmt::format(R"([["parallel_mode", [["data", {}]]]{}])", ranks, more));
    const auto here = job(micro);
    Trainer trainer{*net, make_plan(source, strategy, here, {ranks}), here, Ranks::threads(ranks),
                    std::make_unique<Samples>(table, batched)};
    std::vector<double> losses;
    trainer.on_step([&](const Report& report) {
      losses.push_back(report.loss);
      return Control::go;
    });
    trainer.run();
    Scores trained;
    trainer.copy_to(trained);
    return {losses, trained.named_parameters()["linear.weight"].detach()};
  }

  bool batched;
  at::Tensor table;
  std::vector<std::string> names;
  std::shared_ptr<Scores> net;
  std::shared_ptr<const ModelSource> source;
};

void check_equal(const std::pair<std::vector<double>, at::Tensor>& a,
                 const std::pair<std::vector<double>, at::Tensor>& b) {
  REQUIRE(a.first.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(std::abs(a.first[i] - b.first[i]) < 1e-10);
  CHECK(at::allclose(a.second, b.second, 1e-10, 1e-10));
}

}  // namespace

TEST_CASE("an input without a batch dim is replicated over all ranks and microbatches") {
  for (const int64_t rows : {5, 8}) {  // unequal and equal to the batch size
    CAPTURE(rows);
    const Setup setup(rows, false);
    const auto one = setup.run(1, 8);
    CHECK(one.first[0] != one.first[1]);
    check_equal(one, setup.run(1, 2));
    check_equal(one, setup.run(2, 4));
    check_equal(one, setup.run(2, 1));
    check_equal(one, setup.run(4, 1));
    check_equal(one, setup.run(2, 2, R"(, "fsdp")"));
  }
}

TEST_CASE("an input treated as a batch is split over microbatches, which changes the loss") {
  const Setup shared(8, false), cut(8, true);
  check_equal(shared.run(1, 8), cut.run(1, 8));  // one microbatch has all rows
  for (const int64_t ranks : {1, 2}) {
    CHECK_THROWS_WITH(cut.run(ranks, 2),
                      Catch::Contains("must be a mean or a sum over samples, but the proof ends at "
                                      "aten::mm in scope"));
  }
}

TEST_CASE("inputs without a batch dim are passed to a step unchanged") {
  const Setup setup(5, false);
  const auto one = setup.run(1, 8);
  const auto job = setup.job(2);
  Trainer trainer{*setup.net, make_plan(setup.source, Strategy::data("[]"), job, {2}), job,
                  Ranks::threads(2), nullptr};
  Samples samples(setup.table, false);
  const auto batch = samples.at(1, {0, 8});
  const auto loss = trainer.evaluate(batch).at("loss");
  CHECK(std::abs(loss - one.first[0]) < 1e-10);
  CHECK(std::abs(trainer.step(batch).loss - one.first[0]) < 1e-10);
}

TEST_CASE("inputs without a batch dim are marked in the graph and change its hash") {
  const Setup setup(8, false), cut(8, true);
  const auto& graph = setup.source->at(4).graph;
  const auto& other = cut.source->at(8).graph;
  CHECK_THAT(graph::print(graph),
             Catch::Contains("input data %2: float64[8, 4] = table unbatched"));
  CHECK(graph::parse(graph::print(graph)) == graph);
  CHECK(graph::structural_hash(setup.source->at(8).graph) != graph::structural_hash(other));
  CHECK_THAT(graph::difference(setup.source->at(8).graph, other),
             Catch::Contains("data table: float64[8, 4] unbatched became float64[8, 4]"));
}

TEST_CASE("a source and a job must agree on the inputs with a batch dim") {
  const Setup setup(5, false);
  auto job = setup.job(8);
  job.data.batched = {};
  CHECK_THROWS_WITH(make_plan(setup.source, Strategy::data("[]"), job, {1}),
                    Catch::Contains("must agree, but \"table\" is a batch for the job alone"));
  CHECK_THROWS_WITH(
      perigee::source(setup.net, {{"x", torch::zeros({1, 4})}, {"table", setup.table}},
                      [](const Batch&) { return Result(); }, {"tabel"}),
      Catch::Contains("data.batched names inputs of the model (table, x), but got \"tabel\", did "
                      "you mean \"table\"?"));
}
