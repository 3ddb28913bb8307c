// Built-in models take packed documents from data.tensors.
#include <cmath>
#include <map>

#include "checkpoint/safetensors.h"
#include "data/data.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch_test.h"
#include "train/task/open_model.h"
#include "train/trainer.h"

using namespace perigee;
using namespace perigee::test;

namespace {

constexpr int64_t kSamples = 8, kSequence = 6;

// Writes samples of two documents with these tensors, and labels that are ignored between them.
void write(const Folder& folder, const std::vector<std::string>& names) {
  std::map<std::string, std::vector<int64_t>> values;
  for (int64_t i = 0; i < kSamples * kSequence; ++i) {
    const auto at = i % kSequence, first = 2 + i / kSequence % 3;  // tokens of the first document
    values["tokens"].push_back(i * 7 % 11);
    values["labels"].push_back(at + 1 == first || at + 1 == kSequence ? -100 : (i + 1) * 7 % 11);
    values["documents"].push_back(at < first ? 0 : 1);
    values["positions"].push_back(at < first ? at : at - first);
  }
  std::vector<checkpoint::TensorBytes> tensors;
  for (const auto& name : names) {
    tensors.push_back(
        {name, graph::DType::int64, {kSamples, kSequence}, std::as_bytes(std::span(values[name]))});
  }
  checkpoint::write_safetensors(folder.at("data.safetensors"), tensors);
}

train::Task task(const Folder& folder, const std::string& kind) {
  train::Task task;
  task.job = Job::parse(
      "name = 'packed'\nseed = 1\n[model]\ndtype = 'float64'\nkind = '" + kind +
          "'\nlayers = 2\nwidth = 8\nheads = 2\nvocab = 11\n[data]\ntensors = ['" +
          folder.at("data.safetensors") +
          "']\nvalidation = 0.0\nsequence = " + std::to_string(kSequence) +
          "\n[batch]\nglobal = 4\n[cluster]\ndevice = 'cpu'\n[train]\nsteps = 3\n"
          "validate_every = 0\n",
      "packed.toml");
  task.job = train::completed(task);
  return task;
}

// Returns the losses of three steps.
std::vector<double> losses(const train::Task& task, int64_t ranks) {
  const auto source = train::open_model(task);
  auto data = data::open_data(task.job);
  Trainer trainer{source->module(), make_plan(source, {}, task.job, {ranks}), task.job,
                  Ranks::threads(ranks), nullptr};
  std::vector<double> result;
  for (int64_t step = 1; step <= 3; ++step) {
    result.push_back(trainer.step(data.training->at(step, {0, 4})).loss);
  }
  return result;
}

}  // namespace

TEST_CASE("documents and positions of data.tensors reach the built-in models") {
  for (const char* kind : {"gpt", "llama"}) {
    INFO(kind);
    const Folder folder;
    write(folder, {"tokens", "labels", "documents", "positions"});
    const auto packed = task(folder, kind);
    const auto source = train::open_model(packed);
    const auto& graph = source->at(4).graph;
    REQUIRE(graph.find_input("documents"));
    REQUIRE(graph.find_input("positions"));
    int attentions = 0;
    for (const auto& node : graph.nodes) {
      if (!node.op.starts_with("perigee::attention")) continue;
      ++attentions;
      CHECK(node.get<graph::ValueId>("documents", {}) == graph.find_input("documents")->value);
      CHECK(node.get<graph::ValueId>("key_documents", {}) == graph.find_input("documents")->value);
    }
    CHECK(attentions >= 2);  // of two blocks
    const auto one = losses(packed, 1), two = losses(packed, 2);
    for (size_t k = 0; k < one.size(); ++k) CHECK(std::abs(one[k] - two[k]) < 1e-10);
    write(folder, {"tokens", "labels"});
    const auto whole = task(folder, kind);
    CHECK_FALSE(train::open_model(whole)->at(4).graph.find_input("documents"));
    CHECK(std::abs(losses(whole, 1)[0] - one[0]) > 1e-8);
    write(folder, {"tokens", "labels", "documents"});
    CHECK(error_of([&] { train::open_model(task(folder, kind)); }) ==
          "[data] data.tensors with \"documents\" must have \"positions\" (of each token in its "
          "document), but has none");
  }
}
