#include "tests/parity/support/documents.h"

#include <fmt/format.h>

#include <map>
#include <numeric>

#include "capture/models/models.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

BuiltInModel model_of(const std::string& keys, int64_t sequence, Packing packing) {
  const auto job = job::Job::parse(
      "name = 'test'\n[model]\ndtype = 'float64'\n" + keys +
          "\n[data]\nsynthetic = true\nsequence = " + std::to_string(sequence) +
          "\n[batch]\nglobal = 4\n[train]\nsteps = 1\n",
      "test.toml");
  return make_model(job.model, sequence, packing);
}

// Returns the lengths of sample `row`: rotated, the last one stays.
std::vector<int64_t> lengths_of(std::vector<int64_t> lengths, int64_t row) {
  const auto documents = std::ssize(lengths) - 1;
  std::rotate(lengths.begin(), lengths.begin() + row % documents, lengths.end() - 1);
  return lengths;
}

}  // namespace

Packed packed(const std::string& keys, int64_t rows, std::vector<int64_t> lengths,
              int64_t microbatches) {
  const auto sequence = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const auto built = model_of(keys, sequence, Packing::documents);
  Batch batch, piece;
  for (const auto& field : built.batch) {
    batch[field.name] = at::randint(0, field.classes, {rows, sequence}, at::kLong);
  }
  batch["labels"].masked_fill_(at::rand({rows, sequence}) > 0.8, -100);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t at = 0, number = 0;
    const auto own = lengths_of(lengths, row);
    for (const auto length : own) {
      batch["documents"][row].narrow(0, at, length).fill_(number);
      batch["positions"][row].narrow(0, at, length).copy_(at::arange(length));
      if (++number == std::ssize(own)) batch["labels"][row].narrow(0, at, length).fill_(-100);
      at += length;
    }
  }
  for (const auto& [name, tensor] : batch) {
    piece[name] = tensor.narrow(0, 0, rows / microbatches);
  }
  const auto captured = capture(*built.model.module, piece, built.model.forward);
  Packed result{{captured.graph, exec::evaluate(captured.init, {}, {.seed = 1})}, keys, lengths};
  result.given.inputs.insert(batch.begin(), batch.end());
  return result;
}

exec::Tensors apart(const Packed& model) {
  const auto& whole = model.given.inputs;
  std::map<int64_t, graph::Graph> graphs;  // by length
  exec::Tensors sums;
  int64_t labels = 0;
  for (int64_t row = 0; row < whole.at("tokens").size(0); ++row) {
    int64_t at = 0;
    auto lengths = lengths_of(model.lengths, row);
    lengths.pop_back();
    for (const auto length : lengths) {
      auto inputs = whole;
      for (const auto* name : {"tokens", "labels"}) {
        inputs[name] = whole.at(name).narrow(0, row, 1).narrow(1, at, length).contiguous();
      }
      at += length;
      const auto counted = inputs["labels"].ge(0).sum().item<int64_t>();
      if (counted == 0) continue;
      if (!graphs.contains(length)) {
        const auto built = model_of(model.keys, length, Packing::none);
        graphs[length] = capture(*built.model.module,
                                 {{"tokens", inputs["tokens"]}, {"labels", inputs["labels"]}},
                                 built.model.forward)
                             .graph;
      }
      labels += counted;
      for (const auto& [name, tensor] : exec::evaluate(graphs[length], inputs)) {
        if (name != "loss" && !name.starts_with("gradient:")) continue;
        auto& sum = sums[name];
        sum = sum.defined() ? sum + tensor * counted : tensor * counted;
      }
    }
  }
  for (auto& [name, sum] : sums) sum = sum / labels;
  return sums;
}

std::string compare_packed(const Packed& model, const exec::Tensors& inputs,
                           const exec::Tensors& wanted, double tolerance) {
  const auto found = exec::evaluate(model.given.graph, inputs);
  for (const auto& [name, tensor] : wanted) {
    const auto& own = found.at(name);
    const double distance = (own - tensor).abs().max().item<double>();
    if (!(distance <= tolerance)) return fmt::format("{} differs by {}", name, distance);
  }
  return "";
}

}  // namespace perigee::parity
