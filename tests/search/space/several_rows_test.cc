// Models of several rows of blocks: stages begin at any block of any row, never within one.
#include <catch2/catch.hpp>

#include "search/cut/balanced_cut.h"
#include "search/layers/fold.h"
#include "tests/search/support.h"

using namespace perigee;
using namespace perigee::search;

namespace {

// A chain of linear layers with these scopes and widths, forward only.
struct Layer {
  std::string scope;
  int64_t width;
};

// Appends the layers after x. Returns the last one's result.
graph::ValueId append(graph::Graph& g, graph::ValueId x, const std::vector<Layer>& layers) {
  for (const auto& layer : layers) {
    const auto in = g.type(x).shape[1];
    const auto w = g.add_value({graph::DType::float32, {in, layer.width}});
    g.inputs.push_back(
        {.kind = graph::Input::Kind::parameter, .name = layer.scope + ".weight", .value = w});
    const auto y = g.add_value({graph::DType::float32, {8, layer.width}});
    g.values[y.index].producer = static_cast<graph::NodeId>(g.nodes.size());
    g.nodes.push_back({.op = "aten::mm",
                       .args = {{"self", x}, {"mat2", w}},
                       .outputs = {y},
                       .scope = layer.scope});
    x = y;
  }
  return x;
}

graph::Graph tower(const std::vector<Layer>& layers, const std::vector<graph::Scope>& scopes) {
  graph::Graph g;
  g.scopes = scopes;
  const auto x = g.add_input(graph::Input::Kind::data, "x",
                             {graph::DType::float32, {8, layers.front().width}});
  append(g, x, layers);
  return g;
}

std::vector<graph::Scope> scopes_of(
    std::initializer_list<std::pair<const char*, const char*>> list) {
  std::vector<graph::Scope> scopes;
  for (const auto& [path, type] : list) scopes.push_back({path, type});
  return scopes;
}

}  // namespace

TEST_CASE(
    "blocks of an encoder and a decoder are one row, in forward order, without their own lists") {
  const auto scopes = scopes_of({{"", "T"},
                                 {"decoder", "Decoder"},
                                 {"decoder.blocks", "ModuleList"},
                                 {"decoder.blocks.0", "Block"},
                                 {"decoder.blocks.0.mlp", "Sequential"},
                                 {"decoder.blocks.0.mlp.0", "Linear"},
                                 {"decoder.blocks.0.mlp.1", "Linear"},
                                 {"decoder.blocks.0.mlp.2", "Linear"},
                                 {"decoder.blocks.1", "Block"},
                                 {"encoder", "Encoder"},
                                 {"encoder.blocks", "ModuleList"},
                                 {"encoder.blocks.0", "Block"},
                                 {"encoder.blocks.1", "Block"}});
  const auto g = tower({{"encoder.blocks.0", 16},
                        {"encoder.blocks.1", 16},
                        {"decoder.blocks.0.mlp.0", 16},
                        {"decoder.blocks.0.mlp.1", 16},
                        {"decoder.blocks.0.mlp.2", 16},
                        {"decoder.blocks.1", 16}},
                       scopes);
  CHECK(row_of_blocks(g) == std::vector<std::string>{"encoder.blocks.0", "encoder.blocks.1",
                                                     "decoder.blocks.0", "decoder.blocks.1"});
  const auto folded = fold(g);
  CHECK(folded.kept == folded.blocks);
  REQUIRE(folded.weights.size() == 4);
  CHECK(folded.weights[2] == 3 * folded.weights[3]);
  // Unequal blocks: the third one is a stage of its own.
  CHECK(balanced_cut(folded.weights, 3) == std::vector<int>{2, 3});
}

