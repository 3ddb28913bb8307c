#include "plan/fp8.h"

#include <algorithm>

#include "base/fail.h"

namespace perigee::plan {

std::string_view name_of(Fp8::Format format) {
  return format == Fp8::Format::e4m3 ? "e4m3" : "hybrid";
}

std::string_view name_of(Fp8::Recipe recipe) {
  switch (recipe) {
    case Fp8::Recipe::delayed:
      return "delayed";
    case Fp8::Recipe::tensorwise:
      return "tensorwise";
    case Fp8::Recipe::rowwise:
      return "rowwise";
    case Fp8::Recipe::blockwise:
      break;
  }
  return "blockwise";
}

std::string_view name_of(Fp8::Amax amax) { return amax == Fp8::Amax::max ? "max" : "most_recent"; }

std::string_view name_of(Fp8::Product product) {
  return product == Fp8::Product::native ? "native" : "emulated";
}

bool scales_tensors(Fp8::Recipe recipe) {
  return recipe == Fp8::Recipe::delayed || recipe == Fp8::Recipe::tensorwise;
}

void verify(const Fp8& fp8, const graph::Graph& graph) {
  if (fp8.margin < 0 || fp8.margin > 64) {
    fail("plan", "fp8.margin is from 0 to 64, but got {}", fp8.margin);
  }
  if (fp8.amax_history_len < 1 || fp8.amax_history_len > 65536) {
    fail("plan", "fp8.amax_history_len is from 1 to 65536, but got {}", fp8.amax_history_len);
  }
  if (fp8.interval < 1 || fp8.interval > 65536) {
    fail("plan", "fp8.interval is from 1 to 65536, but got {}", fp8.interval);
  }
  if (!fp8.reduce_amax && !scales_tensors(fp8.recipe)) {
    fail("plan", "fp8.reduce_amax is of the recipes delayed and tensorwise, but got {}",
         name_of(fp8.recipe));
  }
  if (fp8.product == Fp8::Product::native && fp8.recipe == Fp8::Recipe::blockwise) {
    fail("plan",
         "a native product has one scale for each factor or each of its rows, but fp8.recipe is "
         "blockwise (product \"emulated\", or another recipe)");
  }
  if (fp8.product == Fp8::Product::native && !fp8.reduce_amax) {
    fail("plan",
         "a native product has one scale for each factor over all ranks, but fp8.reduce_amax is "
         "false (product \"emulated\", or reduce_amax true)");
  }
  if (fp8.block < 1) fail("plan", "fp8.block is at least 1, but got {}", fp8.block);
  std::vector<std::string> known;
  for (const auto& scope : graph.scopes) known.push_back(scope.path);
  for (auto scope = fp8.scopes.begin(); scope != fp8.scopes.end(); ++scope) {
    if (std::find(known.begin(), known.end(), *scope) == known.end()) {
      fail("plan", "fp8.scopes names scopes of the graph, but got \"{}\"{}", *scope,
           did_you_mean(*scope, known));
    }
    if (std::find(fp8.scopes.begin(), scope, *scope) != scope) {
      fail("plan", "fp8.scopes names a scope once, but got \"{}\" twice", *scope);
    }
  }
}

}  // namespace perigee::plan
