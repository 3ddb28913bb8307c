// Files of weights: which are accepted, and the errors of the others.
#include "base/log.h"
#include "tests/train/hf/support.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Contains;
using checkpoint::TensorBytes;

namespace {

// The tensors of a file, to be changed and written again.
struct Tensors {
  checkpoint::SafetensorsFile file;
  std::vector<TensorBytes> list;

  explicit Tensors(const std::string& path) : file(path), list(file.tensors()) {}
  TensorBytes& at(const std::string& name) {
    return *std::ranges::find(list, name, &TensorBytes::name);
  }
  void erase(const std::string& name) {
    std::erase_if(list, [&](const auto& tensor) { return tensor.name == name; });
  }
  void write(const std::string& path) const { checkpoint::write_safetensors(path, list); }
};

std::vector<checkpoint::WantedTensor> wanted_of(const HfModel& model) {
  std::vector<checkpoint::WantedTensor> wanted;
  for (const auto& item : model.module->named_parameters()) {
    wanted.push_back({item.key(), graph::DType::float64, item.value().sizes().vec()});
  }
  return wanted;
}

// Returns the error of a trainer of the job.
std::string refused(const Job& job) {
  return error_of([&] { HfModel(job).trainer(); });
}

}  // namespace

TEST_CASE("a part of a tensor is that part of the whole, for every family") {
  for (const std::string name : {"llama", "gpt2", "mixtral", "qwen2"}) {
    CAPTURE(name);
    const HfModel model(hf_job(fixture(name)));
    const checkpoint::InitialWeights weights(fixture(name), model.job.model, wanted_of(model),
                                             false);
    for (const auto& tensor : wanted_of(model)) {
      CAPTURE(tensor.name);
      std::vector<mesh::Range> all, part;
      for (size_t d = 0; d < tensor.shape.size(); ++d) {
        const auto size = tensor.shape[d];
        all.push_back({0, size});
        part.push_back({size / 3, size / 2 - (d == 0 ? 1 : 0)});  // across the bounds of heads
      }
      const auto whole = at::empty(tensor.shape, at::kDouble);
      weights.read(tensor.name, all, whole);
      auto expected = whole;
      std::vector<int64_t> sizes;
      for (size_t d = 0; d < part.size(); ++d) {
        expected = expected.narrow(int64_t(d), part[d].begin, part[d].length);
        sizes.push_back(part[d].length);
      }
      const auto got = at::empty(sizes, at::kDouble);
      weights.read(tensor.name, part, got);
      CHECK(got.equal(expected));
    }
    CHECK(weights.report() == fmt::format("{} of {} tensors loaded from {}",
                                          wanted_of(model).size(), wanted_of(model).size(),
                                          fixture(name)));
  }
}

TEST_CASE("each rank reads its parts of the tensors alone") {
  struct Lines : log::Sink {
    std::vector<std::string> lines;
    void write(log::Level, std::string_view text) override { lines.emplace_back(text); }
  };
  // Returns the bytes that each of four ranks reads, and those of all tensors.
  const auto read_by = [](const std::string& strategy) {
    const auto job = hf_job(fixture("llama"));
    Lines sink;
    log::set_sink(&sink, log::Level::debug);
    const auto trainer = HfModel(job).trainer(Strategy::data(strategy), 4);
    log::set_sink(nullptr, log::Level::info);
    std::vector<int64_t> bytes(5, -1);
    for (const auto& line : sink.lines) {
      int rank = 0;
      long read = 0, all = 0;
      if (std::sscanf(line.c_str(), "rank %d has read %ld of %ld bytes", &rank, &read, &all) != 3) {
        continue;
      }
      bytes.at(rank) = read;
      bytes.back() = all;
    }
    return bytes;
  };
  const auto whole = read_by(R"([["parallel_mode", [["data", 4]]]])");
  REQUIRE(whole.back() > 0);
  for (int rank = 0; rank < 4; ++rank) CHECK(whole[rank] == whole.back());
  const auto parts = read_by(R"([["parallel_mode", [["data", 4]]], "fsdp"])");
  CHECK(parts[0] + parts[1] + parts[2] + parts[3] == whole.back());
  for (int rank = 0; rank < 4; ++rank) CHECK(parts[rank] < whole.back() / 3);
  const auto cut = read_by(
      R"([["parallel_mode", [["tensor", 2], ["pipe", 2]]], "tensor_parallel", "pipeline_parallel"])");
  for (int rank = 0; rank < 4; ++rank) CHECK(cut[rank] < whole.back() / 2);
}

