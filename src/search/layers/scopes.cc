#include "search/layers/scopes.h"

#include <algorithm>

namespace perigee::search {
namespace {

// "blocks.3.attn" -> "blocks.3"
std::string block_scope(const std::string& scope) {
  std::string block;
  for (size_t begin = 0; begin <= scope.size();) {
    const auto end = std::min(scope.find('.', begin), scope.size());
    const auto part = scope.substr(begin, end - begin);
    block += (begin > 0 ? "." : "") + part;
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    if (number) return block;
    begin = end + 1;
  }
  return "";
}

}  // namespace

LayerScopes::LayerScopes(const Folded& folded) : blocks_(folded.kept) {
  bool begun = blocks_.empty();
  for (const auto& node : folded.graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    if (in_block(node.scope)) begun = true;
    if (!begun) before_.insert(node.scope);
  }
  for (const auto& input : folded.graph.inputs) {
    const auto dot = input.name.rfind('.');
    const auto scope = dot == std::string::npos ? "" : input.name.substr(0, dot);
    if (input.kind == graph::Input::Kind::parameter && before_.contains(scope)) {
      early_.insert(input.name);
    }
  }
}

const Where& LayerScopes::of_scope(const std::string& scope) const {
  auto known = places_.find(scope);
  if (known == places_.end()) {
    const auto place = in_block(scope) ? kBlock : before_.contains(scope) ? kPrologue : kEpilogue;
    known = places_.emplace(scope, Where{place, block_scope(scope)}).first;
  }
  return known->second;
}

LayerKind LayerScopes::of_parameter(const std::string& name) const {
  if (in_block(name)) return kBlock;
  return early_.contains(name) ? kPrologue : kEpilogue;
}

double LayerScopes::blocks() const {
  return std::max<double>(1, static_cast<double>(blocks_.size()));
}

bool LayerScopes::in_block(const std::string& scope) const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [&](const auto& b) { return graph::contains_scope(b, scope); });
}

}  // namespace perigee::search
