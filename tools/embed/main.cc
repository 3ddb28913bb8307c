// Embeds Perigee: trains a torch::nn module on two ranks of this process. Uses each call of the C++
// interface once and checks its result.
#include <perigee/perigee.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <iostream>

namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};

  explicit Net(int64_t width) {
    first = register_module("first", torch::nn::Linear(2, width));
    second = register_module("second", torch::nn::Linear(width, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
};

// y = x0 * x1. Samples are a pure function of (step, sample), so that a run can be resumed.
struct Products : perigee::DataSource {
  perigee::Batch at(int64_t step, perigee::Range samples) override {
    auto x = torch::empty({samples.length, 2});
    for (int64_t i = 0; i < samples.length; ++i) {
      const auto n = static_cast<double>(step * 64 + samples.begin + i);
      x[i][0] = std::sin(12.9898 * n);
      x[i][1] = std::cos(78.233 * n);
    }
    return {{"x", x}, {"y", x.prod(1, true)}};
  }
};

void check(bool good, const char* what) {
  if (good) return;
  std::cerr << "embedder: " << what << "\n";
  std::exit(1);
}

}  // namespace

int main() try {
  namespace fs = std::filesystem;
  const auto folder = fs::temp_directory_path() / "perigee-embedder";
  fs::remove_all(folder);
  const fs::path here = EMBED_FOLDER;

  auto net = perigee::deferred<Net>(32);  // without memory; a module with memory works, too
  const perigee::Batch example = {{"x", torch::zeros({1, 2})}, {"y", torch::zeros({1, 1})}};
  const auto forward = [net](const perigee::Batch& batch) {
    const auto y = net->forward(batch.at("x"));
    return perigee::Result{torch::mse_loss(y, batch.at("y")), {{"prediction", y}}};
  };
  const auto captured = perigee::capture(*net, example, forward);
  std::cout << captured.graph.nodes.size() << " ops in the graph of one step\n";
  auto source = perigee::source(net, example, forward);

  const auto job = perigee::Job::load(here / "job.toml");
  const auto strategy = perigee::Strategy::file(here / "strategy.lua");
  const auto plan = perigee::make_plan(source, strategy, job, {2});

  perigee::Trainer trainer{*net, plan, job, perigee::Ranks::threads(2),
                           std::make_unique<Products>()};
  double first = 0, last = 0;
  trainer.on_step([&](const perigee::Report& report) {
    (report.step == 1 ? first : last) = report.loss;
    return report.step == 200 ? perigee::Control::stop : perigee::Control::go;
  });
  trainer.run();
  check(trainer.last_step() == 200, "Control::stop must end the run");
  check(last < 0.2 * first, "the loss must fall");
  std::cout << "loss " << first << " -> " << last << "\n";

  Products products;
  const auto batch = products.at(1000, {0, 64});
  const auto before = trainer.evaluate(batch).at("loss");
  trainer.save(folder.string());
  trainer.step(products.at(201, {0, 64}));
  trainer.load(folder.string());
  check(trainer.last_step() == 200, "load must restore the step");
  check(trainer.evaluate(batch).at("loss") == before, "load must restore the weights");

  const auto y = trainer.forward(batch).at("prediction");
  trainer.copy_to(*net);
  check(torch::allclose(net->forward(batch.at("x")), y, 1e-5, 1e-6),
        "the module's loss must equal the trainer's");

  // The same plan on one rank, through the environment that torchrun, Slurm or mpirun would set.
  const auto one_rank_plan = perigee::make_plan(source, perigee::Strategy(), job, {1});
  perigee::Trainer single{*net, one_rank_plan, job, perigee::Ranks::from_environment(), nullptr};
  single.load(folder.string());
  check(std::abs(single.evaluate(batch).at("loss") - before) < 1e-5,
        "one rank must have the loss of two ranks");
  fs::remove_all(folder);
  std::cout << "done\n";
} catch (const std::exception& error) {
  std::cerr << "embedder: " << error.what() << "\n";
  return 1;
}
