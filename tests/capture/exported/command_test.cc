// An archive of torch.export through the command: check, graph, plan and train.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "checkpoint/safetensors.h"
#include "tests/capture/exported/support.h"
#include "tests/capture/folder_command.h"
#include "tests/capture/support.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace perigee::test {
namespace {

constexpr const char* kJob = R"(
strategy = "strategy.lua"
[model]
kind = "exported"
file = "model.pt2"
[data]
tensors = ["samples.safetensors"]
[batch]
global = 8
micro = 2
[optimizer]
lr = 0.2
[train]
steps = 8
validate_every = 0
checkpoint_every = 0
)";

// Trains into the folder "run" and returns the losses.
std::vector<double> run_job(const Folder& folder, const std::string& arguments) {
  const auto [status, text] = test::run_in(folder.path(), arguments);
  INFO(text);
  CHECK(status == 0);
  return test::losses_of(folder.at("run"));
}

// A folder with a job, a small archive and samples of its inputs x and y (or another name).
class Example {
 public:
  explicit Example(const std::string& second = "y") {
    folder_.add("job.toml", kJob);
    folder_.add("strategy.lua", "return { { 'parallel_mode', {} } }");
    ArchiveMaker().write(folder_.at("model.pt2"));
    static const auto x = normal({64, 4}), y = x.narrow(1, 0, 2).contiguous();
    const auto bytes = [](const at::Tensor& t) {
      return std::span(static_cast<const std::byte*>(t.data_ptr()), t.nbytes());
    };
    const std::vector<checkpoint::TensorBytes> tensors = {
        {"x", graph::DType::float64, x.sizes().vec(), bytes(x)},
        {second, graph::DType::float64, y.sizes().vec(), bytes(y)}};
    checkpoint::write_safetensors(folder_.at("samples.safetensors"), tensors);
  }

  std::pair<int, std::string> run(const std::string& arguments) const {
    return test::run_in(folder_.path(), arguments);
  }

  // Trains and returns the losses.
  std::vector<double> losses(const std::string& arguments) const {
    return run_job(folder_, "train job.toml --overwrite --set train.output=run " + arguments);
  }

 private:
  Folder folder_;
};

// A folder with a fixture's archive, its batch as samples, and a job of steps on the whole batch.
class Trained {
 public:
  explicit Trained(const Fixture& fixture) {
    fs::copy(fixture.file, folder_.at("model.pt2"));
    const auto batch = fixture.batch();
    std::vector<checkpoint::TensorBytes> tensors;
    for (const auto& [name, tensor] : batch) {
      tensors.push_back(
          {name,
           tensor.is_floating_point() ? graph::DType::float64 : graph::DType::int64,
           tensor.sizes().vec(),
           {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
    }
    checkpoint::write_safetensors(folder_.at("samples.safetensors"), tensors);
    folder_.add("job.toml", R"(
strategy = "strategy.lua"
[model]
kind = "exported"
file = "model.pt2"
[data]
tensors = ["samples.safetensors"]
sampler = "sequential"
validation = 0.0
[batch]
global = 4
[optimizer]
name = "sgd"
lr = 0.1
[train]
steps = 3
validate_every = 0
checkpoint_every = 0
output = "run"
)");
  }

  // Trains with the methods and returns the losses.
  std::vector<double> losses(const std::string& methods, const std::string& arguments) const {
    folder_.add("strategy.lua", "return { " + methods + " }");
    return run_job(folder_, "train job.toml --overwrite " + arguments);
  }

 private:
  Folder folder_;
};

}  // namespace

TEST_CASE("exported models train under plans with microbatches as on one rank") {
  const std::string data = "{ 'parallel_mode', {} }", two = " --nproc 2 --set batch.micro=1";
  for (const std::string name : {"bert", "llama"}) {
    const auto& given = fixture(name);
    const Trained trained(given);
    const auto one = trained.losses(data, "--nproc 1 --set batch.micro=4");
    REQUIRE(one.size() == 3);
    CHECK(one.back() < one.front());
    const auto check = [&](const std::string& methods, const std::string& arguments) {
      INFO(name << ": " << methods);
      const auto ranks = trained.losses(methods, arguments);
      REQUIRE(ranks.size() == 3);
      for (size_t i = 0; i < 3; ++i) CHECK(ranks[i] == Approx(one[i]).epsilon(given.tolerance()));
    };
    check(data, two);
    check(data + ", { 'fsdp', {} }", two);
    check("{ 'parallel_mode', { { 'tensor', 2 } } }, { 'tensor_parallel', { planned = true } }",
          two);
    check("{ 'parallel_mode', { { 'pipe', 2 } } }, { 'pipeline_parallel', { schedule = '1f1b' } }",
          two);
  }
}

TEST_CASE("the page of exported models lists the models that are tried") {
  std::ifstream file("runtime/exported.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const auto& given : fixtures()) {
    INFO(given.name);
    CHECK_THAT(page, Contains("| `" + given.name + "` |"));
  }
}

TEST_CASE("an archive of torch.export is checked, shown and trained by the command") {
  const Example example;
  const auto [checked, check] = example.run("check strategy.lua job.toml");
  INFO(check);
  CHECK(checked == 0);
  CHECK_THAT(check, Contains("no mistakes found") && !Contains("not opened"));
  const auto [shown, graph] = example.run("graph job.toml");
  INFO(graph);
  CHECK(shown == 0);
  CHECK_THAT(graph, Contains("layer.weight") && Contains("Linear"));
  const auto one = example.losses(""), two = example.losses("--nproc 2");
  REQUIRE(one.size() == 8);
  REQUIRE(two.size() == 8);
  CHECK(one.back() < one.front());
  for (size_t i = 0; i < one.size(); ++i) CHECK(one[i] == Approx(two[i]).epsilon(1e-10));
}

TEST_CASE("an archive's inputs are fields of the data by name, or by order") {
  const Example example("z");
  const auto [status, text] = example.run("plan job.toml");
  CHECK(status == 2);
  CHECK_THAT(text, Contains("takes \"y\" (x, y), but the batch has none of that name"));
  CHECK(example.losses("--set model.unpack=sequence") == Example().losses(""));
}

}  // namespace perigee::test
