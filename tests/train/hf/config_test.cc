// config.json: keys that are used, ignored and refused.
#include "capture/models/hf/rope.h"
#include "tests/train/hf/support.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

TEST_CASE("a config with a key or value that is not built is refused by name") {
  const struct {
    const char* folder;
    json keys;
    const char* message;
  } cases[] = {
      {"llama", {{"attention_sinks", 4}}, "are built here, but got attention_sinks = 4"},
      {"llama",
       {{"num_key_value_head", 4}},
       "got num_key_value_head = 4, did you mean \"num_key_value_heads\"?"},
      {"llama", {{"model_type", "opt"}}, "model_type is one of llama, mistral, qwen2, qwen3"},
      {"llama", {{"hidden_size", "wide"}}, "hidden_size is a whole number, but got \"wide\""},
      {"llama", {{"hidden_size", nullptr}}, "hidden_size is a whole number, but got none"},
      {"llama",
       {{"num_key_value_heads", 3}},
       "num_key_value_heads divides num_attention_heads (4)"},
      {"llama", {{"head_dim", 7}}, "head_dim is even and at least 4"},
      {"llama", {{"rope_parameters", {{"rope_type", "spiral"}}}}, "has a rope_type of default"},
      {"llama",
       {{"rope_parameters", {{"rope_type", "linear"}}}},
       "of rope_type linear has a factor"},
      {"llama", {{"rope_parameters", {{"beta_fast", 2}}}}, "of rope_type default has no beta_fast"},
      {"llama",
       {{"rope_parameters", {{"rope_type", "longrope"}, {"short_factor", {1.0}}}}},
       "has 4 numbers above 0 as short_factor"},
      {"llama", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 1 for llama"},
      {"qwen2", {{"layer_types", {"full_attention"}}}, "layer_types lists the 2 layers"},
      {"gemma", {{"use_bidirectional_attention", true}}, "use_bidirectional_attention is false"},
      {"gpt2",
       {{"scale_attn_by_inverse_layer_idx", true}},
       "is false in a model that is built here"},
      {"mixtral", {{"output_router_logits", 1}}, "output_router_logits is true or false"},
      {"mixtral", {{"router_jitter_noise", 0.1}}, "router_jitter_noise"},
      {"mixtral", {{"num_experts_per_tok", 9}}, "is at most num_local_experts (4)"}};
  for (const auto& one : cases) {
    CAPTURE(one.message);
    const FolderCopy copy(one.folder);
    copy.set(one.keys);
    const auto error = error_of([&] { hf::read_architecture(copy.path()); });
    CHECK_THAT(error, Catch::Contains(one.message) && Catch::Contains(copy.at("config.json")));
  }
  const FolderCopy copy("llama");
  copy.set({{"hidden_act", "swoosh"}});
  CHECK_THAT(error_of([&] { HfModel(hf_job(copy.path())).trainer(); }),
             Catch::Contains("config.json has \"swoosh\""));
  std::ofstream(copy.at("config.json")) << "{\"model_type\": ";
  CHECK_THAT(error_of([&] { hf::read_architecture(copy.path()); }),
             Catch::Contains("must hold a JSON object"));
  std::filesystem::remove(copy.at("config.json"));
  CHECK_THAT(error_of([&] { hf_job(copy.path()); }),
             Catch::Contains("model.folder has a config.json"));
}

TEST_CASE("keys that say nothing about the model, and null, are ignored") {
  const FolderCopy copy("llama");
  copy.set({{"torch_dtype", "bfloat16"},
            {"transformers_version", "4.30.0"},
            {"use_cache", false},
            {"id2label", {{"0", "a"}}}});
  copy.set_null("attention_sinks");
  CHECK(hf::read_architecture(copy.path()).width == 16);
}

TEST_CASE("an older config gives the same rotary positions as a new one") {
  for (const char* kind : {"linear", "dynamic", "yarn", "longrope", "llama3"}) {
    CAPTURE(kind);
    const FolderCopy copy(std::string("llama-") + kind);
    const auto now = hf::read_architecture(copy.path());
    auto rope = read_json(copy.at("config.json"))["rope_parameters"];
    rope["type"] = rope["rope_type"];
    const auto theta = rope["rope_theta"];
    rope.erase("rope_type");
    rope.erase("rope_theta");
    copy.set({{"rope_parameters", nullptr}, {"rope_scaling", rope}, {"rope_theta", theta}});
    const auto before = hf::read_architecture(copy.path());
    const auto a = hf::rope_table(now, 8), b = hf::rope_table(before, 8);
    CHECK(a.frequencies == b.frequencies);
    CHECK(a.scale == b.scale);
    // Scaling changes something.
    const auto plain = hf::rope_table(hf::read_architecture(fixture("llama")), 8);
    CHECK(a.frequencies != plain.frequencies);
  }
}

TEST_CASE("windows follow sliding_window, max_window_layers and layer_types") {
  const FolderCopy copy("qwen2");
  const auto windows = [&](const json& keys) {
    copy.set(keys);
    return hf::read_architecture(copy.path()).windows;
  };
  using List = std::vector<int64_t>;
  CHECK(windows(json::object()) == List{0, 4});
  CHECK(windows({{"layer_types", {"sliding_attention", "full_attention"}}}) == List{4, 0});
  CHECK(windows({{"layer_types", nullptr}, {"max_window_layers", 0}}) == List{4, 4});
  CHECK(windows({{"use_sliding_window", false}}) == List{0, 0});
  CHECK(windows({{"use_sliding_window", true}, {"sliding_window", nullptr}}) == List{4096, 4096});
  CHECK(hf::read_architecture(fixture("mistral")).windows == List{3, 3});
}

TEST_CASE("an absent key has the default of the family's class, and null another value") {
  const std::pair<const char*, int64_t> cases[] = {{"llama", 64}, {"mistral", 8}, {"qwen2", 32},
                                                   {"qwen3", 32}, {"gemma", 16},  {"mixtral", 8}};
  for (const auto& [family, heads] : cases) {
    CAPTURE(family);
    const FolderCopy copy(family);
    copy.set({{"num_attention_heads", 64}, {"head_dim", 8}, {"num_key_value_heads", nullptr}});
    CHECK(hf::read_architecture(copy.path()).kv_heads == heads);
    copy.set_null("num_key_value_heads");
    CHECK(hf::read_architecture(copy.path()).kv_heads == 64);
  }
  const std::pair<const char*, int64_t> windows[] = {{"mistral", 4096}, {"mixtral", 0}};
  for (const auto& [family, window] : windows) {
    CAPTURE(family);
    const FolderCopy copy(family);
    copy.set({{"sliding_window", nullptr}});
    CHECK(hf::read_architecture(copy.path()).windows == std::vector<int64_t>{window, window});
    copy.set_null("sliding_window");
    CHECK(hf::read_architecture(copy.path()).windows == std::vector<int64_t>{0, 0});
  }
}
