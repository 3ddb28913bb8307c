// A TorchScript file through the command: graph, plan and train.
#include <torch/script.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/safetensors.h"
#include "tests/capture/folder_command.h"
#include "tests/capture/support.h"

namespace fs = std::filesystem;

namespace perigee::test {
namespace {

constexpr const char* kJob = R"(
name = "script"
[model]
kind = "torchscript"
file = "net.pt"
[data]
tensors = ["samples.safetensors"]
validation = 0.25
[batch]
global = 8
micro = 2
[optimizer]
lr = 0.02
weight_decay = 0.0
[train]
steps = 12
validate_every = 0
checkpoint_every = 0
)";

// A folder with a job, a TorchScript file in float64 and samples of its inputs x and y.
class Example {
 public:
  Example() : folder_(fs::temp_directory_path() / ("perigee-script-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    std::ofstream(folder_ / "job.toml") << kJob;
    torch::jit::Module dense("__torch__.Dense");
    dense.register_parameter("weight", normal({4, 8}), false);
    dense.define("def forward(self, x):\n    return torch.tanh(torch.matmul(x, self.weight))\n");
    torch::jit::Module net("__torch__.Net");
    net.register_module("first", dense);
    net.register_parameter("head", normal({8, 2}), false);
    net.define(R"(
      def forward(self, x, y):
          out = torch.matmul(self.first.forward(x), self.head)
          return torch.mse_loss(out, y), out
    )");
    for (auto parameter : net.parameters()) parameter.requires_grad_();
    net.save((folder_ / "net.pt").string());
    write_samples("x", 4);
  }
  ~Example() { fs::remove_all(folder_); }

  // Writes 64 samples of y [2] and the other input.
  void write_samples(const std::string& input, int64_t width) const {
    const auto x = normal({64, width}), y = normal({64, 2});
    const auto bytes = [](const at::Tensor& t) {
      return std::span(static_cast<const std::byte*>(t.data_ptr()), t.nbytes());
    };
    const std::vector<checkpoint::TensorBytes> tensors = {
        {input, graph::DType::float64, x.sizes().vec(), bytes(x)},
        {"y", graph::DType::float64, y.sizes().vec(), bytes(y)}};
    checkpoint::write_safetensors((folder_ / "samples.safetensors").string(), tensors);
  }

  // Renames the samples' other input.
  void rename_input(const std::string& name) const {
    const auto path = (folder_ / "samples.safetensors").string(), renamed = path + ".renamed";
    const checkpoint::SafetensorsFile file(path);
    auto tensors = file.tensors();
    for (auto& tensor : tensors) {
      if (tensor.name != "y") tensor.name = name;
    }
    checkpoint::write_safetensors(renamed, tensors);
    fs::rename(renamed, path);
  }

  std::pair<int, std::string> run(const std::string& arguments) const {
    return test::run_in(folder_.string(), arguments);
  }
  std::vector<double> losses(const std::string& output) const {
    return test::losses_of((folder_ / output).string());
  }

 private:
  fs::path folder_;
};

}  // namespace

TEST_CASE("a TorchScript file is shown, planned and trained by the command") {
  const Example example;
  const auto [shown, graph] = example.run("graph job.toml");
  INFO(graph);
  CHECK(shown == 0);
  CHECK(graph.find("first.weight") != graph.npos);
  CHECK(graph.find("Dense") != graph.npos);

  const auto [planned, plan] = example.run("plan job.toml --nproc 2 --explain");
  INFO(plan);
  CHECK(planned == 0);

  const auto [one, one_text] = example.run("train job.toml --set train.output=one");
  INFO(one_text);
  CHECK(one == 0);
  const auto [two, two_text] = example.run("train job.toml --nproc 2 --set train.output=two");
  INFO(two_text);
  CHECK(two == 0);
  const auto losses = example.losses("one"), shared = example.losses("two");
  REQUIRE(losses.size() == 12);
  REQUIRE(shared.size() == 12);
  CHECK(losses.back() < losses.front());
  for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == Approx(shared[i]).epsilon(1e-10));
}

TEST_CASE("a TorchScript file receives the fields of a batch in order") {
  const Example example;
  const auto losses = [&](const std::string& more) {
    const auto [status,
                text] = example.run("train job.toml --overwrite --set train.output=one" + more);
    INFO(text);
    CHECK(status == 0);
    return example.losses("one");
  };
  const auto named = losses("");
  example.rename_input("pixels");
  REQUIRE(named.size() == 12);
  CHECK(losses(" --set model.unpack=sequence") == named);
  const auto two = losses(" --set model.unpack=sequence --nproc 2");
  REQUIRE(two.size() == 12);
  for (size_t i = 0; i < two.size(); ++i) CHECK(two[i] == Approx(named[i]).epsilon(1e-10));
}

TEST_CASE("a missing input of a TorchScript file is an error that names it") {
  const Example example;
  example.write_samples("pixels", 4);
  const auto [status, text] = example.run("plan job.toml");
  CHECK(status == 2);
  CHECK_THAT(text, Catch::Contains("takes \"x\", but the batch has none of that name"));
}

}  // namespace perigee::test
