// The place of a scope in a folded model: in the prologue, in a block, or in the epilogue.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "search/layers/fold.h"

namespace perigee::search {

enum LayerKind { kPrologue, kBlock, kEpilogue, kLayerKinds };

struct Where {
  LayerKind place;
  std::string block;  // "": in none
  bool operator==(const Where&) const = default;
};

class LayerScopes {
 public:
  explicit LayerScopes(const Folded& folded);

  // The reference stays valid.
  const Where& of_scope(const std::string& scope) const;
  LayerKind of_parameter(const std::string& name) const;
  // Returns the number of blocks of the folded graph, at least 1.
  double blocks() const;

 private:
  bool in_block(const std::string& scope) const;

  std::vector<std::string> blocks_;
  std::set<std::string> before_, early_;
  mutable std::unordered_map<std::string, Where> places_;
};

}  // namespace perigee::search
