// The method lora on models of Hugging Face: adapters of PEFT, their export, and merged weights.
#include "checkpoint/weights/adapter_folder.h"
#include "checkpoint/weights/export_folder.h"
#include "checkpoint/weights/merge.h"
#include "tests/train/hf/support.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Contains;
using checkpoint::Checkpoint;

namespace {

// A model of the fixtures with the adapters of a folder that PEFT wrote.
struct Adapted {
  std::string model, adapter;
  std::string config;  // of lora
};

const Adapted kLlama{
    "llama", "adapter-llama",
    R"({"match": ["attn.q", "attn.v", "down"], "rank": 4, "alpha": 6, "trained": "head.**"})"};
const Adapted kGpt2{"gpt2", "adapter-gpt2",
                    R"({"match": ["qkv", "blocks.1.mlp.down"], "rank": 3, "alpha": 5,
                        "rslora": true})"};

std::string from(const std::string& folder) {
  return "adapter = '" + std::filesystem::absolute(folder).string() + "'\n";
}

std::string strategy(const std::string& lora, const std::string& more = "") {
  return R"([["lora", )" + lora + "]" + (more.empty() ? "" : ", " + more) + "]";
}

std::string with_config(const std::string& field, const std::string& value) {
  auto config = nlohmann::json::parse(kLlama.config);
  config[field] = nlohmann::json::parse(value);
  return strategy(config.dump());
}

// A trained model and its checkpoints.
struct Run {
  Folder folder;
  HfModel model;
  PlannedJob planned;
  Trainer trainer;
  Batch batch = batch_of(read_json(fixture("llama") + "/values.json"));
  int saved = 0;

  Run(const Job& job, const std::string& strategy, int64_t ranks = 1)
      : model(job),
        planned(make_plan(model.source, Strategy::data(strategy), job, {ranks})),
        trainer(*model.module, planned, job, Ranks::threads(ranks), nullptr) {}

  const graph::Adapters& adapters() const { return *planned.plan.adapters; }
  Checkpoint save() {
    const auto run = folder.at("run-" + std::to_string(saved++));
    trainer.save(run);
    return Checkpoint(checkpoint::find_checkpoint(run));
  }
  // Returns the tensors of a checkpoint by name.
  std::map<std::string, at::Tensor> tensors() {
    const auto checkpoint = save();
    std::map<std::string, at::Tensor> all;
    for (const auto& tensor : checkpoint.tensors()) {
      all[tensor.name] = checkpoint::read_whole(checkpoint, tensor);
    }
    return all;
  }
};

// The name that PEFT gives a parameter.
std::string name_in_file(const std::string& ours, const hf::Names& names) {
  const auto lora = ours.find("lora_");
  const auto weight = lora == ours.npos ? ours : ours.substr(0, lora) + "weight";
  auto name = "base_model.model." + names.find(weight, 0)->names[0];
  if (lora != ours.npos) name = name.substr(0, name.size() - 6) + ours.substr(lora);
  return name;
}

// Trains one step of SGD with learning rate 1 and compares it with the fixture.
void check_fixture(const Adapted& adapted, const std::string& dtype, double tolerance,
                   const std::string& more = "", int64_t ranks = 1, int64_t micro = 8) {
  CAPTURE(adapted.adapter, dtype, more);
  auto job = hf_job(fixture(adapted.model), dtype, from(fixture(adapted.adapter)));
  job.batch.micro = micro;
  Run run(job, strategy(adapted.config, more), ranks);
  const auto values = read_json(fixture(adapted.adapter) + "/values.json")[dtype];
  if (ranks == 1) {
    CHECK(agree(summary(run.trainer.forward(run.batch).at("logits")), values["logits"], tolerance));
  }
  const auto before = run.tensors();
  const double loss = run.trainer.step(run.batch).loss, wanted = values["loss"];
  CHECK(std::abs(loss - wanted) <= tolerance * (1 + std::abs(wanted)));
  const auto after = run.tensors();
  const auto names = *hf::names_of(job.model);
  size_t trained = 0;
  for (const auto& [name, first] : before) {
    CAPTURE(name);
    const auto found = values["gradients"].find(name_in_file(name, names));
    if (found == values["gradients"].end()) {
      CHECK(at::equal(first, after.at(name)));
      continue;
    }
    ++trained;
    const bool by_heads = name.ends_with("qkv.lora_B.weight");
    const auto gradient = checkpoint::as_stored(
        first - after.at(name), by_heads ? hf::Form::heads : hf::Form::same, names.heads());
    CHECK(agree(summary(gradient), *found, tolerance));
  }
  CHECK(trained == values["gradients"].size());
}

