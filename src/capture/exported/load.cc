#include "capture/exported/load.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "capture/exported/archive.h"
#include "capture/exported/outcome.h"
#include "capture/exported/reader.h"
#include "capture/exported/replay/replay.h"
#include "capture/exported/samples/generalise.h"

namespace perigee {
namespace {

using exported::Archive;
using exported::Input;
using exported::Program;

// The archive's parameters and buffers in modules of their names and types.
class ExportedModule final : public torch::nn::Module {
 public:
  explicit ExportedModule(const std::string& type) : torch::nn::Module(type) {}

  // Adds the tensor of a dotted name below this module, whose own path is `path`.
  void add(const std::string& name, const exported::StoredTensor& stored, const Program& program,
           const std::string& path) {
    const auto dot = name.find('.');
    if (dot == name.npos) {
      if (stored.parameter) {
        register_parameter(name, stored.tensor, stored.requires_grad);
      } else {
        register_buffer(name, stored.tensor);
      }
      return;
    }
    const auto first = name.substr(0, dot);
    const auto inner = path.empty() ? first : path + "." + first;
    auto& child = children_[first];
    if (!child) {
      const auto type = program.modules.find(inner);
      child = register_module(first, std::make_shared<ExportedModule>(
                                         type == program.modules.end() ? "Module" : type->second));
    }
    child->add(name.substr(dot + 1), stored, program, inner);
  }

 private:
  std::map<std::string, std::shared_ptr<ExportedModule>> children_;
};

std::shared_ptr<ExportedModule> module_of(const Archive& archive, const Program& program) {
  const auto root = program.modules.find("");
  auto module = std::make_shared<ExportedModule>(root == program.modules.end() ? "Exported"
                                                                               : root->second);
  // The graph's tensors come first, so that a tied one has the name that the graph gives it.
  std::set<std::string> added;
  for (const auto& input : program.inputs) {
    if (input.kind != Input::Kind::parameter && input.kind != Input::Kind::buffer) continue;
    const auto& all = archive.weights.contains(input.name) ? archive.weights : archive.constants;
    if (added.insert(input.name).second) module->add(input.name, all.at(input.name), program, "");
  }
  for (const auto& [name, stored] : archive.weights) {
    if (!added.contains(name)) module->add(name, stored, program, "");
  }
  return module;
}

class Replay {
 public:
  Replay(std::string path, const Archive& archive, Program program)
      : path_(std::move(path)), program_(std::move(program)) {
    module_ = module_of(archive, program_);
    for (const auto& input : program_.inputs) {
      const auto find = [&](const auto& all) { return all.at(input.name).tensor; };
      const bool of_weights = archive.weights.contains(input.name);
      if (input.kind == Input::Kind::batch) {
        given_.emplace_back();
      } else {
        given_.push_back(of_weights ? find(archive.weights) : find(archive.constants));
      }
    }
  }

  // Makes the program of an export with a fixed number of samples one for any number, where that
  // is proven.
  void generalise() {
    if (exported::fixed_samples(program_) == 0) return;
    auto found = exported::generalise(
        program_, [&](const Program& program, int64_t samples, const exported::BeforeCall& before) {
          return capture_evaluation(*module_, batch_of(samples),
                                    [&](const Batch& batch) { return run(program, batch, before); })
              .graph;
        });
    if (found.program) program_ = std::move(*found.program);
    ended_ = std::move(found.ended);
  }

  std::shared_ptr<torch::nn::Module> module() const { return module_; }

  std::vector<std::string> inputs() const {
    std::vector<std::string> names;
    for (const auto& input : program_.inputs) {
      if (input.kind == Input::Kind::batch) names.push_back(input.name);
    }
    return names;
  }

  Result operator()(const Batch& batch) const {
    int64_t samples = -1;
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      if (program_.inputs[i].kind == Input::Kind::batch) check(batch, i, samples);
    }
    return run(program_, batch, {});
  }

 private:
  // Returns a batch of that many samples without memory.
  Batch batch_of(int64_t samples) const {
    Batch batch;
    for (const auto& input : program_.inputs) {
      if (input.kind != Input::Kind::batch) continue;
      auto sizes = input.sizes;
      sizes[0] = samples;
      batch[input.name] = at::empty(sizes, at::TensorOptions(at::kMeta).dtype(input.type));
    }
    return batch;
  }