TEST_CASE("the built-in gpt and llama start from folders of Hugging Face") {
  const struct {
    const char* fixture;
    const char* model;
  } cases[] = {{"gpt2", "kind = 'gpt'\nheads = 4\nhidden = 24\npositions = 16\n"},
               {"plain-llama", "kind = 'llama'\nheads = 2\nhidden = 24\neps = 1e-6\n"}};
  for (const auto& one : cases) {
    CAPTURE(one.fixture);
    const auto values = read_json(fixture(one.fixture) + "/values.json");
    auto job = hf_job(fixture(one.fixture));
    const auto built = Job::parse(
        "[model]\ndtype = 'float64'\nlayers = 2\nwidth = 16\nvocab = 24\n" +
            std::string(one.model) + "[data]\nsequence = 8\n",
        "built.toml");
    job.model = built.model;
    auto trainer = HfModel(job).trainer();
    const double wanted = values["float64"]["loss"];
    CHECK(trainer.step(batch_of(values)).loss == Approx(wanted).epsilon(1e-10));
  }
}

TEST_CASE("a file of the model without its head has names without the prefix") {
  const FolderCopy copy("gpt2");
  Tensors tensors(copy.at("model.safetensors"));
  for (auto& tensor : tensors.list) tensor.name = tensor.name.substr(sizeof "transformer");
  tensors.write(copy.at("model.safetensors"));
  const auto values = read_json(copy.at("values.json"));
  auto trainer = HfModel(hf_job(copy.path())).trainer();
  CHECK(trainer.step(batch_of(values)).loss ==
        Approx(double(values["float64"]["loss"])).epsilon(1e-10));
}

TEST_CASE(
    "missing and extra tensors are refused with their nearest names, unless initialise is set") {
  const FolderCopy copy("llama");
  Tensors tensors(copy.at("model.safetensors"));
  tensors.at("model.layers.1.self_attn.q_proj.weight").name =
      "model.layers.1.self_attn.q_prj.weight";
  for (int layer : {0, 1}) {
    for (const char* name : {"gate", "up", "down"}) {
      tensors.erase(fmt::format("model.layers.{}.mlp.{}_proj.weight", layer, name));
    }
  }
  tensors.write(copy.at("model.safetensors"));
  const auto error = refused(hf_job(copy.path()));
  CHECK_THAT(error, Contains("but of those in " + copy.path() + ", 7 are missing: ") &&
                        Contains("model.layers.0.mlp.down_proj.weight") &&
                        Contains(" and 2 more") &&
                        Contains("1 is not of the model: model.layers.1.self_attn.q_prj.weight "
                                 "(nearest: model.layers.1.self_attn.q_proj.weight)") &&
                        Contains("train.initialise = true"));
  const HfModel partial(hf_job(copy.path(), "float64", "initialise = true"));
  const HfModel whole(hf_job(fixture("llama")));
  auto some = partial.trainer(), all = whole.trainer();
  const auto a = partial.weights(some), b = whole.weights(all);
  CHECK(a.at("blocks.0.attn.q.weight").equal(b.at("blocks.0.attn.q.weight")));
  CHECK(!a.at("blocks.1.attn.q.weight").equal(b.at("blocks.1.attn.q.weight")));
  const checkpoint::InitialWeights weights(copy.path(), partial.job.model, wanted_of(partial),
                                           true);
  CHECK_THAT(weights.report(), Contains("7 initialised by the model; 1 there not of the model"));
}

TEST_CASE("a head of other values than the embedding is refused where the head is the embedding") {
  const FolderCopy copy("llama");
  copy.set({{"tie_word_embeddings", true}});
  CHECK_THAT(refused(hf_job(copy.path())),
             Contains("lm_head.weight with other values than model.embed_tokens.weight") &&
                 Contains("set tie_word_embeddings = false in config.json"));
  CHECK(refused(hf_job(copy.path(), "float64", "initialise = true")) == "nothing was thrown");
  // A copy of the embedding is ignored.
  Tensors tensors(fixture("llama") + "/model.safetensors");
  tensors.at("lm_head.weight").bytes = tensors.at("model.embed_tokens.weight").bytes;
  tensors.write(copy.at("model.safetensors"));
  CHECK(refused(hf_job(copy.path())) == "nothing was thrown");
}

