// Folders that `perigee export --hf` writes.
#include <cstdlib>

#include "checkpoint/weights/export_folder.h"
#include "tests/train/hf/support.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Contains;

namespace {

// Trains `steps` steps, saves, and exports the checkpoint.
struct Exported {
  Folder out;
  std::map<std::string, at::Tensor> weights;

  Exported(const Job& job, int64_t steps, const checkpoint::FolderOptions& given = {},
           const std::string& strategy = "", int64_t ranks = 1) {
    const HfModel model(job);
    auto trainer = model.trainer(strategy.empty() ? Strategy() : Strategy::data(strategy), ranks);
    const auto batch = batch_of(read_json(fixture("llama") + "/values.json"));
    for (int64_t i = 0; i < steps; ++i) trainer.step(batch);
    trainer.save(out.at("run"));
    weights = model.weights(trainer);
    auto options = given;
    options.folder = folder();
    checkpoint::export_folder(checkpoint::Checkpoint(checkpoint::find_checkpoint(out.at("run"))),
                              job.model, options);
  }
  std::string folder() const { return out.at("exported"); }
};

// Checks that both folders have the same tensors, byte for byte.
void check_equal(const std::string& a, const std::string& b) {
  const checkpoint::WeightFiles first(a), second(b);
  REQUIRE(first.names() == second.names());
  for (const auto& name : first.names()) {
    CAPTURE(name);
    const auto &x = *first.find(name), &y = *second.find(name);
    CHECK(x.dtype == y.dtype);
    CHECK(x.shape == y.shape);
    CHECK(std::ranges::equal(x.bytes, y.bytes));
  }
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

// transformers loaded the folders with these files, with equal logits (make_fixtures.py --check);
// PERIGEE_UPDATE=1 writes them anew.
TEST_CASE("an untrained model is exported with the bytes of its folder, from any ranks") {
  const std::string golden = "tests/train/hf/exported.json";
  nlohmann::json hashes;
  for (const std::string name :
       {"llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "mixtral"}) {
    CAPTURE(name);
    auto job = hf_job(fixture(name), "float32");
    job.optimizer.lr = 0;
    job.batch.micro = 4;
    const Exported one(job, 0);
    const Exported split(job, 1, {.shard_bytes = 6000},
                         R"([["parallel_mode", [["tensor", 2], ["pipe", 2]]], "tensor_parallel",
                             ["pipeline_parallel", {}]])",
                         4);
    CHECK(text_of(one.folder() + "/config.json") == text_of(fixture(name) + "/config.json"));
    for (const auto& folder : {one.folder(), split.folder()}) {
      check_equal(fixture(name), folder);
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() != ".safetensors") continue;
        const checkpoint::SafetensorsFile file(entry.path().string());
        hashes[name][entry.path().filename().string()] = file.checksum();
      }
    }
  }
  if (std::getenv("PERIGEE_UPDATE")) write_json(golden, hashes);
  CHECK(hashes == read_json(golden));
}

TEST_CASE("files of an export have at most the given size, and an index") {
  const Exported out(hf_job(fixture("llama"), "float32"), 0, {.shard_bytes = 6000});
  const auto index = read_json(out.folder() + "/model.safetensors.index.json");
  int64_t total = 0, files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out.folder())) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    int64_t bytes = 0;
    const checkpoint::SafetensorsFile file(entry.path().string());
    for (const auto& tensor : file.tensors()) {
      bytes += static_cast<int64_t>(tensor.bytes.size());
      CHECK(index["weight_map"][tensor.name] == entry.path().filename().string());
    }
    CHECK((bytes <= 6000 || file.tensors().size() == 1));
    total += bytes;
  }
  CHECK(files > 2);
  CHECK(index["metadata"]["total_size"] == total);
}

TEST_CASE("a trained model is exported and loaded again, in a type of choice") {
  const Exported out(hf_job(fixture("mixtral")), 1, {.dtype = graph::DType::float64});
  CHECK(read_json(out.folder() + "/config.json")["dtype"] == "float64");
  const HfModel model(hf_job(out.folder()));
  auto trainer = model.trainer();
  for (const auto& [name, value] : model.weights(trainer)) {
    CAPTURE(name);
    CHECK(value.equal(out.weights.at(name)));
  }
  const HfModel first(hf_job(fixture("mixtral")));
  auto untrained = first.trainer();
  CHECK(!first.weights(untrained)
             .at("blocks.0.experts.up")
             .equal(out.weights.at("blocks.0.experts.up")));
}

TEST_CASE("a folder in use and a model of another kind are not exported") {
  const Exported out(hf_job(fixture("llama")), 0);
  const checkpoint::Checkpoint from(checkpoint::find_checkpoint(out.out.at("run")));
  const auto before = text_of(out.folder() + "/model.safetensors");
  const auto job = hf_job(fixture("llama"));
  CHECK_THAT(
      error_of([&] { checkpoint::export_folder(from, job.model, {.folder = out.folder()}); }),
      Contains("--hf names a new or empty folder, but " + out.folder() + " is there"));
  CHECK(text_of(out.folder() + "/model.safetensors") == before);
  auto other = job.model;
  other.kind = "gpt";
  CHECK_THAT(error_of([&] { checkpoint::export_folder(from, other, {.folder = out.out.at("x")}); }),
             Contains("model.kind = \"hf\"") && Contains("of the kind gpt"));
  CHECK(!std::filesystem::exists(out.out.at("x")));
}
