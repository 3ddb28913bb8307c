// The built-in models, a plugin and a TorchScript file: deferred, then captured, against the same
// module with memory and eager autograd.
#include <cstdlib>

#include "capture/models/models.h"
#include "tests/capture/support.h"
#include "tests/support/temporary_folder.h"

namespace perigee::test {
namespace {

// Captures a deferred model, gives its tensors the values of its init graph, and checks parity.
void check_model(const Model& model, const Batch& batch) {
  const auto deferred_graph = capture(*model.module, batch, model.forward);
  REQUIRE(!deferred_graph.init.outputs.empty());
  const auto values = exec::evaluate(deferred_graph.init, {}, {.seed = 3});
  for (auto& p : model.module->named_parameters()) {
    if (deferred_graph.tied.contains(p.key())) continue;
    CHECK(p.value().scalar_type() == at::kDouble);
    p.value().set_data(values.at(p.key()));
  }
  for (auto& b : model.module->named_buffers()) b.value().set_data(values.at(b.key()));
  check_parity(*model.module, batch, model.forward);
  // The graph of a module with memory equals the deferred one's.
  CHECK(graph::difference(deferred_graph.graph,
                          capture(*model.module, batch, model.forward).graph) == "");
}

// Three samples of a built-in model; a quarter of the labels is ignored.
Batch samples(const BuiltInModel& built) {
  Batch batch;
  for (const auto& field : built.batch) {
    auto shape = field.shape;
    shape.insert(shape.begin(), 3);
    auto tensor = field.classes > 0 ? integers(field.classes, shape) : normal(shape);
    if (field.name == "labels") tensor.masked_fill_(uniform(shape) > 0.75, -100);
    batch[field.name] = tensor;
  }
  return batch;
}

void check_built_in(const std::string& keys, Packing packing = Packing::none) {
  INFO(keys);
  const auto job = job::Job::parse(
      "[model]\ndtype = 'float64'\n" + keys + "\n[data]\nsynthetic = true\nsequence = 6\n",
      "test.toml");
  const auto built = make_model(job.model, job.data.sequence, packing);
  check_model(built.model, samples(built));
}

}  // namespace

TEST_CASE("the built-in gpt equals eager autograd") {
  const std::string small = "kind = 'gpt'\nlayers = 2\nwidth = 8\nheads = 2\nvocab = 11\n";
  check_built_in(small);
  check_built_in(small + "dropout = 0.2");
  check_built_in(small + "tied = false\nbias = false");
}

TEST_CASE("the built-in llama equals eager autograd") {
  const std::string small = "kind = 'llama'\nlayers = 2\nwidth = 16\nheads = 4\nvocab = 11\n";
  check_built_in(small);
  check_built_in(small + "kv_heads = 2\ntied = true");
}

TEST_CASE("the built-in moe equals eager autograd") {
  const std::string small =
      "kind = 'moe'\nlayers = 2\nwidth = 8\nheads = 2\nvocab = 11\nexperts = 3\nhidden = 6\n";
  check_built_in(small);
  check_built_in(small + "top_k = 1\ndropout = 0.2\ntied = false\ncapacity = 0.5");
}

TEST_CASE("built-in models of packed documents equal eager autograd") {
  const std::string small = "layers = 2\nwidth = 8\nheads = 2\nvocab = 11\nkind = ";
  check_built_in(small + "'gpt'", Packing::documents);
  check_built_in(small + "'llama'\nkv_heads = 1", Packing::documents);
  check_built_in(small + "'moe'\nexperts = 3\nhidden = 6", Packing::documents);
  for (const char* fixture : {"mistral", "gpt2", "mixtral"}) {
    check_built_in(std::string("kind = 'hf'\nfolder = 'tests/train/hf/fixtures/") + fixture + "'",
                   Packing::documents);
  }
}

TEST_CASE("packed documents are refused where a model cannot separate them") {
  const auto refused = [](const std::string& keys) {
    const auto job = job::Job::parse(
        "[model]\n" + keys + "\n[data]\nsynthetic = true\nsequence = 6\n", "test.toml");
    return error_of([&] { make_model(job.model, 6, Packing::documents); });
  };
  CHECK(refused("kind = 'mlp'\ninputs = 5\noutputs = 4\n") ==
        "[model] data.pack = \"documents\" requires a language model (gpt, llama, moe or hf), but "
        "model.kind is \"mlp\"");
  CHECK_THAT(refused("kind = 'hf'\nfolder = 'tests/train/hf/fixtures/llama-dynamic'"),
             Catch::Contains("(rope_scaling \"dynamic\") depend on the length of a document beyond "
                             "4 tokens"));
}

TEST_CASE("the built-in mlp equals eager autograd") {
  const std::string small = "kind = 'mlp'\ninputs = 5\nwidth = 7\nlayers = 3\noutputs = 4\n";
  check_built_in(small + "dropout = 0.2");
  for (const char* activation : {"relu", "gelu", "silu", "tanh"}) {
    check_built_in(small + "loss = 'mse'\nactivation = '" + activation + "'");
  }
}

TEST_CASE("the built-in resnet equals eager autograd") {
  check_built_in("kind = 'resnet'\ndepth = 18\nwidth = 2\nclasses = 3\nimage = 8");
  check_built_in("kind = 'resnet'\ndepth = 50\nwidth = 2\nclasses = 3\nimage = 64");
}

TEST_CASE("a plugin's model equals eager autograd") {
  const char* folder = std::getenv("PERIGEE_BUILD");
  const auto model = load_plugin(std::string(folder ? folder : "build") + "/libplugin_model.so",
                                 R"({"options": {"dtype": "float64"}})");
  check_model(model, {{"x", normal({5, 4})}, {"y", normal({5, 3})}});
}

}  // namespace perigee::test
