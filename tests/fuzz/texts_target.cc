// Small texts inside of files and options; the first byte chooses one.
#include "base/text/base64.h"
#include "graph/dtype.h"
#include "job/step_list.h"
#include "mesh/axis_set.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "tests/fuzz/target.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(texts) {
  if (input.empty()) return;
  const auto text = input.substr(1);
  switch (input[0]) {
    case 'p': {
      const auto placements = mesh::parse_placements(text);
      const auto again = fuzz::accepted("printed placements are refused", [&] {
        return mesh::parse_placements(mesh::to_string(placements));
      });
      return fuzz::require(again == placements, "printed placements differ");
    }
    case 'a': {
      const auto axes = mesh::AxisSet::parse(text);
      return fuzz::require(mesh::AxisSet::parse(axes.text()) == axes, "printed axes differ");
    }
    case 'm':
      mesh::parse_axes(text);
      return;
    case 'o':
      mesh::parse_order(text);
      return;
    case 's':
      job::parse_steps(text);
      return;
    case 'b':
      if (const auto bytes = base64_decode(text)) {
        fuzz::require(base64_decode(base64_encode(*bytes)) == bytes, "encoded bytes differ");
      }
      return;
    default:
      if (const auto dtype = graph::dtype_of(text)) {
        fuzz::require(graph::name_of(*dtype) == text, "a name of another dtype");
      }
  }
}
