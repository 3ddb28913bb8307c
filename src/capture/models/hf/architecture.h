// The architecture that a Hugging Face folder's config.json describes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace perigee::hf {

struct Family;  // families.h

// Rotary positions. Fields that a kind does not use keep their values.
struct Rope {
  std::string kind = "default";  // default, linear, dynamic, yarn, longrope, llama3
  double theta = 10000;
  double factor = 1;               // of the context's length
  int64_t original_positions = 0;  // context of the pretraining; 0: the config's positions
  double attention_factor = 0;     // scale of cos and sin; 0: follows from `factor`
  double beta_fast = 32, beta_slow = 1, mscale = 0, mscale_all_dim = 0;  // yarn
  bool truncate = true;                                                  // yarn
  std::vector<double> short_factor, long_factor;     // longrope, [head_size / 2]
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
};

struct Architecture {
  const Family* family = nullptr;
  int64_t vocab = 0, width = 0, hidden = 0, layers = 0, heads = 0;
  int64_t kv_heads = 0;   // 0 in a config: `heads`
  int64_t head_size = 0;  // 0 in a config: width / heads
  int64_t positions = 0;  // longest sample of the pretraining
  double eps = 0;         // of norms
  bool tied = false;      // the output layer shares the embedding's weight
  bool attention_bias = false, mlp_bias = false;
  std::string activation;
  double attention_dropout = 0, residual_dropout = 0, embedding_dropout = 0;
  double deviation = 0.02;       // of initial weights
  int64_t window = 0;            // of layers that have one; 0: none
  std::vector<int64_t> windows;  // per layer: tokens that a token attends to; 0: all before it
  int64_t experts = 0, top_k = 0;
  bool balances = false;      // the loss has the router's balance loss, times
  double balance_weight = 0;  // this
  Rope rope;
};

// Reads FOLDER/config.json. Throws Error naming file and key for a config that is missing, is no
// JSON object, is of another family, or has a key or value that changes the model in a way that is
// not built here.
Architecture read_architecture(const std::string& folder);

}  // namespace perigee::hf
