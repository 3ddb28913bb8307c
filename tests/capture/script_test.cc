#include <caffe2/serialize/inline_container.h>
#include <torch/script.h>

#include <filesystem>

#include "base/error.h"
#include "tests/capture/support.h"

namespace perigee::test {
namespace {

// A two-layer network as a TorchScript file, with dropout in its second layer.
std::string write_script() {
  torch::jit::Module linear("__torch__.Dense");
  linear.register_parameter("weight", normal({4, 4}).requires_grad_(), false);
  linear.define("def forward(self, x):\n    return torch.tanh(torch.matmul(x, self.weight))\n");
  torch::jit::Module other("__torch__.Dense2");
  other.register_parameter("weight", normal({4, 4}).requires_grad_(), false);
  other.register_buffer("shift", normal({4}));
  other.define("def forward(self, x):\n    return torch.matmul(x, self.weight) + self.shift\n");
  torch::jit::Module net("__torch__.Net");
  net.register_module("first", linear);
  net.register_module("second", other);
  net.define(R"(
    def forward(self, x, y, scale: float = 2.0):
        h = self.first.forward(x)
        for i in range(2):
            h = torch.relu(h) * scale
        out = self.second.forward(h)
        return torch.mse_loss(out, y), out
  )");
  const auto path = std::filesystem::temp_directory_path() /
                    ("perigee_script_" + std::to_string(getpid()) + ".pt");
  net.save(path.string());
  return path.string();
}

}  // namespace

TEST_CASE("a captured TorchScript file equals its eager run") {
  const auto path = write_script();
  const auto model = load_script(path);
  std::filesystem::remove(path);
  const Batch batch{{"x", normal({3, 4})}, {"y", normal({3, 4})}};
  CHECK(model.module->named_parameters().size() == 2);
  check_parity(*model.module, batch, model.forward);
  const auto captured = capture(*model.module, batch, model.forward);
  std::map<std::string, std::string> scope_of;
  for (const auto& node : captured.graph.nodes) {
    if (node.phase == graph::Phase::forward) scope_of[node.op] = node.scope;
  }
  CHECK(scope_of.at("aten::tanh") == "first");
  CHECK(scope_of.at("aten::relu") == "");
  CHECK(scope_of.at("aten::add.Tensor") == "second");
  CHECK(captured.graph.scopes[1].type == "Dense");
}

TEST_CASE("a script needs a file and the arguments of its forward") {
  CHECK_THROWS_WITH(load_script("/nowhere.pt"), Catch::Contains("must be a TorchScript file"));
  const auto path = write_script();
  const auto model = load_script(path);
  std::filesystem::remove(path);
  CHECK_THROWS_WITH(capture(*model.module, {{"x", normal({3, 4})}}, model.forward),
                    Catch::Contains("takes \"y\""));
}

TEST_CASE("a damaged TorchScript file is refused") {
  using caffe2::serialize::PyTorchStreamReader;
  using caffe2::serialize::PyTorchStreamWriter;
  const auto path = write_script();
  PyTorchStreamReader reader(path);
  const auto names = reader.getAllRecords();
  REQUIRE(names.size() > 4);
  // Writes the archive with other bytes in one of its files.
  const auto with = [&](const std::string& changed, const std::string& bytes) {
    const auto damaged = path + ".damaged.pt";
    PyTorchStreamWriter writer(damaged);
    for (const auto& name : names) {
      if (name == ".data/serialization_id" || name == "version" || name == "byteorder") continue;
      const auto [data, size] = reader.getRecord(name);
      if (name == changed) {
        writer.writeRecord(name, bytes.data(), bytes.size());
      } else {
        writer.writeRecord(name, data.get(), size);
      }
    }
    writer.writeEndOfFile();
    return damaged;
  };
  CHECK_NOTHROW(load_script(with("", "")));
  for (const auto& name : names) {
    if (name.find("code/") == name.npos && !name.ends_with(".pkl")) continue;
    INFO(name);
    const auto damaged = with(name, "class Net(Module:\n  def forward(self) -> \n");
    if (name.ends_with(".debug_pkl")) continue;  // read only for the text of errors
    CHECK_THROWS_AS(load_script(damaged), Error);
  }
  torch::jit::Module empty("__torch__.Empty");
  empty.save(path);
  CHECK_THROWS_WITH(load_script(path), Catch::Contains("must have a method forward"));
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".damaged.pt");
}

}  // namespace perigee::test
