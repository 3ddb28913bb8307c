// Models of Hugging Face folders against transformers' losses, logits and gradients.
#include "tests/train/hf/support.h"

using namespace perigee;
using namespace perigee::test;

namespace {

// Trains one step and compares it with the fixture. `weights`: the fixture with the weights.
void check_fixture(const std::string& name, const std::string& dtype, double tolerance,
                   const std::string& strategy = "", int64_t ranks = 1, int64_t micro = 8) {
  CAPTURE(name, dtype, strategy);
  const bool variant = name.starts_with("llama-");
  const auto weights = variant ? "weights = '" +
                                     std::filesystem::absolute(fixture("llama")).string() + "'\n"
                               : std::string();
  auto job = hf_job(fixture(name), dtype, weights);
  job.batch.micro = micro;
  const HfModel model(job);
  const auto values = read_json(fixture(name) + "/values.json");
  const auto batch = batch_of(values);
  auto trainer = model.trainer(strategy.empty() ? Strategy() : Strategy::data(strategy), ranks);
  const auto before = model.weights(trainer);
  if (ranks == 1 && micro == 8) {
    CHECK(agree(summary(trainer.forward(batch).at("logits")), values[dtype]["logits"], tolerance));
  }
  const double loss = trainer.step(batch).loss, wanted = values[dtype]["loss"];
  CHECK(std::abs(loss - wanted) <= tolerance * (1 + std::abs(wanted)));
  const auto after = model.weights(trainer);
  const auto names = *hf::names_of(job.model);
  size_t compared = 0;
  for (const auto& [ours, first] : before) {
    const auto gradient = first - after.at(ours);
    const auto stored = *names.find(ours, first.size(0));
    for (size_t e = 0; e < stored.names.size(); ++e) {
      const auto& theirs = stored.names[e];
      CAPTURE(theirs);
      REQUIRE(values[dtype]["gradients"].contains(theirs));
      const auto one = stored.form == hf::Form::experts_transposed ? gradient[int64_t(e)]
                                                                   : gradient;
      CHECK(agree(summary(checkpoint::as_stored(one, stored.form, names.heads())),
                  values[dtype]["gradients"][theirs], tolerance));
      ++compared;
    }
  }
  CHECK(compared == values[dtype]["gradients"].size());
}

const std::vector<std::string> kFamilies = {"llama", "mistral", "qwen2",  "qwen3",
                                            "gemma", "gpt2",    "mixtral"};

}  // namespace

TEST_CASE("losses, logits and gradients of every family equal transformers'") {
  for (const auto& name : kFamilies) {
    check_fixture(name, "float64", 1e-10);
    check_fixture(name, "float32", 1e-5);
  }
}

TEST_CASE("norms that scale by 1 + weight add it in float32 in a bfloat16 model") {
  const HfModel model(hf_job(fixture("gemma"), "bfloat16"));
  const auto& captured = model.source->at(1).graph;
  const auto dtype = [&](graph::ValueId v) { return captured.type(v).dtype; };
  int norms = 0;
  for (const auto& node : captured.nodes) {
    if (node.op != "perigee::rms_norm") continue;
    ++norms;
    CHECK(dtype(node.get<graph::ValueId>("self", {})) == graph::DType::float32);
    const auto scale = node.get<graph::ValueId>("weight", {});
    const auto& sum = captured.nodes.at(size_t(captured.values[size_t(scale.index)].producer));
    CHECK_THAT(sum.op, Catch::StartsWith("aten::add"));
    CHECK(dtype(sum.get<graph::ValueId>("self", {})) == graph::DType::float32);
  }
  CHECK(norms == 5);
}

TEST_CASE("a mixture's balance loss is transformers', also on a mesh") {
  check_fixture("mixtral-balanced", "float64", 1e-10);
  check_fixture("mixtral-balanced", "float64", 1e-10,
                R"([["parallel_mode", [["tensor", 2], ["data", 2]]], "tensor_parallel"])", 4, 4);
}

TEST_CASE("rotary positions of every kind and other activations equal transformers'") {
  for (const char* kind : {"linear", "dynamic", "yarn", "longrope", "llama3", "gelu"}) {
    check_fixture(std::string("llama-") + kind, "float64", 1e-10);
  }
}

TEST_CASE("families on a mesh of tensor, pipe and data ranks equal transformers'") {
  const std::string split = R"([["parallel_mode", [["tensor", 2], ["data", 2], ["pipe", 2]]],
                                "tensor_parallel", ["pipeline_parallel", {}]])";
  for (const auto& name : kFamilies) check_fixture(name, "float64", 1e-10, split, 8, 2);
  check_fixture("qwen3", "float64", 1e-10, R"([["parallel_mode", [["data", 2]]], "fsdp"])", 2, 4);
  check_fixture("mixtral", "float64", 1e-10,
                R"([["parallel_mode", [["expert", 2], ["data", 2]]], "expert_parallel", "fsdp"])",
                4, 1);
}