  Result run(const Program& program, const Batch& batch, const exported::BeforeCall& before) const {
    auto tensors = given_;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& input = program.inputs[i];
      if (input.kind == Input::Kind::batch) tensors[i] = batch.at(input.name);
    }
    const auto replayed = exported::replay(program, tensors, before);
    for (const auto& [name, value] : replayed.buffers) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (program.inputs[i].name != name) continue;
        const at::NoGradGuard no_gradients;
        tensors[i].copy_(value);
      }
    }
    return exported::result_of(replayed.results);
  }

  // Checks a tensor of the batch. `samples`: of the tensors before it, or -1.
  void check(const Batch& batch, size_t i, int64_t& samples) const {
    const auto& input = program_.inputs[i];
    const auto found = batch.find(input.name);
    if (found == batch.end()) {
      fail("capture",
           "the forward of \"{}\" takes \"{}\" ({}), but the batch has none of that name", path_,
           input.name, fmt::join(inputs(), ", "));
    }
    const auto& tensor = found->second;
    if (tensor.scalar_type() != input.type) {
      fail("capture", "\"{}\" was exported with \"{}\" as {}, but the batch has {}", path_,
           input.name, c10::toString(input.type), c10::toString(tensor.scalar_type()));
    }
    check_sizes(input, tensor.sizes());
    if (input.sizes.empty() || input.sizes[0] >= 0) return;
    if (samples >= 0 && tensor.size(0) != samples) {
      fail("capture",
           "\"{}\" was exported with one number of samples, but \"{}\" has {} and a tensor before "
           "it {}",
           path_, input.name, tensor.size(0), samples);
    }
    samples = tensor.size(0);
  }

  void check_sizes(const Input& input, at::IntArrayRef sizes) const {
    const auto fits = [](int64_t wanted, int64_t size) { return wanted < 0 || wanted == size; };
    if (input.sizes.size() == sizes.size() && !sizes.empty() && !fits(input.sizes[0], sizes[0]) &&
        std::equal(sizes.begin() + 1, sizes.end(), input.sizes.begin() + 1, fits)) {
      fail("capture",
           "\"{}\" was exported for {} samples alone, but a microbatch of all ranks has {}: export "
           "it with dynamic_shapes, {{\"{}\": {{0: Dim.DYNAMIC}}, ...}} (runtime/export.py){}",
           path_, input.sizes[0], sizes[0], input.name,
           ended_.empty() ? ""
                          : fmt::format("; that it holds for others is not proven: {}", ended_));
    }
    if (!std::equal(input.sizes.begin(), input.sizes.end(), sizes.begin(), sizes.end(), fits)) {
      fail("capture",
           "\"{}\" was exported with \"{}\" as [{}] (-1: samples), but the batch has [{}]", path_,
           input.name, fmt::join(input.sizes, ", "), fmt::join(sizes, ", "));
    }
    if (sizes.empty() || input.sizes[0] >= 0) return;
    const auto least = program_.least_samples, most = program_.most_samples;
    if (sizes[0] >= least && (most < 0 || sizes[0] <= most)) return;
    fail(
        "capture",
        "\"{}\" was exported for {} to {} samples, but a microbatch of all ranks has {}: export it "
        "with another range in dynamic_shapes",
        path_, least, most < 0 ? "any number of" : std::to_string(most), sizes[0]);
  }

  std::string path_;
  Program program_;
  std::shared_ptr<ExportedModule> module_;
  std::vector<at::Tensor> given_;  // by input; undefined for the batch
  std::string ended_;  // of a fixed number of samples: where the proof for any number ended
};

}  // namespace

Model load_exported(const std::string& path) {
  const auto archive = exported::read_archive(path);
  const auto made = std::make_shared<Replay>(path, archive, exported::read_program(archive));
  made->generalise();
  const std::shared_ptr<const Replay> replay = made;
  return {.module = replay->module(),
          .forward = [replay](const Batch& batch) { return (*replay)(batch); },
          .inputs = replay->inputs()};
}

}  // namespace perigee
