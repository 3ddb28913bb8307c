#include <algorithm>

#include "text/tokenizers/characters/byte_level.h"
#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/pre_tokenizer.h"

namespace perigee::text {
namespace {

// Adds the part [begin, end) of a piece.
void add_part(std::vector<Piece>& result, const Piece& piece, size_t begin, size_t end) {
  if (begin == end) return;
  result.push_back({piece.text.substr(begin, end - begin), piece.first && begin == 0,
                    piece.continued && begin == 0});
}

// Splits between characters, as a function of each character's class: 0 is removed, 1 is joined
// with its like, and 2 is alone.
template <class Class>
void split_by(Pieces& pieces, const Class& class_of) {
  std::vector<Piece> result;
  for (const auto& piece : pieces.list) {
    size_t begin = 0;
    for (size_t at = 0; at < piece.text.size();) {
      const auto c = character_at(piece.text, at);
      const int kind = class_of(c.code);
      if (kind != 1) {
        add_part(result, piece, begin, at);
        if (kind == 2) add_part(result, piece, at, at + c.length);
        begin = at + c.length;
      }
      at += c.length;
    }
    add_part(result, piece, begin, piece.text.size());
  }
  pieces.list = std::move(result);
}

enum class Class { kWhitespaceSplit, kBert, kDelimiter, kPunctuation, kDigits };

// Kinds that look at single characters.
class ByCharacter : public PreTokenizer {
 public:
  ByCharacter(Class kind, char32_t delimiter = 0) : kind_(kind), delimiter_(delimiter) {}
  void split(Pieces& pieces) const override {
    split_by(pieces, [&](char32_t c) { return class_of(c); });
  }
  Cut cut(char32_t& a, char32_t& b) const override {
    if (class_of(b) != 1) return Cut::boundary;
    return a == kUnknown ? Cut::unknown : class_of(a) != 1 ? Cut::boundary : Cut::joined;
  }

 private:
  int class_of(char32_t c) const {
    switch (kind_) {
      case Class::kWhitespaceSplit:
        return is_space(c) ? 0 : 1;
      case Class::kBert:
        return is_space(c) ? 0 : is_punctuation(c) ? 2 : 1;
      case Class::kDelimiter:
        return c == delimiter_ ? 0 : 1;
      case Class::kPunctuation:
        return is_punctuation(c) ? 2 : 1;
      case Class::kDigits:
        return is_numeric(c) ? 2 : 1;
    }
    return 1;
  }

  Class kind_;
  char32_t delimiter_;
};

// Splits between numbers and other text.
class DigitRuns : public PreTokenizer {
 public:
  void split(Pieces& pieces) const override {
    std::vector<Piece> result;
    for (const auto& piece : pieces.list) {
      size_t begin = 0;
      bool before = false;
      for (size_t at = 0; at < piece.text.size();) {
        const auto c = character_at(piece.text, at);
        const bool digit = is_numeric(c.code);
        if (at > 0 && digit != before) {
          add_part(result, piece, begin, at);
          begin = at;
        }
        before = digit;
        at += c.length;
      }
      add_part(result, piece, begin, piece.text.size());
    }
    pieces.list = std::move(result);
  }
  Cut cut(char32_t& a, char32_t& b) const override {
    if (a == kUnknown) return Cut::unknown;
    return is_numeric(a) != is_numeric(b) ? Cut::boundary : Cut::joined;
  }
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(const Reader& length) : length_(length.integer()) {
    if (length_ == 0) length.wrong("at least 1", "is 0");
  }
  void split(Pieces& pieces) const override {
    std::vector<Piece> result;
    for (const auto& piece : pieces.list) {
      size_t begin = 0;
      int64_t characters = 0;
      for (size_t at = 0; at < piece.text.size();) {
        at += character_at(piece.text, at).length;
        if (++characters % length_ != 0) continue;
        add_part(result, piece, begin, at);
        begin = at;
      }
      add_part(result, piece, begin, piece.text.size());
    }
    pieces.list = std::move(result);
  }
  Cut cut(char32_t&, char32_t&) const override { return Cut::unknown; }

 private:
  int64_t length_;
};

class ByteLevel : public PreTokenizer {
 public:
  explicit ByteLevel(const Reader& json) : prefix_(json.flag("add_prefix_space", true)) {
    if (json.flag("use_regex", true)) split_ = make_gpt2_split();
  }
  void split(Pieces& pieces) const override {
    for (auto& piece : pieces.list) {
      if (!prefix_ || piece.continued || piece.text.starts_with(' ')) continue;
      piece.text = pieces.texts.emplace_back(" " + std::string(piece.text));
    }
    if (split_) split_->split(pieces);
    for (auto& piece : pieces.list) {
      if (left_out_) break;
      piece.text = pieces.texts.emplace_back(to_byte_level(piece.text));
    }
  }
  Cut cut(char32_t& a, char32_t& b) const override {
    const auto found = split_ ? split_->cut(a, b) : Cut::joined;
    to_byte_level(a, b);
    return found;
  }
  bool prepends() const override { return prefix_; }
  bool leave_out_byte_level() override { return left_out_ = true; }

