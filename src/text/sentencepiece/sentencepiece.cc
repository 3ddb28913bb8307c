// SentencePiece models as tokenizers, in a library of their own: libsentencepiece and LibTorch both
// define FLAGS_minloglevel, with different sizes, so that in one symbol scope one constructor would
// overwrite the memory of the other.
#include <sentencepiece_processor.h>

#include <exception>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/fail.h"
#include "text/sentencepiece/charsmap.h"
#include "text/tokenizer.h"

namespace perigee::text {
namespace {

class SentencePiece : public Tokenizer {
 public:
  explicit SentencePiece(const std::string& path) {
    // A file that cannot be read is refused by Load().
    std::ifstream file(path, std::ios::binary);
    const std::string model(std::istreambuf_iterator<char>(file), {});
    if (const auto defect = charsmap_defect(model); !defect.empty()) {
      fail("data", "the SentencePiece model {} is damaged: its table of replacements {}", path,
           defect);
    }
    const auto refuse = [&](std::string_view reason) {
      fail("data",
           "tokenizer must be \"bytes\", a tokenizer.json or a SentencePiece model, but {}: {}",
           path, reason);
    };
    try {
      const auto status = processor_.Load(path);
      if (!status.ok()) refuse(status.ToString());
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // the library's table of pieces throws
      refuse(error.what());
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
    std::vector<int> known;  // a model may have more ids
    for (const auto token : tokens) {
      if (token >= 0 && token < vocab()) known.push_back(static_cast<int>(token));
    }
    std::string text;
    const auto status = processor_.Decode(known, &text);
    if (!status.ok()) fail_run("data", "tokens must be decoded, but: {}", status.ToString());
    return text;
  }
  int64_t token_id(std::string_view token) const override {
    const int id = processor_.PieceToId({token.data(), token.size()});
    return processor_.IdToPiece(id) == token ? id : -1;  // the unknown piece for other texts
  }
  std::vector<int64_t> special_ids() const override {
    std::vector<int64_t> ids;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id) || processor_.IsUnknown(id)) ids.push_back(id);
    }
    return ids;
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace
}  // namespace perigee::text

extern "C" void perigee_sentencepiece(const std::string& path,
                                      std::unique_ptr<perigee::text::Tokenizer>& tokenizer) {
  tokenizer = std::make_unique<perigee::text::SentencePiece>(path);
}
