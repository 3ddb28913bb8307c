#include "capture/models/hf/families.h"

#include <algorithm>

namespace perigee::hf {
namespace {

using A = Architecture;
using Json = nlohmann::json;
using Keys = std::vector<ConfigKey>;
using Names = std::vector<NameRow>;

// The keys that the families with rotary positions share; `more` come after them and replace keys
// of the same name.
Keys rotary_keys(const Keys& more) {
  Keys keys = {{"vocab_size", &A::vocab},
               {"hidden_size", &A::width},
               {"intermediate_size", &A::hidden},
               {"num_hidden_layers", &A::layers},
               {"num_attention_heads", &A::heads},
               {"num_key_value_heads", &A::kv_heads, 0, 0},
               {"head_dim", &A::head_size, 0},
               {"hidden_act", &A::activation, "silu"},
               {"max_position_embeddings", &A::positions, 2048},
               {"rms_norm_eps", &A::eps, 1e-6},
               {"tie_word_embeddings", &A::tied, false},
               {"attention_dropout", &A::attention_dropout, 0.0},
               {"initializer_range", &A::deviation, 0.02}};
  for (const auto& key : more) {
    std::erase_if(keys, [&](const auto& k) { return std::string_view(k.name) == key.name; });
    keys.push_back(key);
  }
  return keys;
}

Names joined(Names a, const Names& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Names rotary_names() {
  return {{"embed.weight", "model.embed_tokens.weight"},
          {"blocks.*.norm1.weight", "model.layers.*.input_layernorm.weight"},
          {"blocks.*.attn.q.weight", "model.layers.*.self_attn.q_proj.weight"},
          {"blocks.*.attn.k.weight", "model.layers.*.self_attn.k_proj.weight"},
          {"blocks.*.attn.v.weight", "model.layers.*.self_attn.v_proj.weight"},
          {"blocks.*.attn.out.weight", "model.layers.*.self_attn.o_proj.weight"},
          {"blocks.*.attn.q.bias", "model.layers.*.self_attn.q_proj.bias"},
          {"blocks.*.attn.k.bias", "model.layers.*.self_attn.k_proj.bias"},
          {"blocks.*.attn.v.bias", "model.layers.*.self_attn.v_proj.bias"},
          {"blocks.*.attn.out.bias", "model.layers.*.self_attn.o_proj.bias"},
          {"blocks.*.attn.q_norm.weight", "model.layers.*.self_attn.q_norm.weight"},
          {"blocks.*.attn.k_norm.weight", "model.layers.*.self_attn.k_norm.weight"},
          {"blocks.*.norm2.weight", "model.layers.*.post_attention_layernorm.weight"},
          {"norm.weight", "model.norm.weight"},
          {"head.weight", "lm_head.weight"}};
}

// With the gated layers of a block's MLP.
Names dense_names() {
  return joined(rotary_names(),
                {{"blocks.*.mlp.gate.weight", "model.layers.*.mlp.gate_proj.weight"},
                 {"blocks.*.mlp.up.weight", "model.layers.*.mlp.up_proj.weight"},
                 {"blocks.*.mlp.down.weight", "model.layers.*.mlp.down_proj.weight"},
                 {"blocks.*.mlp.gate.bias", "model.layers.*.mlp.gate_proj.bias"},
                 {"blocks.*.mlp.up.bias", "model.layers.*.mlp.up_proj.bias"},
                 {"blocks.*.mlp.down.bias", "model.layers.*.mlp.down_proj.bias"}});
}

Names mixtral_names() {
  constexpr auto form = Form::experts_transposed;
  return joined(
      rotary_names(),
      {{"blocks.*.experts.router.weight", "model.layers.*.block_sparse_moe.gate.weight"},
       {"blocks.*.experts.gate", "model.layers.*.block_sparse_moe.experts.#.w1.weight", form},
       {"blocks.*.experts.up", "model.layers.*.block_sparse_moe.experts.#.w3.weight", form},
       {"blocks.*.experts.down", "model.layers.*.block_sparse_moe.experts.#.w2.weight", form}});
}

Names gpt2_names() {
  return {
      {"embed.weight", "transformer.wte.weight"},
      {"position.weight", "transformer.wpe.weight"},
      {"blocks.*.norm1.weight", "transformer.h.*.ln_1.weight"},
      {"blocks.*.norm1.bias", "transformer.h.*.ln_1.bias"},
      {"blocks.*.attn.qkv.weight", "transformer.h.*.attn.c_attn.weight", Form::heads_transposed},
      {"blocks.*.attn.qkv.bias", "transformer.h.*.attn.c_attn.bias", Form::heads},
      {"blocks.*.attn.out.weight", "transformer.h.*.attn.c_proj.weight", Form::transposed},
      {"blocks.*.attn.out.bias", "transformer.h.*.attn.c_proj.bias"},
      {"blocks.*.norm2.weight", "transformer.h.*.ln_2.weight"},
      {"blocks.*.norm2.bias", "transformer.h.*.ln_2.bias"},
      {"blocks.*.mlp.up.weight", "transformer.h.*.mlp.c_fc.weight", Form::transposed},
      {"blocks.*.mlp.up.bias", "transformer.h.*.mlp.c_fc.bias"},
      {"blocks.*.mlp.down.weight", "transformer.h.*.mlp.c_proj.weight", Form::transposed},
      {"blocks.*.mlp.down.bias", "transformer.h.*.mlp.c_proj.bias"},
      {"norm.weight", "transformer.ln_f.weight"},
      {"norm.bias", "transformer.ln_f.bias"},
      {"head.weight", "lm_head.weight"}};
}

const std::vector<const char*> kRotaryUnused = {"**.rotary_emb.inv_freq"};

std::vector<Family> all() {
  std::vector<Family> list;
  list.push_back({.model_type = "llama",
                  .architecture = "LlamaForCausalLM",
                  .keys = rotary_keys({{"attention_bias", &A::attention_bias, false},
                                       {"mlp_bias", &A::mlp_bias, false}}),
                  .fixed = {},
                  .prefix = "model.",
                  .names = dense_names(),
                  .unused = kRotaryUnused});
  list.push_back({.model_type = "mistral",
                  .architecture = "MistralForCausalLM",
                  .windows = Windows::all_layers,
                  .keys = rotary_keys({{"num_key_value_heads", &A::kv_heads, 8, 0},
                                       {"sliding_window", &A::window, 4096, 0},
                                       {"max_position_embeddings", &A::positions, 131072}}),
                  .fixed = {},
                  .prefix = "model.",
                  .names = dense_names(),
                  .unused = kRotaryUnused});
  list.push_back({.model_type = "qwen2",
                  .architecture = "Qwen2ForCausalLM",
                  .qkv_bias = true,
                  .windows = Windows::listed,
                  .keys = rotary_keys({{"num_key_value_heads", &A::kv_heads, 32, 0},
                                       {"sliding_window", &A::window, 4096, 0},
                                       {"max_position_embeddings", &A::positions, 32768}}),
                  .fixed = {},
                  .prefix = "model.",
                  .names = dense_names(),
                  .unused = kRotaryUnused});
  list.push_back({.model_type = "qwen3",
                  .architecture = "Qwen3ForCausalLM",
                  .qk_norm = true,
                  .windows = Windows::listed,
                  .keys = rotary_keys({{"num_key_value_heads", &A::kv_heads, 32, 0},
                                       {"head_dim", &A::head_size, 128},
                                       {"sliding_window", &A::window, 4096, 0},
                                       {"max_position_embeddings", &A::positions, 32768},
                                       {"attention_bias", &A::attention_bias, false}}),
                  .fixed = {},
                  .prefix = "model.",
                  .names = dense_names(),
                  .unused = kRotaryUnused});
  list.push_back({.model_type = "gemma",
                  .architecture = "GemmaForCausalLM",
                  .norm_offset = true,
                  .scaled_embedding = true,
                  .keys = rotary_keys({{"num_key_value_heads", &A::kv_heads, 16, 0},
                                       {"head_dim", &A::head_size, 256},
                                       {"hidden_act", &A::activation, "gelu_pytorch_tanh"},
                                       {"max_position_embeddings", &A::positions, 8192},
                                       {"tie_word_embeddings", &A::tied, true},
                                       {"attention_bias", &A::attention_bias, false}}),
                  .fixed = {{"hidden_activation", {"gelu_pytorch_tanh"}},
                            {"use_bidirectional_attention", {false}}},
                  .prefix = "model.",
                  .names = dense_names(),
                  .unused = kRotaryUnused});
  list.push_back({.model_type = "gpt2",
                  .architecture = "GPT2LMHeadModel",
                  .rotary = false,
                  .keys = {{"vocab_size", &A::vocab},
                           {"n_embd", &A::width},
                           {"n_layer", &A::layers},
                           {"n_head", &A::heads},
                           {"n_inner", &A::hidden, 0},
                           {"n_positions", &A::positions, 1024},
                           {"activation_function", &A::activation, "gelu_new"},
                           {"layer_norm_epsilon", &A::eps, 1e-5},
                           {"tie_word_embeddings", &A::tied, true},
                           {"attn_pdrop", &A::attention_dropout, 0.1},
                           {"resid_pdrop", &A::residual_dropout, 0.1},
                           {"embd_pdrop", &A::embedding_dropout, 0.1},
                           {"initializer_range", &A::deviation, 0.02}},
                  .fixed = {{"scale_attn_weights", {true}},
                            {"scale_attn_by_inverse_layer_idx", {false}},
                            {"add_cross_attention", {false}}},
                  .prefix = "transformer.",
                  .names = gpt2_names(),
                  .unused = {"**.attn.bias", "**.attn.masked_bias"}});
  list.push_back({.model_type = "mixtral",
                  .architecture = "MixtralForCausalLM",
                  .windows = Windows::all_layers,
                  .theta = 1e6,
                  .keys = rotary_keys({{"num_key_value_heads", &A::kv_heads, 8, 0},
                                       {"sliding_window", &A::window, 0},
                                       {"max_position_embeddings", &A::positions, 131072},
                                       {"rms_norm_eps", &A::eps, 1e-5},
                                       {"num_local_experts", &A::experts, 8},
                                       {"num_experts_per_tok", &A::top_k, 2},
                                       {"output_router_logits", &A::balances, false},
                                       {"router_aux_loss_coef", &A::balance_weight, 0.001}}),
                  .fixed = {{"router_jitter_noise", {0.0, 0}}},
                  .prefix = "model.",
                  .names = mixtral_names(),
                  .unused = kRotaryUnused});
  return list;
}

// Each with a space before and after it.
constexpr std::string_view kInformational =
    " "
    "_attn_implementation _name_or_path architectures attn_implementation bad_words_ids "
    "begin_suppress_tokens bos_token_id decoder_start_token_id do_sample dtype "
    "early_stopping eos_token_id experts_implementation finetuning_task "
    "forced_bos_token_id forced_eos_token_id id2label label2id length_penalty max_length "
    "min_length model_type n_ctx no_repeat_ngram_size num_beams num_labels "
    "num_return_sequences output_attentions output_hidden_states pad_token_id prefix "
    "pretraining_tp problem_type reorder_and_upcast_attn repetition_penalty return_dict "
    "sep_token_id suppress_tokens task_specific_params temperature "
    "tokenizer_class top_k top_p torch_dtype torchscript transformers_version "
    "unk_token_id use_bfloat16 use_cache ";

}  // namespace

std::span<const Family> families() {
  static const std::vector<Family> list = all();
  return list;
}

const Family* find_family(std::string_view model_type) {
  for (const auto& family : families()) {
    if (model_type == family.model_type) return &family;
  }
  return nullptr;
}

bool is_informational(std::string_view key) {
  return key.starts_with("summary_") ||
         kInformational.find(" " + std::string(key) + " ") != std::string_view::npos;
}

}  // namespace perigee::hf
