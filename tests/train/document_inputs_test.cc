// The data of a job and the inputs of its model: packed documents, shapes and types.
#include "base/log.h"
#include "tests/support/torch_test.h"
// Torch first.
#include "tests/support/temporary_folder.h"
#include "train/step/step_data.h"
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

TEST_CASE("data with other samples than the model takes are refused before the first step") {
  struct Source : DataSource {
    Batch batch;
    Batch at(int64_t, Range) override { return batch; }
  } data;
  graph::Graph graph;
  const graph::TensorType type{graph::DType::int64, {8, 4}};
  const auto tokens = graph.add_input(graph::Input::Kind::data, "tokens", type);
  graph.add_node("aten::neg", {{"self", tokens}}, {type});
  graph.add_input(graph::Input::Kind::data, "unread", type);
  job::Job job;
  job.data.tensors = {"a.safetensors"};
  const auto message = [&](const at::Tensor& field) {
    data.batch["tokens"] = field;
    return test::error_of([&] { train::check_data(job, graph, data, false); });
  };
  CHECK(message(at::zeros({1, 4}, at::kLong)) == "nothing was thrown");
  CHECK(message(at::zeros({1, 5}, at::kLong)) ==
        "[data] each sample of the input \"tokens\" must be int64 [4], as the model takes it, but "
        "is int64 [5]: change the files, data.sequence or the model");
  CHECK_THAT(message(at::zeros({1, 4}, at::kInt)), Catch::Contains("but is int32 [4]"));
  CHECK_THAT(message(at::zeros({1}, at::kLong)), Catch::Contains("but is int64 []"));
  data.batch.clear();
  data.batch["token"] = at::zeros({1, 4}, at::kLong);
  CHECK_THAT(
      test::error_of([&] { train::check_data(job, graph, data, false); }),
      Catch::Contains(
          "the model reads the input \"tokens\", but the data have no tensor of that name") &&
          Catch::Contains("did you mean"));

  // Tensors that the model does not read are a warning.
  data.batch = {{"tokens", at::zeros({1, 4}, at::kLong)},
                {"attention_mask", at::zeros({1, 4}, at::kLong)}};
  struct Lines : log::Sink {
    std::string text;
    void write(log::Level, std::string_view line) override { text += line; }
  } lines;
  log::set_sink(&lines);
  train::check_data(job, graph, data, true);
  log::set_sink(nullptr);
  CHECK_THAT(lines.text,
             Catch::Contains("data.tensors has \"attention_mask\", but the model does not "
                             "read it") &&
                 !Catch::Contains("\"tokens\""));
}
