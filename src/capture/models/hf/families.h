// One description for each family of Hugging Face models.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "capture/models/hf/architecture.h"

namespace perigee::hf {

// A key of config.json that sets a member of Architecture.
struct ConfigKey {
  const char* name;
  std::variant<int64_t Architecture::*, double Architecture::*, bool Architecture::*,
               std::string Architecture::*>
      member;
  nlohmann::json fallback = nullptr;  // where the config lacks the key; null: it must have it
  nlohmann::json of_null = nullptr;   // where its value is null; null: the fallback
};

// A key that changes the model, with the values for which the model is built here.
struct FixedKey {
  const char* name;
  std::vector<nlohmann::json> allowed;  // an absent key and null are allowed, too
};

// How a tensor of a file becomes the model's tensor.
enum class Form : unsigned char {
  same,
  transposed,         // [in, out] as in GPT-2's Conv1D
  heads,              // [3 w]: query, key and value follow each other; here they alternate by head
  heads_transposed,   // the same of a Conv1D, [w, 3 w]
  experts_transposed  // one [out, in] for each expert; here [experts, in, out]
};

// The names of a tensor: here and in the files. `*` is the number of the layer, `#` of the expert.
struct NameRow {
  const char* ours;
  const char* theirs;
  Form form = Form::same;
};

// In which layers each window applies.
enum class Windows : unsigned char { none, all_layers, listed };

struct Family {
  const char* model_type;    // key "model_type" of a config
  const char* architecture;  // the class of transformers
  bool rotary = true;     // rotary positions and RMS norms; else learned positions and layer norms
  bool qkv_bias = false;  // always, for query, key and value alone
  bool qk_norm = false;   // RMS norms of each head's query and key
  bool norm_offset = false;       // norms scale by 1 + weight
  bool scaled_embedding = false;  // embeddings are multiplied by sqrt(width)
  Windows windows = Windows::none;
  double theta = 10000;
  std::vector<ConfigKey> keys;
  std::vector<FixedKey> fixed;
  const char* prefix;  // of names in files, which a file of the model without its head lacks
  std::vector<NameRow> names;
  std::vector<const char*> unused;  // patterns of tensors in files that the model does not need
};

// All families, in the order of the documents.
std::span<const Family> families();

// Returns the family, or nullptr.
const Family* find_family(std::string_view model_type);

// Returns whether a key of a config says nothing about the model: ids of tokens, options of text
// generation, names.
bool is_informational(std::string_view key);

}  // namespace perigee::hf