TEST_CASE("blocks of two towers that join are one row, and stages begin in either tower") {
  graph::Graph g;
  g.scopes = scopes_of({{"", "Net"},
                        {"vision", "Tower"},
                        {"vision.stem", "Linear"},
                        {"vision.blocks", "ModuleList"},
                        {"vision.blocks.0", "Block"},
                        {"vision.blocks.1", "Block"},
                        {"text", "Tower"},
                        {"text.blocks", "ModuleList"},
                        {"text.blocks.0", "Block"},
                        {"text.blocks.1", "Block"},
                        {"join", "Block"}});
  const auto input = [&](const char* name) {
    return g.add_input(graph::Input::Kind::data, name, {graph::DType::float32, {8, 16}});
  };
  const auto image = input("image"), tokens = input("tokens");
  const auto seen = append(g, image,
                           {{"vision.stem", 16}, {"vision.blocks.0", 16}, {"vision.blocks.1", 16}});
  const auto read = append(g, tokens, {{"text.blocks.0", 16}, {"text.blocks.1", 16}});
  const auto both = g.add_node("aten::add.Tensor", {{"self", seen}, {"other", read}},
                               {{graph::DType::float32, {8, 16}}}, "join")[0];
  append(g, both, {{"join", 16}});
  const std::vector<std::string> row = {"vision.blocks.0", "vision.blocks.1", "text.blocks.0",
                                        "text.blocks.1"};
  CHECK(row_of_blocks(g) == row);
  const auto folded = fold(g);
  CHECK(folded.blocks == row);
  // The towers' blocks are identical, but no chain: none stands for another one.
  CHECK(folded.kept == row);
  CHECK(folded.graph.nodes.size() == g.nodes.size());
  REQUIRE(folded.weights.size() == 4);
  CHECK(folded.weights[0] == 2 * folded.weights[1]);  // with the stem
  CHECK(folded.weights[3] > folded.weights[2]);       // with the module that joins the towers
  CHECK(folded.epilogue == "join");
}

TEST_CASE("lists within lists hold blocks, and a small stem does not count") {
  const auto scopes = scopes_of({{"", "R"},
                                 {"stem", "Sequential"},
                                 {"stem.0", "Linear"},
                                 {"stem.1", "Linear"},
                                 {"stages", "ModuleList"},
                                 {"stages.0", "ModuleList"},
                                 {"stages.0.0", "Block"},
                                 {"stages.0.1", "Block"},
                                 {"stages.1", "ModuleList"},
                                 {"stages.1.0", "Block"}});
  const auto g = tower(
      {{"stem.0", 2}, {"stem.1", 2}, {"stages.0.0", 64}, {"stages.0.1", 64}, {"stages.1.0", 64}},
      scopes);
  CHECK(row_of_blocks(g) == std::vector<std::string>{"stages.0.0", "stages.0.1", "stages.1.0"});
}

TEST_CASE("a balanced cut has the least largest part of all cuts") {
  const std::vector<std::vector<double>> rows = {
      {1, 1, 1, 1}, {5, 1, 1, 1, 4}, {0, 0, 3}, {2, 7, 1, 8, 2, 8}, {1}};
  for (const auto& weights : rows) {
    const int blocks = static_cast<int>(weights.size());
    for (int parts = 1; parts <= blocks; ++parts) {
      const auto largest = [&](const std::vector<int>& cuts) {
        double most = 0, part = 0;
        size_t next = 0;
        for (int b = 0; b < blocks; ++b) {
          if (next < cuts.size() && cuts[next] == b) part = 0, ++next;
          most = std::max(most, part += weights[b]);
        }
        return most;
      };
      // All subsets of begins.
      double least = 1e300;
      for (int mask = 0; mask < 1 << (blocks - 1); ++mask) {
        std::vector<int> cuts;
        for (int b = 1; b < blocks; ++b) {
          if (mask >> (b - 1) & 1) cuts.push_back(b);
        }
        if (std::ssize(cuts) == parts - 1) least = std::min(least, largest(cuts));
      }
      const auto found = balanced_cut(weights, parts);
      CHECK(std::ssize(found) == parts - 1);
      CHECK(std::is_sorted(found.begin(), found.end()));
      CHECK(largest(found) == least);
    }
  }
}
