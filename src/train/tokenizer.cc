#include "train/tokenizer.h"

#include <sentencepiece_processor.h>

#include "base/error.h"

namespace perigee::train {
namespace {

class Bytes : public Tokenizer {
 public:
  int64_t vocab() const override { return 256; }
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string decode(const std::vector<int64_t>& tokens) const override {
    std::string text;
    for (const auto token : tokens) text += static_cast<char>(token);
    return text;
  }
};

class SentencePiece : public Tokenizer {
 public:
  explicit SentencePiece(const std::string& path) {
    const auto status = processor_.Load(path);
    if (!status.ok()) {
      fail("data", "tokenizer must be \"bytes\" or a SentencePiece model, but {}: {}", path,
           status.ToString());
    }
  }
  int64_t vocab() const override { return processor_.GetPieceSize(); }
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode({text.data(), text.size()}, &ids);
    if (!status.ok()) fail_run("data", "text must be tokenized, but: {}", status.ToString());
    return {ids.begin(), ids.end()};
  }
  std::string decode(const std::vector<int64_t>& tokens) const override {
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(tokens.begin(), tokens.end()), &text);
    if (!status.ok()) fail_run("data", "tokens must be decoded, but: {}", status.ToString());
    return text;
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<Bytes>();
  return std::make_unique<SentencePiece>(name);
}

}  // namespace perigee::train
