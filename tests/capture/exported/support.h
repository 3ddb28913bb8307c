// Archives of torch.export for tests: those of tests/capture/exported/fixtures, which PyTorch wrote
// (make_fixtures.py), and small ones made here.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "capture/exported/load.h"
#include "tests/support/torch_test.h"

namespace perigee::test {

// A model that PyTorch exported, with its numbers there.
struct Fixture {
  std::string name, file;
  nlohmann::json expected;  // "batch", "loss", "gradients", "float32" (see make_fixtures.py)
  // Largest relative difference of sums in another order: 1e-10, 1e-6 where the model computes in
  // float32, and 2e-2 where it does in bfloat16.
  double tolerance() const;
  // "float64", "float32" or "bfloat16".
  std::string computes_in() const;
  // Returns the batch that PyTorch used, or its first samples.
  Batch batch(int64_t samples = 0) const;
};

const std::vector<Fixture>& fixtures();
const Fixture& fixture(const std::string& name);

// Returns "" where loss and gradients are PyTorch's, else the first difference. `got` has "loss"
// and "gradient:NAME" (exec::evaluate); `expected` is a fixture's, or one of its "halves".
std::string compare(const std::map<std::string, at::Tensor>& got, const nlohmann::json& expected,
                    double tolerance);

// An archive as PyTorch writes it: by default forward(x [s, 4], y [s, 2]) returns the mean squared
// error of a linear layer "layer" with bias, in float64.
class ArchiveMaker {
 public:
  ArchiveMaker();

  nlohmann::json program;  // schema.ExportedProgram
  std::map<std::string, at::Tensor> weights, constants;
  std::map<std::string, std::vector<int64_t>> stated_sizes;  // where not those of the tensor

  nlohmann::json& graph() { return program["graph_module"]["graph"]; }
  nlohmann::json& nodes() { return graph()["nodes"]; }
  nlohmann::json& signature() { return program["graph_module"]["signature"]; }

  // Declares a value of the graph; a size -1 is the samples.
  void value(const std::string& name, const std::vector<int64_t>& sizes, int dtype = 8);
  // Replaces the result: {"loss", "h"} is a dict, one name without key a tensor.
  void results(const std::vector<std::pair<std::string, std::string>>& of);
  // Writes the archive. Returns the path.
  std::string write(const std::string& path) const;
};

// Loads the archive.
Model load(const ArchiveMaker& archive);
// Returns a batch of the default archive.
Batch samples(int64_t count = 3);

using Inputs = std::vector<std::pair<std::string, nlohmann::json>>;

// Returns a node of the graph; outputs are tensors.
nlohmann::json node(const std::string& target, const Inputs& inputs,
                    const std::vector<std::string>& outputs, const std::string& module = "");
// Returns a node that calls an op of ATen ("add.Tensor").
nlohmann::json call(const std::string& op, const Inputs& inputs, const std::string& output);
// Returns arguments.
nlohmann::json tensor(const std::string& name);
nlohmann::json tensors(const std::vector<std::string>& names);
nlohmann::json size(const std::string& name);

}  // namespace perigee::test
