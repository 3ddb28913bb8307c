#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"
#include "graph/graph.h"
#include "graph/identity/canonical.h"

namespace perigee::graph {

std::string digest(const std::string& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string structural_hash(const Graph& original) {
  const Graph graph = renumber(original);
  std::string form;
  form.reserve(graph.nodes.size() * 256);
  append_bytes(form, static_cast<int64_t>(graph.scopes.size()));
  for (const auto& scope : graph.scopes) {
    append_bytes(form, scope.path);
    append_bytes(form, scope.type);
  }
  append_bytes(form, static_cast<int64_t>(graph.inputs.size()));
  for (const auto& input : graph.inputs) {
    form += static_cast<char>(input.kind);
    form += static_cast<char>((input.trainable ? 1 : 0) + (input.batched ? 0 : 2));
    append_bytes(form, input.name);
    append_bytes(form, graph.type(input.value));
    append_bytes(form, input.data);
  }
  append_bytes(form, static_cast<int64_t>(graph.nodes.size()));
  for (const auto& node : graph.nodes) {
    append_call(form, node);
    append_bytes(form, node.scope);
    form += static_cast<char>(node.phase);
    append_bytes(form, int64_t{node.forward_node});
    append_bytes(form, static_cast<int64_t>(node.outputs.size()));
    for (auto v : node.outputs) {
      form += static_cast<char>(v.defined());
      if (v.defined()) append_bytes(form, graph.type(v));
    }
  }
  for (const auto& output : graph.outputs) {
    form += static_cast<char>(output.kind);
    append_bytes(form, output.name);
    append_bytes(form, int64_t{output.value.index});
  }
  return digest(form);
}

}  // namespace perigee::graph
