// The text form of graphs (graph/graph.h): captured ones, and patterns of rewrites.
#include "graph/graph.h"
#include "graph/rewrite/rewrite.h"
#include "tests/fuzz/target.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(graph) {
  const auto graph = graph::parse(input);
  const auto text = graph::print(graph);
  const auto again = fuzz::accepted("a printed graph is refused",
                                    [&] { return graph::parse(text); });
  fuzz::require(graph::print(again) == text, "a printed graph is another graph");
  graph::verify(graph);
  graph::structural_hash(graph);
  graph::parse_rewrite("rule", input, input);
}