std::string refused(const std::string& folder, const std::string& strategy) {
  const auto job = hf_job(fixture("llama"), "float64", from(folder));
  return error_of([&] { Run(job, strategy); });
}

// A copy of an adapter's folder, to be changed.
struct AdapterCopy {
  FolderCopy copy{"adapter-llama"};
  std::string refused() const { return ::refused(copy.path(), strategy(kLlama.config)); }
  std::string with(const nlohmann::json& keys) const {
    auto config = read_json(copy.at("adapter_config.json"));
    config.merge_patch(keys);
    write_json(copy.at("adapter_config.json"), config);
    return refused();
  }
  // Renames a tensor; "": removes it.
  std::string renamed(const std::string& name, const std::string& to) const {
    const auto path = copy.at("adapter_model.safetensors");
    const checkpoint::SafetensorsFile file(fixture("adapter-llama/adapter_model.safetensors"));
    auto list = file.tensors();
    std::erase_if(list, [&](const auto& t) { return t.name == name && to.empty(); });
    for (auto& tensor : list) {
      if (tensor.name == name) tensor.name = to;
    }
    checkpoint::write_safetensors(path, list);
    return refused();
  }
};

constexpr const char* kMesh = R"(["parallel_mode", [["tensor", 2], ["data", 2], ["pipe", 2]]],
    "tensor_parallel", ["pipeline_parallel", {}])";

}  // namespace

TEST_CASE("adapters of PEFT have its losses, logits and gradients", "[adapters]") {
  for (const auto& adapted : {kLlama, kGpt2}) {
    check_fixture(adapted, "float64", 1e-10);
    check_fixture(adapted, "float32", 1e-5);
    check_fixture(adapted, "float64", 1e-10, kMesh, 8, 2);
    check_fixture(adapted, "float64", 1e-10, R"(["parallel_mode", [["data", 2]]], "fsdp")", 2, 4);
  }
}

TEST_CASE("an exported adapter is that of PEFT, from any ranks", "[adapters]") {
  for (const auto& adapted : {kLlama, kGpt2}) {
    CAPTURE(adapted.adapter);
    for (const bool split : {false, true}) {
      auto job = hf_job(fixture(adapted.model), "float32", from(fixture(adapted.adapter)));
      job.batch.micro = split ? 2 : 8;
      Run run(job, strategy(adapted.config, split ? kMesh : ""), split ? 8 : 1);
      const auto out = run.folder.at("adapter");
      checkpoint::export_adapter(run.save(), job.model, run.adapters(), out);
      const checkpoint::WeightFiles ours(out), theirs(fixture(adapted.adapter));
      REQUIRE(ours.names() == theirs.names());
      for (const auto& name : ours.names()) {
        CAPTURE(name);
        CHECK(ours.find(name)->shape == theirs.find(name)->shape);
        CHECK(std::ranges::equal(ours.find(name)->bytes, theirs.find(name)->bytes));
      }
      const auto wanted = read_json(fixture(adapted.adapter) + "/adapter_config.json");
      const auto config = read_json(out + "/adapter_config.json");
      CHECK(config["target_modules"] ==
            (adapted.model == "gpt2" ? nlohmann::json{"c_attn", "transformer.h.1.mlp.c_proj"}
                                     // of h.0 there is none
                                     : nlohmann::json{"down_proj", "q_proj", "v_proj"}));
      for (const auto& [key, value] : config.items()) {
        CAPTURE(key);
        if (key == "base_model_name_or_path" || key == "target_modules") continue;
        CHECK(value == wanted[key]);
      }
    }
  }
}

TEST_CASE("an adapter that was trained and exported is loaded with every bit", "[adapters]") {
  const auto job = hf_job(fixture("gpt2"), "float32");
  Run run(job, strategy(kGpt2.config));
  for (int step = 0; step < 3; ++step) run.trainer.step(run.batch);
  const auto trained = run.tensors();
  checkpoint::export_adapter(run.save(), job.model, run.adapters(), run.folder.at("adapter"));
  Run again(hf_job(fixture("gpt2"), "float32", from(run.folder.at("adapter"))),
            strategy(kGpt2.config));
  for (const auto& [name, tensor] : again.tensors()) {
    CAPTURE(name);
    if (name.find(':') == name.npos) CHECK(at::equal(tensor, trained.at(name)));
  }
  CHECK(again.trainer.step(run.batch).loss == run.trainer.step(run.batch).loss);
}

