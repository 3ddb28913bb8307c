// Every class of LibTorch's headers torch/nn/modules has a case, or is refused and listed.
#include <torch/nn.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "tests/capture/layers.h"

namespace fs = std::filesystem;

namespace perigee::test {
namespace {

using Names = std::set<std::string>;

// The module classes that headers declare: TORCH_MODULE(Name); or a holder written by hand.
Names classes_in(const fs::path& headers) {
  static const std::regex declared(
      R"(^(TORCH_MODULE(_IMPL)?\((\w+)|class (TORCH_API )?(\w+)\s*: public torch::nn::ModuleHolder<))");
  Names names;
  for (const auto& entry : fs::recursive_directory_iterator(headers)) {
    if (entry.path().extension() != ".h") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      std::smatch found;
      if (!std::regex_search(line, found, declared)) continue;
      names.insert(found[3].matched ? found[3].str() : found[5].str());
    }
  }
  return names;
}

// The classes of cases: the first word of a case's name, where its module holds one of that class.
Names classes_of(const std::vector<Layer>& layers) {
  Names names;
  for (const auto& layer : layers) {
    const auto name = layer.name.substr(0, layer.name.find(' '));
    if (!layer.module) continue;
    for (const auto& module : layer.module->modules()) {
      const auto& type = module->name();
      if (type == "torch::nn::" + name + "Impl" || type == "torch::nn::" + name) names.insert(name);
    }
  }
  return names;
}

Names compared() {
  Names names;
  for (const auto& group :
       {linear_layers, convolution_layers, norm_layers, pooling_layers, padding_layers,
        upsample_layers, activation_layers, container_layers, embedding_layers, recurrent_layers,
        transformer_layers, regression_losses, binary_losses, margin_losses, label_losses,
        random_layers}) {
    names.merge(classes_of(group()));
  }
  return names;
}

Names without(Names names, const Names& others) {
  for (const auto& other : others) names.erase(other);
  return names;
}

}  // namespace

TEST_CASE("every layer class of LibTorch's headers has a case or is refused") {
  const auto headers = fs::path(PERIGEE_TORCH_INCLUDE) / "torch/nn/modules";
  const auto classes = classes_in(headers);
  CHECK(classes.size() > 130);
  CHECK(classes.contains("Conv2d"));
  CHECK(classes.contains("Sequential"));
  const auto refused = classes_of(refused_layers());
  CHECK(refused == Names{"AdaptiveLogSoftmaxWithLoss", "CTCLoss"});
  CHECK(without(without(classes, compared()), refused) == Names{});
  CHECK(without(compared(), classes) == Names{});
}

TEST_CASE("a layer class without a case is detected") {
  const auto folder = fs::temp_directory_path() / ("perigee-headers-" + std::to_string(getpid()));
  fs::create_directories(folder / "container");
  std::ofstream(folder / "new.h") << "/// TORCH_MODULE(Example);\nTORCH_MODULE(Conv1d);\n"
                                     "TORCH_MODULE(Gained);\n";
  std::ofstream(folder / "container/box.h")
      << "class Box : public torch::nn::ModuleHolder<BoxImpl> {\n};\n";
  const auto found = without(classes_in(folder), compared());
  fs::remove_all(folder);
  CHECK(found == Names{"Box", "Gained"});
}

}  // namespace perigee::test
