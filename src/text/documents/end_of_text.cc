#include "text/documents/end_of_text.h"

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/text/depth.h"

namespace perigee::text {
namespace {

// Returns the token that a key of tokenizer_config.json names, in the folder of the tokenizer's
// file, or "" where it names no token.
std::string configured(const std::string& file, const char* key) {
  const auto path = (std::filesystem::path(file).parent_path() / "tokenizer_config.json").string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return "";
  const auto text = read_file(path, "data");
  check_json_depth(text, "data", path);
  const auto config = nlohmann::json::parse(text, nullptr, false);
  if (!config.is_object()) fail("data", "{} must be a JSON object, but is not", path);
  const auto found = config.find(key);
  if (found == config.end()) return "";
  const auto& token = found->is_object() && found->contains("content") ? (*found)["content"]
                                                                       : *found;
  return token.is_string() ? token.get<std::string>() : "";
}

int64_t first_of(const Tokenizer& tokenizer, std::initializer_list<const char*> tokens) {
  for (const auto* token : tokens) {
    if (const auto id = tokenizer.token_id(token); id >= 0) return id;
  }
  return -1;
}

}  // namespace

int64_t end_of_text(const Tokenizer& tokenizer, const std::string& file, const std::string& given) {
  const bool bytes = file == "bytes";
  if (bytes && given.empty()) return 0;
  const auto token = given.empty() ? configured(file, "eos_token") : given;
  const auto id = token.empty() ? first_of(tokenizer, {"<|endoftext|>", "</s>", "<|end_of_text|>",
                                                       "<eos>", "[SEP]"})
                                : tokenizer.token_id(token);
  if (id >= 0) return id;
  if (!token.empty()) {
    fail("data", "{} must be a token of {}, but the tokenizer lacks \"{}\"",
         given.empty() ? "eos_token of tokenizer_config.json" : "data.end_of_text", file, token);
  }
  fail("data",
       "documents end with the tokenizer's end of text, but {} is not known to have one: name the "
       "token by data.end_of_text",
       file);
}

int64_t mask_token(const Tokenizer& tokenizer, const std::string& file) {
  const auto token = file == "bytes" ? "" : configured(file, "mask_token");
  const auto id = token.empty() ? first_of(tokenizer, {"[MASK]", "<mask>"})
                                : tokenizer.token_id(token);
  if (id >= 0) return id;
  fail("data",
       "data.objective = \"masked\" hides tokens by the tokenizer's mask token ([MASK], <mask>), "
       "but "
       "{} has none",
       file);
}

}  // namespace perigee::text
