// Packed documents and models that take them.
#include "tests/support/torch_test.h"
// Torch first.
#include "tests/support/temporary_folder.h"
#include "train/step/token_input.h"

using namespace perigee;

TEST_CASE("packed documents need a model that reads the input \"documents\"") {
  graph::Graph graph;
  graph.add_input(graph::Input::Kind::data, "tokens", {graph::DType::int64, {1, 4}});
  job::Job job;
  const auto message = [&] {
    return test::error_of([&] { train::require_document_inputs(job, graph); });
  };
  CHECK(message() == "nothing was thrown");
  job.data.pack = "documents";
  CHECK_THAT(message(), Catch::Contains("does not read the input \"documents\""));
  job.data.pack = "none";
  CHECK(message() == "nothing was thrown");
  job.data.pack = "documents";
  const graph::TensorType type{graph::DType::int64, {1, 4}};
  const auto documents = graph.add_input(graph::Input::Kind::data, "documents", type);
  CHECK_THAT(message(), Catch::Contains("does not read the input \"documents\""));
  graph.add_node("aten::neg", {{"self", documents}}, {type});
  CHECK(message() == "nothing was thrown");
}