 private:
  bool prefix_, left_out_ = false;
  std::unique_ptr<PreTokenizer> split_;
};

class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(const Reader& json)
      : mark_(json.at("replacement").character()), split_(json.flag("split", true)) {
    scheme_ = json.has("prepend_scheme")            ? json.kind("prepend_scheme", kSchemes)
              : json.flag("add_prefix_space", true) ? "always"
                                                    : "never";
    append(text_, mark_);
  }
  void split(Pieces& pieces) const override {
    std::vector<Piece> result;
    for (const auto& piece : pieces.list) {
      const bool begins = scheme_ == "always" || (scheme_ == "first" && piece.first);
      std::string text;
      if (begins && !piece.continued && piece.text[0] != ' ' && !piece.text.starts_with(text_)) {
        text = text_;
      }
      for (const char c : piece.text) c == ' ' ? text += text_ : text += c;
      auto changed = piece;
      changed.text = pieces.texts.emplace_back(std::move(text));
      size_t begin = 0;
      while (split_) {  // a mark begins a part
        const auto next = changed.text.find(text_, begin == 0 ? 1 : begin + text_.size());
        if (next == changed.text.npos) break;
        add_part(result, changed, begin, next);
        begin = next;
      }
      add_part(result, changed, begin, changed.text.size());
    }
    pieces.list = std::move(result);
  }
  Cut cut(char32_t& a, char32_t& b) const override {
    if (a == ' ') a = mark_;
    if (b == ' ') b = mark_;
    return split_ && b == mark_ ? Cut::boundary : Cut::joined;
  }
  bool prepends() const override { return scheme_ != "never"; }

 private:
  static constexpr const char* kSchemes = "always first never";
  char32_t mark_;
  bool split_;
  std::string scheme_, text_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(const Reader& json) {
    for (const auto& part : json.at("pretokenizers").list()) {
      parts_.push_back(make_pre_tokenizer(part));
    }
  }
  void split(Pieces& pieces) const override {
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i]->split(pieces);
      // Later parts prepend to each piece that this one made, at a cut as elsewhere.
      for (auto& piece : pieces.list) piece.continued = false;
    }
  }
  // Where a later part prepends something, only the first one's boundaries are cuts.
  Cut cut(char32_t& a, char32_t& b) const override {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const auto found = parts_[i]->cut(a, b);
      if (found != Cut::joined) return found;
      for (size_t later = i + 1; later < parts_.size(); ++later) {
        if (parts_[later]->prepends()) return Cut::unknown;
      }
    }
    return Cut::joined;
  }
  bool prepends() const override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part->prepends(); });
  }
  bool leave_out_byte_level() override {
    return !parts_.empty() && parts_.back()->leave_out_byte_level();
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

std::unique_ptr<PreTokenizer> make_punctuation(const Reader& json) {
  if (json.text("behavior", "Isolated") == "Isolated") {
    return std::make_unique<ByCharacter>(Class::kPunctuation);
  }
  // The same split with a class of punctuation: of ASCII, and P.
  auto split = json.value();
  split["pattern"] = {{"Regex", "[\\p{P}$+<=>^`|~]"}};
  return make_split(Reader(split, json.place()));
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Reader& json) {
  const auto kind = json.kind("type",
                              "BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength "
                              "Metaspace Punctuation Sequence Split Whitespace WhitespaceSplit");
  if (kind == "BertPreTokenizer") return std::make_unique<ByCharacter>(Class::kBert);
  if (kind == "ByteLevel") return std::make_unique<ByteLevel>(json);
  if (kind == "CharDelimiterSplit") {
    return std::make_unique<ByCharacter>(Class::kDelimiter, json.at("delimiter").character());
  }
  if (kind == "Digits" && json.flag("individual_digits", false)) {
    return std::make_unique<ByCharacter>(Class::kDigits);
  }
  if (kind == "Digits") return std::make_unique<DigitRuns>();
  if (kind == "FixedLength") return std::make_unique<FixedLength>(json.at("length"));
  if (kind == "Metaspace") return std::make_unique<Metaspace>(json);
  if (kind == "Punctuation") return make_punctuation(json);
  if (kind == "Sequence") return std::make_unique<Sequence>(json);
  if (kind == "Split") return make_split(json);
  if (kind == "Whitespace") return make_whitespace();
  return std::make_unique<ByCharacter>(Class::kWhitespaceSplit);
}

}  // namespace perigee::text