TEST_CASE("merged weights give the losses of the adapters", "[adapters]") {
  for (const auto& adapted : {kLlama, kGpt2}) {
    CAPTURE(adapted.adapter);
    const auto job = hf_job(fixture(adapted.model), "float64", from(fixture(adapted.adapter)));
    Run run(job, strategy(adapted.config));
    const auto checkpoint = run.save();
    const auto values = read_json(fixture(adapted.adapter) + "/values.json")["float64"];
    const auto logits = [&](const Job& merged) {
      return summary(HfModel(merged).trainer().forward(run.batch).at("logits"));
    };
    const auto hf = run.folder.at("hf"), file = run.folder.at("merged.safetensors");
    checkpoint::export_folder(
        checkpoint, job.model,
        {.folder = hf, .dtype = graph::DType::float64, .adapters = run.adapters()});
    CHECK(agree(logits(hf_job(hf)), values["logits"], 1e-10));
    checkpoint::export_merged(checkpoint, run.adapters(), file);
    CHECK(agree(logits(hf_job(fixture(adapted.model), "float64", "weights = '" + file + "'\n")),
                values["logits"], 1e-10));
    // The base alone gives others.
    CHECK_FALSE(agree(logits(hf_job(fixture(adapted.model))), values["logits"], 1e-3));
    // A trainer's module gets merged weights.
    const auto w = run.model.weights(run.trainer);
    const checkpoint::SafetensorsFile merged(file);
    for (const auto& [name, tensor] : w) {
      CAPTURE(name);
      const auto& bytes = merged.find(name)->bytes;
      CHECK(std::memcmp(bytes.data(), tensor.data_ptr(), bytes.size()) == 0);
    }
  }
}

TEST_CASE("a resumed run of adapters has every bit of one that did not stop", "[adapters]") {
  const auto job = Job::parse(
      "name = 'hf'\n[model]\nkind = 'hf'\nfolder = '" +
          std::filesystem::absolute(fixture("llama")).string() +
          "'\n[data]\nsynthetic = true\nsequence = 8\n[batch]\nglobal = 8\n[train]\nsteps = 4\n",
      "resume.toml");
  const auto lora = strategy(R"({"match": ["attn.q", "down"], "rank": 2, "dropout": 0.1})",
                             R"(["parallel_mode", [["data", 2]]], "fsdp")");
  Run whole(job, lora, 2), begun(job, lora, 2), resumed(job, lora, 2);
  for (int step = 0; step < 4; ++step) whole.trainer.step(whole.batch);
  for (int step = 0; step < 2; ++step) begun.trainer.step(begun.batch);
  const auto stopped = begun.save();
  resumed.trainer.load(stopped.folder());
  for (int step = 0; step < 2; ++step) resumed.trainer.step(whole.batch);
  const auto wanted = whole.tensors();
  size_t states = 0;
  for (const auto& [name, tensor] : resumed.tensors()) {
    CAPTURE(name);
    CHECK(at::equal(tensor, wanted.at(name)));
    if (name.find(':') == name.npos) continue;
    ++states;
    CHECK(name.find("lora_") != name.npos);
  }
  CHECK(states == 2 * 2 * whole.adapters().weights.size());

  Run base(job, R"([["parallel_mode", [["data", 2]]]])", 2);
  CHECK_THAT(error_of([&] { base.trainer.load(stopped.folder()); }),
             Contains("has adapters (") && Contains("add the method lora to the strategy"));
}

