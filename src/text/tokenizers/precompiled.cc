// A SentencePiece model's replacements: a double-array trie of the texts that are replaced, and
// the replacements, each ended by a zero.
#include <array>
#include <cstring>
#include <optional>

#include "base/text/base64.h"
#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/normalizer.h"

namespace perigee::text {
namespace {

// Characters that are one grapheme with the next one.
constexpr char32_t kPrefixes[] = {0x600,   0x601,   0x602,   0x603,   0x604,   0x605,   0x6dd,
                                  0x70f,   0x890,   0x891,   0x8e2,   0xd4e,   0x110bd, 0x110cd,
                                  0x111c2, 0x111c3, 0x1193f, 0x11941, 0x11a3a, 0x11a84, 0x11a85,
                                  0x11a86, 0x11a87, 0x11a88, 0x11a89, 0x11d46, 0x11f02};

class Precompiled : public Normalizer {
 public:
  explicit Precompiled(const Reader& json) {
    const auto field = json.at("precompiled_charsmap");
    const auto bytes = base64_decode(field.text());
    uint32_t size = 0;
    if (bytes && bytes->size() >= 4) std::memcpy(&size, bytes->data(), 4);
    if (!bytes || bytes->size() < 4 || size % 4 != 0 || size == 0 || size > bytes->size() - 4) {
      field.wrong("the table of a SentencePiece model in base64", "cannot be read as one");
    }
    trie_.resize(size / 4);
    std::memcpy(trie_.data(), bytes->data() + 4, size);
    replacements_ = bytes->substr(4 + size);
    if (valid_length(replacements_) != replacements_.size()) {
      field.wrong("of replacements in UTF-8", "has others");
    }
    for (char c = 1; c < 127; ++c) {
      const auto node = child(0, c);
      bool plain = true;
      for (int next = 1; node && plain && next < 256; ++next) {
        plain = !child(*node, static_cast<char>(next));
      }
      plain_[size_t(c)] = plain && !replacement(std::string_view(&c, 1)) && c >= ' ';
    }
    for (const auto prefix : kPrefixes) {
      std::string text;
      append(text, prefix);
      prefixes_plain_ &= !replacement(text);
    }
  }

  void apply(std::string& text, bool) const override {
    std::string result;
    result.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const auto end = grapheme_end(text, at);
      const std::string_view grapheme(text.data() + at, end - at);
      if (const auto found = grapheme.size() < 6 ? replacement(grapheme) : std::nullopt) {
        result += *found;
        at = end;
        continue;
      }
      while (at < end) {
        const std::string_view part(text.data() + at, character_at(text, at).length);
        const auto found = replacement(part);
        result += found ? *found : part;
        at += part.size();
      }
    }
    text = std::move(result);
  }

  // Between two characters of ASCII that begin no text that is replaced.
  bool cut(char32_t& a, char32_t& b) const override {
    return prefixes_plain_ && a < 127 && b < 127 && plain_[a] && plain_[b];
  }

 private:
  uint32_t unit(size_t at) const { return at < trie_.size() ? trie_[at] : 0; }
  static size_t offset(uint32_t unit) { return size_t(unit >> 10) << ((unit & 0x200U) >> 6); }

  // Returns the node after a byte.
  std::optional<size_t> child(size_t node, char byte) const {
    const auto c = static_cast<unsigned char>(byte);
    const auto next = node ^ offset(unit(node)) ^ c;
    if (next >= trie_.size() || (trie_[next] & 0x800000ffU) != c) return std::nullopt;
    return next;
  }

  // Returns the replacement of the shortest text in the table that begins this one.
  std::optional<std::string_view> replacement(std::string_view text) const {
    size_t node = 0;
    for (const char c : text) {
      if (c == 0) return std::nullopt;
      const auto next = child(node, c);
      if (!next) return std::nullopt;
      node = *next;
      if ((trie_[node] & 0x100U) == 0) continue;
      const auto begin = unit(node ^ offset(trie_[node])) & 0x7fffffffU;
      if (begin > replacements_.size()) return std::nullopt;
      return std::string_view(replacements_).substr(begin, replacements_.find('\0', begin) - begin);
    }
    return std::nullopt;
  }

  std::vector<uint32_t> trie_;
  std::string replacements_;
  std::array<bool, 128> plain_{};
  bool prefixes_plain_ = true;
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled(const Reader& json) {
  return std::make_unique<Precompiled>(json);
}

}  // namespace perigee::text