TEST_CASE("weights of other shapes, types and models are refused") {
  const FolderCopy copy("llama");
  const auto path = copy.at("model.safetensors");
  std::vector<std::byte> zeros(4096);
  const auto change = [&](const std::string& name, graph::DType dtype, std::vector<int64_t> shape,
                          size_t bytes) {
    Tensors tensors(fixture("llama") + "/model.safetensors");
    auto& tensor = tensors.at(name);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.bytes = std::span(zeros).first(bytes);
    tensors.write(path);
    return refused(hf_job(copy.path()));
  };
  CHECK_THAT(
      change("model.norm.weight", graph::DType::float32, {15}, 60),
      Contains("model.norm.weight (here norm.weight)") && Contains("is [15] there and [16] here"));
  CHECK_THAT(change("model.norm.weight", graph::DType::int64, {16}, 128),
             Contains("is int64 there and float64 here"));
  CHECK_THAT(
      refused(hf_job(copy.path(), "float64",
                     "weights = '" + std::filesystem::absolute(fixture("gpt2")).string() + "'")),
      Contains("has none of them: it lacks ") && Contains("transformer.h.0.attn.c_attn"));
}

TEST_CASE("weights that are not finite are a warning that names them") {
  struct Lines : log::Sink {
    std::string text;
    void write(log::Level, std::string_view line) override { text += line; }
  } lines;
  const FolderCopy copy("llama");
  Tensors tensors(copy.at("model.safetensors"));
  auto& norm = tensors.at("model.norm.weight");
  std::vector<float> values(norm.bytes.size() / sizeof(float), 1.0F);
  REQUIRE(norm.dtype == graph::DType::float32);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  norm.bytes = std::as_bytes(std::span(values));
  tensors.write(copy.at("model.safetensors"));
  const HfModel model(hf_job(copy.path()));
  log::set_sink(&lines);
  auto trainer = model.trainer();
  log::set_sink(nullptr);
  CHECK_THAT(lines.text, Contains("model.norm.weight of " + copy.path() +
                                  " has numbers that are NaN or infinite in float64") &&
                             !Contains("embed_tokens"));
}

TEST_CASE("damaged files and indexes are refused before a value is loaded") {
  const FolderCopy one("llama");
  std::filesystem::resize_file(one.at("model.safetensors"), 9000);
  CHECK_THAT(refused(hf_job(one.path())), Contains("it is damaged or cut short"));

  const FolderCopy shards("qwen2");
  const auto index_path = shards.at("model.safetensors.index.json");
  const auto index = read_json(index_path);
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) files[file] = name;
  REQUIRE(files.size() > 2);
  const auto [file, name] = *files.begin();
  std::filesystem::rename(shards.at(file), shards.at("moved"));
  CHECK_THAT(refused(hf_job(shards.path())),
             Contains(fmt::format("1 of {} are missing: {}", files.size(), file)));
  std::filesystem::rename(shards.at("moved"), shards.at(file));
  auto wrong = index;
  wrong["weight_map"]["model.other.weight"] = file;
  write_json(index_path, wrong);
  CHECK_THAT(
      refused(hf_job(shards.path())),
      Contains("names " + file + " for model.other.weight, but that file has no such tensor"));
  wrong = index;
  wrong["weight_map"][name] = "../" + file;
  write_json(index_path, wrong);
  CHECK_THAT(refused(hf_job(shards.path())), Contains("names a file of its folder"));
  std::ofstream(index_path) << "[";
  CHECK_THAT(refused(hf_job(shards.path())),
             Contains("must hold a JSON object with an object \"weight_map\""));
}

TEST_CASE("of a folder with one file and an index of others, the file is read") {
  const FolderCopy copy("qwen2");
  std::filesystem::copy_file(fixture("llama") + "/model.safetensors", copy.at("model.safetensors"));
  CHECK(checkpoint::WeightFiles(copy.path()).names() ==
        checkpoint::WeightFiles(fixture("llama")).names());
}

TEST_CASE("a folder without weights is a model to initialise") {
  const auto folder = fixture("llama-yarn");
  CHECK_THAT(error_of([&] {
               HfModel model(hf_job(folder));
               auto trainer = model.trainer();
               trainer.evaluate(batch_of(read_json(folder + "/values.json")));
             }),
             Contains("initialise is false"));
  const HfModel model(hf_job(folder, "float64", "initialise = true"));
  auto trainer = model.trainer();
  const auto weights = model.weights(trainer);
  CHECK(weights.at("norm.weight").eq(1).all().item<bool>());
  CHECK(weights.at("blocks.0.attn.q.bias").eq(0).all().item<bool>());
  CHECK(weights.at("embed.weight").std().item<double>() == Approx(0.02).epsilon(0.2));
}