TEST_CASE("first values of adapters depend on the seed alone, and B is zero", "[adapters]") {
  const auto job = hf_job(fixture("llama"), "float32");
  auto other = job;
  other.seed = 5;
  Run one(job, strategy(kLlama.config)), different(other, strategy(kLlama.config));
  auto split_job = job;
  split_job.batch.micro = 2;
  Run split(split_job, strategy(kLlama.config, kMesh), 8);
  const auto first = one.tensors(), split_first = split.tensors(), others = different.tensors();
  for (const auto& [name, tensor] : first) {
    CAPTURE(name);
    CHECK(at::equal(tensor, split_first.at(name)));
    if (name.ends_with("lora_B.weight")) CHECK(tensor.abs().max().item<float>() == 0);
    if (!name.ends_with("lora_A.weight")) continue;
    CHECK_FALSE(at::equal(tensor, others.at(name)));
    const double bound = 1 / std::sqrt(static_cast<double>(tensor.size(1)));
    CHECK(tensor.abs().max().item<double>() <= bound);
    CHECK(tensor.abs().max().item<double>() > bound / 2);
  }
}

TEST_CASE("an adapter of other settings or another model is refused", "[adapters]") {
  const auto folder = fixture("adapter-llama");
  CHECK(refused(folder, strategy(kLlama.config)) == "nothing was thrown");
  CHECK_THAT(refused(folder, with_config("rank", "3")),
             Contains("r of ") && Contains("must be 3, but is 4: set lora's rank to it"));
  CHECK_THAT(refused(folder, with_config("alpha", "8")), Contains("lora_alpha"));
  CHECK_THAT(refused(folder, with_config("rslora", "true")), Contains("use_rslora"));
  CHECK_THAT(
      refused(folder, with_config("match", R"(["attn.q", "attn.v"])")),
      Contains("4 are not of lora's adapters: base_model.model.model.layers.0.mlp.down_proj"));
  CHECK_THAT(
      refused(folder, with_config("match", R"(["attn.q", "attn.v", "down", "gate"])")),
      Contains("4 are missing: base_model.model.model.layers.0.mlp.gate_proj.lora_A.weight"));
  CHECK_THAT(refused(folder, "[]"), Contains("add the method lora to the strategy"));
  CHECK_THAT(refused(fixture("adapter-gpt2"),
                     strategy(R"({"match": "attn.q", "rank": 3, "alpha": 5, "rslora": true})")),
             Contains("missing") && Contains("c_attn"));
  CHECK_THAT(refused(fixture("llama"), strategy(kLlama.config)), Contains("adapter_config.json"));
}

TEST_CASE("an adapter with damaged tensors or options that lora lacks is refused", "[adapters]") {
  const std::string q = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight";
  CHECK_THAT(AdapterCopy().renamed(q, ""), Contains("1 is missing: " + q));
  CHECK_THAT(AdapterCopy().renamed(q, q.substr(0, q.size() - 7) + ".weights"),
             Contains("1 is missing: " + q + " (nearest: ") && Contains("not of lora's adapters"));
  CHECK_THAT(AdapterCopy().with({{"peft_type", "IA3"}}), Contains("peft_type"));
  CHECK_THAT(AdapterCopy().with({{"use_dora", true}}), Contains("use_dora"));
  CHECK_THAT(AdapterCopy().with({{"bias", "all"}}), Contains("bias"));
  CHECK_THAT(AdapterCopy().with({{"rank_pattern", {{"q_proj", 8}}}}), Contains("rank_pattern"));
  CHECK_THAT(AdapterCopy().with({{"init_lora_weights", "pissa"}}), Contains("init_lora_weights"));
  CHECK_THAT(AdapterCopy().with({{"trainable_token_indices", {1, 2}}}),
             Contains("trainable_token_indices"));
  const AdapterCopy no_json;
  std::ofstream(no_json.copy.at("adapter_config.json")) << "[";
  CHECK_THAT(no_json.refused(), Contains("must hold a JSON object"));
}

TEST_CASE("an export of an adapter leaves nothing where it fails", "[adapters]") {
  const auto job = hf_job(fixture("llama"), "float32");
  Run run(job, strategy(R"({"match": "attn.q", "trained": "blocks.0.attn.k.weight"})"));
  const auto checkpoint = run.save();
  const auto out = run.folder.at("adapter");
  CHECK_THAT(
      error_of([&] { checkpoint::export_adapter(checkpoint, job.model, run.adapters(), out); }),
      Contains("PEFT keeps whole modules") && Contains("model.layers.0.self_attn.k_proj not all") &&
          Contains("blocks.0.attn.k.bias"));
  CHECK_FALSE(std::filesystem::exists(out));
  CHECK_THAT(error_of([&] {
               checkpoint::export_adapter(checkpoint, job.model, run.adapters(), fixture("llama"));
             }),
             Contains("PEFT keeps"));
}
