#include "capture/exported/reader.h"

#include <sstream>

#include "base/fail.h"
#include "capture/exported/arguments.h"
#include "capture/exported/numbers.h"
#include "capture/exported/signature.h"
#include "capture/exported/types.h"
#include "capture/record/data_schema.h"

namespace perigee::exported {
namespace {

using nlohmann::json;

constexpr std::string_view kOps = "torch.ops.", kLibTorch = "torch.ops.aten.",
                           kControl = "torch.ops.higher_order.";

// Returns the op of LibTorch that a target names.
c10::OperatorHandle find_op(const std::string& target) {
  if (!target.starts_with(kLibTorch)) {
    fail("capture",
         "an exported model's ops are LibTorch's, but {} is of another library: export with an "
         "implementation in plain PyTorch (transformers: attn_implementation \"eager\", "
         "experts_implementation \"batched_mm\")",
         target);
  }
  const auto name = target.substr(kLibTorch.size());
  const auto dot = name.find('.');
  const auto overload = dot == name.npos ? "" : name.substr(dot + 1);
  const auto op = c10::Dispatcher::singleton().findSchema(
      {"aten::" + name.substr(0, dot), overload == "default" ? "" : overload});
  if (!op) {
    fail("capture", "an exported model's ops are known to LibTorch, but it has no {}", target);
  }
  if (const auto* argument = tracing::find_no_data(op->schema())) {
    fail("capture",
         "ops of an archive compute from tensors, numbers and options and return their results, "
         "but {} takes \"{}\"",
         target, argument->name());
  }
  return *op;
}

struct Module {
  std::string path, type;
};

// Returns a module of a node's stack, "key,path,type;..." from the outermost on. Paths of modules
// that run a second time end in "@1".
Module read_module(const std::string& entry) {
  std::vector<std::string> parts{""};
  int depth = 0;
  for (const char c : entry) {
    depth += (c == '(' || c == '[') - (c == ')' || c == ']');
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  if (parts.size() != 3) return {};
  const auto plain = [](const std::string& text) { return text.substr(0, text.find('@')); };
  const auto type = plain(parts[2]);
  return {plain(parts[1]), type.substr(type.rfind('.') + 1)};
}

class ProgramReader {
 public:
  explicit ProgramReader(const Archive& archive) : archive_(archive) {}

  Program read() {
    const auto& graph = archive_.program.at("graph_module").at("graph");
    Names names;
    read_inputs(archive_, program_, names);
    nodes(graph, names, {});
    read_outputs(archive_, names, program_);
    return std::move(program_);
  }

 private:
  struct Place {
    bool gradients = true;
    std::string scope;  // of nodes without a module stack
    std::optional<Autocast> autocast;
  };

  void nodes(const json& graph, Names& names, const Place& place) {
    for (const auto& node : graph.at("nodes")) {
      const std::string target = node.at("target");
      auto here = place;
      const auto metadata = node.value("metadata", json::object());
      if (const auto stack = metadata.find("nn_module_stack"); stack != metadata.end()) {
        std::istringstream entries(stack->get<std::string>());
        for (std::string entry; std::getline(entries, entry, ';');) {
          const auto module = read_module(entry);
          here.scope = module.path;
          if (!module.type.empty()) program_.modules.emplace(module.path, module.type);
        }
      }
      if (target.starts_with(kControl)) {
        inline_graph(target.substr(kControl.size()), node, names, here);
      } else {
        call(target, node, names, here);
        note_sizes(graph, program_.calls.back(), node);
      }
    }
  }

  // Keeps the sizes that the call's results have in the export.
  void note_sizes(const json& graph, const Call& call, const json& node) {
    program_.sizes.resize(program_.slots);
    const auto values = graph.find("tensor_values");
    size_t result = 0;
    for (const auto& output : node.at("outputs")) {
      for (const auto& name : output_names(output)) {
        const auto slot = call.outputs.at(result++);
        if (slot.index < 0 || values == graph.end() || !values->contains(name)) continue;
        for (const auto& size : values->at(name).at("sizes")) {
          program_.sizes[slot.index].push_back(integer_or(size, "as_int", -1));
        }
      }
    }
  }

  void call(const std::string& target, const json& node, Names& names, const Place& place) {
    Call call{.target = target,
              .scope = place.scope,
              .gradients = place.gradients,
              .autocast = place.autocast};
    call.function = find_number_function(target);
    if (!call.function) {
      if (!target.starts_with(kOps)) {
        fail("capture", "an exported model calls ops and arithmetic on sizes, but got {}", target);
      }
      call.op = find_op(target);
    }
    for (const auto& input : node.at("inputs")) {
      auto argument = read_argument(input.at("arg"), names, target);
      argument.name = input.at("name");
      call.arguments.push_back(std::move(argument));
    }
    for (const auto& output : node.at("outputs")) {
      for (const auto& name : output_names(output)) {
        const Slot slot{name.empty() ? -1 : program_.slots++};
        call.outputs.push_back(slot);
        if (!name.empty()) names[name] = slot;
      }
    }
    program_.calls.push_back(std::move(call));
  }

  // Reads the first arguments of wrap_with_autocast. `outer`: the region that it is within.
  Autocast read_autocast(const json& inputs, const std::optional<Autocast>& outer) {
    const auto argument = [&](size_t i) -> const json& { return inputs.at(i).at("arg"); };
    Autocast region{.enabled = argument(2).at("as_bool"), .caches = argument(3).at("as_bool")};
    region.outermost = outer ? outer->outermost : regions_++;
    if (!region.enabled) return region;
    const auto device = argument(0).at("as_string").get<std::string>();
    if (device != "cpu" && device != "cuda") {
      fail("capture",
           "an exported model's torch.autocast is for \"cpu\" or \"cuda\", whose lists of ops are "
           "known, but one is for \"{}\": export with one of these, or outside of torch.autocast",
           device);
    }
    region.device = device == "cpu" ? at::kCPU : at::kCUDA;
    if (argument(1).contains("as_scalar_type")) {
      region.type = element_type(integer(argument(1).at("as_scalar_type")));
    } else {
      region.type = region.device == at::kCPU ? at::kBFloat16 : at::kHalf;
    }
    return region;
  }

  // Inlines a subgraph that runs once: wrap_with_set_grad_enabled(enabled, graph, ...) and
  // wrap_with_autocast(device, dtype, enabled, cache, graph, ...).
  void inline_graph(const std::string& op, const json& node, Names& names, Place place) {
    const auto& inputs = node.at("inputs");
    size_t at = 0;
    if (op == "wrap_with_set_grad_enabled") {
      place.gradients = inputs.at(0).at("arg").at("as_bool");
      at = 1;
    } else if (op == "wrap_with_autocast") {
      place.autocast = read_autocast(inputs, place.autocast);
      at = 4;
    } else {
      fail("capture",
           "a graph has one path, but the exported model uses torch's {}: export it with a branch "
           "or loop of Python instead",
           op);
    }
    const auto& graph = inputs.at(at).at("arg").at("as_graph").at("graph");
    Names inner;
    const auto& parameters = graph.at("inputs");
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto given = read_argument(inputs.at(at + 1 + i).at("arg"), names, op);
      inner[output_names(parameters[i]).at(0)] = given.items.at(0);
    }
    nodes(graph, inner, place);
    std::vector<std::string> made, wanted;
    for (const auto& output : graph.at("outputs")) {
      for (auto& name : output_names(output)) made.push_back(std::move(name));
    }
    for (const auto& output : node.at("outputs")) {
      for (auto& name : output_names(output)) wanted.push_back(std::move(name));
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].empty()) names[wanted[i]] = inner.at(made.at(i));
    }
  }

  const Archive& archive_;
  Program program_;
  int regions_ = 0;  // outermost regions of torch.autocast so far
};

}  // namespace

Program read_program(const Archive& archive) {
  try {
    return ProgramReader(archive).read();
  } catch (const json::exception& error) {
    fail("capture", "an exported model's graph has the parts of its schema, but: {}", error.what());
  } catch (const std::out_of_range&) {
    fail("capture",
         "an exported model's subgraphs have the inputs and results that are used, but one has too "
         "few");
  }
}

}  // namespace perigee::exported
