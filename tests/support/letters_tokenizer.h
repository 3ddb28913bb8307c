// A small tokenizer.json for tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace perigee::test {

// Returns a tokenizer.json with a token for each letter, and special tokens after them.
inline std::string letters_tokenizer(const std::string& letters,
                                     const std::vector<std::string>& special) {
  using Json = nlohmann::ordered_json;
  Json vocab, added = Json::array();
  for (const char c : letters) vocab[std::string(1, c)] = vocab.size();
  for (const auto& token : special) {
    const auto id = vocab.size();
    added.push_back({{"id", id}, {"content", token}, {"special", true}});
    vocab[token] = id;
  }
  return Json({{"version", "1.0"},
               {"added_tokens", added},
               {"normalizer", nullptr},
               {"pre_tokenizer", nullptr},
               {"decoder", {{"type", "Fuse"}}},
               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}})
      .dump();
}

}  // namespace perigee::test
