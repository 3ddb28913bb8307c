#include "capture/exported/signature.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <set>

#include "base/fail.h"
#include "capture/exported/outcome.h"
#include "capture/exported/types.h"

namespace perigee::exported {
namespace {

using nlohmann::json;

// Returns the name of a size that is a symbol alone ("s77"), "" for one that is computed.
std::string symbol_of(const json& size) {
  const auto text = size.at("as_expr").at("expr_str").get<std::string>();
  const std::string head = "Symbol('";
  const auto end = text.find('\'', head.size());
  return text.starts_with(head) && end != text.npos && text.find('(', end) == text.npos
             ? text.substr(head.size(), end - head.size())
             : "";
}

class InputReader {
 public:
  InputReader(const Archive& archive, Program& program, Names& names)
      : archive_(archive), program_(program), names_(names) {}

  void read() {
    const auto& module = archive_.program.at("graph_module");
    for (const auto& spec : module.at("signature").at("input_specs")) {
      const auto& kind = spec.begin().key();
      const auto& value = spec.begin().value();
      if (kind == "user_input") {
        batch(value.at("arg"));
      } else if (kind == "parameter") {
        stored(Input::Kind::parameter, value.at("parameter_name"), value);
      } else if (kind == "buffer") {
        stored(Input::Kind::buffer, value.at("buffer_name"), value);
      } else if (kind == "tensor_constant") {
        stored(Input::Kind::constant, value.at("tensor_constant_name"), value);
      } else if (kind == "constant_input") {
        names_[value.at("name")] = c10::IValue();  // its value is part of the graph
      } else {
        fail("capture", "an exported model's inputs are tensors, but one is a {}", kind);
      }
    }
    limits();
  }

 private:
  Input& add(Input::Kind kind, const std::string& name, const std::string& value) {
    const Slot slot{program_.slots++};
    names_[value] = slot;
    program_.inputs.push_back({.kind = kind, .name = name, .slot = slot});
    return program_.inputs.back();
  }

  const json& meta(const std::string& value) const {
    return archive_.program.at("graph_module").at("graph").at("tensor_values").at(value);
  }

  void batch(const json& argument) {
    if (argument.contains("as_none")) return;
    if (!argument.contains("as_tensor")) {
      fail("capture", "an exported model's arguments are the batch's tensors, but one is {}",
           argument.begin().key());
    }
    const std::string name = argument.at("as_tensor").at("name");
    auto& input = add(Input::Kind::batch, name, name);
    input.type = element_type(integer(meta(name).at("dtype")));
    for (const auto& size : meta(name).at("sizes")) {
      if (size.contains("as_int")) {
        input.sizes.push_back(integer(size.at("as_int")));
      } else {
        dynamic(name, input.sizes.size(), symbol_of(size));
        input.sizes.push_back(-1);
      }
    }
  }

  // Checks a dynamic dim: it is dim 0, and of one size in all inputs.
  void dynamic(const std::string& input, size_t dim, const std::string& symbol) {
    if (dim != 0) {
      fail("capture",
           "of an exported model's inputs dim 0 alone, the samples, may be dynamic, but dim {} of "
           "\"{}\" is, too: export with dynamic_shapes for dim 0 alone",
           dim, input);
    }
    if (symbol.empty() || (!samples_.empty() && symbol != samples_)) {
      fail("capture",
           "an exported model's inputs have one number of samples, but dim 0 of \"{}\" differs: "
           "export with dynamic_shapes that name one Dim for all",
           input);
    }
    samples_ = symbol;
  }

  void stored(Input::Kind kind, const std::string& name, const json& spec) {
    const std::string value = spec.at("arg").at("name");
    const auto* tensor = find(name);
    const char* what = kind == Input::Kind::parameter ? "parameter"
                       : kind == Input::Kind::buffer  ? "buffer"
                                                      : "constant";
    if (!tensor) {
      fail("capture", "an archive holds its model's tensors, but not the {} \"{}\"", what, name);
    }
    auto& input = add(kind, name, value);
    input.type = tensor->tensor.scalar_type();
    input.sizes = tensor->tensor.sizes().vec();
    std::vector<int64_t> sizes;
    for (const auto& size : meta(value).at("sizes"))
      sizes.push_back(integer_or(size, "as_int", -1));
    const auto type = element_type(integer(meta(value).at("dtype")));
    if (sizes == input.sizes && type == input.type) return;
    fail("capture",
         "an archive's tensors are those of its graph, but the {} \"{}\" is {} [{}] there and {} "
         "[{}] among the weights",
         what, name, c10::toString(type), fmt::join(sizes, ", "), c10::toString(input.type),
         fmt::join(input.sizes, ", "));
  }

  const StoredTensor* find(const std::string& name) const {
    for (const auto* all : {&archive_.weights, &archive_.constants}) {
      if (const auto found = all->find(name); found != all->end()) return &found->second;
    }
    return nullptr;
  }

  void limits() {
    const auto ranges = archive_.program.value("range_constraints", json::object());
    if (samples_.empty() || !ranges.contains(samples_)) return;
    const auto& range = ranges.at(samples_);
    if (range.at("min_val").is_number_integer())
      program_.least_samples = integer(range.at("min_val"));
    if (range.at("max_val").is_number_integer())
      program_.most_samples = integer(range.at("max_val"));
    // torch.export treats every dynamic size as at least 2; its graph holds for 1.
    if (program_.least_samples <= 2) program_.least_samples = 0;
  }

  const Archive& archive_;
  Program& program_;
  Names& names_;
  std::string samples_;  // the symbol of dim 0
};

Slot slot_of(const Names& names, const std::string& value) {
  const auto found = names.find(value);
  if (found != names.end()) {
    if (const auto* slot = std::get_if<Slot>(&found->second)) return *slot;
  }
  fail("capture", "an exported model's results are values of its graph, but got \"{}\"", value);
}

std::string output_description(const json& module) {
  for (const auto& entry : module.at("module_call_graph")) {
    if (entry.at("fqn") == "") return entry.at("signature").at("out_spec");
  }
  fail("capture", "an archive describes its model's output, but {} has no signature", "forward");
}

}  // namespace

void read_inputs(const Archive& archive, Program& program, Names& names) {
  InputReader(archive, program, names).read();
}

void read_outputs(const Archive& archive, const Names& names, Program& program) {
  const auto& module = archive.program.at("graph_module");
  const auto leaves = result_names(output_description(module));
  size_t leaf = 0;
  for (const auto& spec : module.at("signature").at("output_specs")) {
    const auto& kind = spec.begin().key();
    const auto& value = spec.begin().value();
    if (kind == "user_output" || kind == "loss_output") {
      const auto& argument = value.at("arg");
      if (leaf == leaves.size()) {
        fail("capture", "an archive describes all its model's results, but only {} of them", leaf);
      }
      const auto& name = leaves[leaf++];
      if (kind == "loss_output") {
        program.results.push_back({"loss", slot_of(names, argument.at("name"))});
      } else if (argument.contains("as_tensor")) {
        program.results.push_back({name, slot_of(names, argument.at("as_tensor").at("name"))});
      }  // else a number or None, which is no result
    } else if (kind == "buffer_mutation") {
      program.buffers.push_back(
          {value.at("buffer_name"), slot_of(names, value.at("arg").at("name"))});
    } else if (kind != "user_input_mutation") {
      fail(
          "capture",
          "an exported model gives a loss and results and changes buffers, but its output has a {}",
          kind);
    }
  }
}

}  // namespace perigee::exported
