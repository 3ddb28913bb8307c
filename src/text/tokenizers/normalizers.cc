#include <vector>

#include "base/fail.h"
#include "text/tokenizers/characters/byte_level.h"
#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/regex/regex.h"
#include "text/tokenizers/replace.h"

namespace perigee::text {
namespace {

// Sets a character to the last (or first) one of a text; returns whether there is one.
bool set_last(char32_t& c, std::string_view text) {
  if (!text.empty()) c = character_before(text, text.size()).code;
  return !text.empty();
}
bool set_first(char32_t& c, std::string_view text) {
  if (!text.empty()) c = character_at(text, 0).code;
  return !text.empty();
}

// Replaces each character by itself: `change` appends its replacement.
class Mapped : public Normalizer {
 public:
  void apply(std::string& text, bool) const override {
    std::string result;
    result.reserve(text.size() + text.size() / 8);
    for (size_t at = 0; at < text.size();) {
      const auto c = character_at(text, at);
      change(result, c.code);
      at += c.length;
    }
    text = std::move(result);
  }
  bool cut(char32_t& a, char32_t& b) const override {
    std::string first;
    change(first, b);
    if (!set_first(b, first)) return false;
    if (a == kUnknown) return !removes();  // else nothing may be left of the first part
    std::string last;
    change(last, a);
    return set_last(a, last);
  }

 private:
  virtual bool removes() const { return true; }
  virtual void change(std::string& text, char32_t c) const = 0;
};

class Lowercase : public Mapped {
  bool removes() const override { return false; }
  void change(std::string& text, char32_t c) const override { append_lower(text, c); }
};

class StripAccents : public Mapped {
  void change(std::string& text, char32_t c) const override {
    if (!is_mark(c)) append(text, c);
  }
};

class Nmt : public Mapped {
  void change(std::string& text, char32_t c) const override {
    const bool removed = (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f ||
                         c == 0x8f || c == 0x9f;
    if (removed) return;
    const bool space = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                       (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xfeff || c == 0xfffd;
    append(text, space ? U' ' : c);
  }
};

class ByteLevel : public Normalizer {
 public:
  void apply(std::string& text, bool) const override { text = to_byte_level(text); }
  bool cut(char32_t& a, char32_t& b) const override {
    to_byte_level(a, b);
    return true;
  }
};

class Form : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  void apply(std::string& text, bool) const override { text = normalized(text, form_); }
  bool cut(char32_t& a, char32_t& b) const override {
    if (!is_inert(a, form_)) a = kUnknown;
    return is_inert(b, form_);
  }

 private:
  NormalForm form_;
};

class Bert : public Normalizer {
 public:
  explicit Bert(const Reader& json)
      : clean_(json.flag("clean_text", true)),
        chinese_(json.flag("handle_chinese_chars", true)),
        lower_(json.flag("lowercase", true)),
        strip_(json.flag("strip_accents", lower_)) {}

  void apply(std::string& text, bool) const override {
    std::string result;
    result.reserve(text.size() + text.size() / 8);
    for (size_t at = 0; at < text.size();) {
      const auto c = character_at(text, at);
      begin(result, c.code);
      at += c.length;
    }
    if (strip_ && !is_ascii(result)) {
      const auto decomposed = normalized(result, NormalForm::nfd);
      result.clear();
      for (size_t at = 0; at < decomposed.size();) {
        const auto c = character_at(decomposed, at);
        if (!is_nonspacing_mark(c.code)) append(result, c.code);
        at += c.length;
      }
    }
    if (lower_) {
      const auto cased = std::move(result);
      result.clear();
      for (size_t at = 0; at < cased.size();) {
        const auto c = character_at(cased, at);
        append_lower(result, c.code);
        at += c.length;
      }
    }
    text = std::move(result);
  }

  bool cut(char32_t& a, char32_t& b) const override {
    if (a == kUnknown || (strip_ && is_nonspacing_mark(a))) return false;
    if (strip_ && !is_inert(b, NormalForm::nfd)) return false;
    std::string part;
    begin(part, b);
    if (part.empty()) return false;
    apply(part, false);
    if (!set_first(b, part)) return false;
    part.clear();
    begin(part, a);
    if (part.empty()) return false;
    if (strip_ && !is_inert(a, NormalForm::nfd)) {
      a = kUnknown;
      return true;
    }
    apply(part, false);
    return set_last(a, part);
  }

 private:
  // Cleans a character and puts spaces around one of Chinese.
  void begin(std::string& text, char32_t c) const {
    if (clean_) {
      const bool space = is_space(c);
      if (c == 0 || c == 0xfffd || (is_other(c) && c != '\t' && c != '\n' && c != '\r')) return;
      if (space) c = ' ';
    }
    const bool spaced = chinese_ && is_chinese(c);
    if (spaced) text += ' ';
    append(text, c);
    if (spaced) text += ' ';
  }

  static bool is_chinese(char32_t c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
           (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
           (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
  }

  bool clean_, chinese_, lower_, strip_;
};

class Strip : public Normalizer {
 public:
  explicit Strip(const Reader& json)
      : left_(json.flag("strip_left", true)), right_(json.flag("strip_right", true)) {}
  void apply(std::string& text, bool) const override {
    size_t begin = 0, end = text.size();
    while (left_ && begin < end && is_space(character_at(text, begin).code)) {
      begin += character_at(text, begin).length;
    }
    while (right_ && end > begin && is_space(character_before(text, end).code)) {
      end -= character_before(text, end).length;
    }
    text = text.substr(begin, end - begin);
  }
  bool cut(char32_t& a, char32_t& b) const override {
    return a != kUnknown && !is_space(a) && !is_space(b);
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(const Reader& json) : text_(json.at("prepend").text()) {}
  void apply(std::string& text, bool continued) const override {
    if (!continued && !text.empty()) text.insert(0, text_);
  }
  bool cut(char32_t&, char32_t&) const override { return true; }

 private:
  std::string text_;
};

class Replace : public Normalizer {
 public:
  explicit Replace(const Reader& json) : replacement_(json) {}
  void apply(std::string& text, bool) const override { replacement_.apply(text); }
  bool cut(char32_t& a, char32_t& b) const override { return replacement_.cut(a, b); }

 private:
  Replacement replacement_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(const Reader& json) {
    for (const auto& part : json.at("normalizers").list()) parts_.push_back(make_normalizer(part));
  }
  void apply(std::string& text, bool continued) const override {
    for (const auto& part : parts_) part->apply(text, continued);
  }
  bool cut(char32_t& a, char32_t& b) const override {
    for (const auto& part : parts_) {
      if (!part->cut(a, b)) return false;
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Reader& json) {
  const auto kind = json.kind("type",
                              "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt "
                              "Precompiled Prepend Replace Sequence Strip StripAccents");
  if (kind == "BertNormalizer") return std::make_unique<Bert>(json);
  if (kind == "ByteLevel") return std::make_unique<ByteLevel>();
  if (kind == "Lowercase") return std::make_unique<Lowercase>();
  if (kind == "NFC") return std::make_unique<Form>(NormalForm::nfc);
  if (kind == "NFD") return std::make_unique<Form>(NormalForm::nfd);
  if (kind == "NFKC") return std::make_unique<Form>(NormalForm::nfkc);
  if (kind == "NFKD") return std::make_unique<Form>(NormalForm::nfkd);
  if (kind == "Nmt") return std::make_unique<Nmt>();
  if (kind == "Precompiled") return make_precompiled(json);
  if (kind == "Prepend") return std::make_unique<Prepend>(json);
  if (kind == "Replace") return std::make_unique<Replace>(json);
  if (kind == "Strip") return std::make_unique<Strip>(json);
  if (kind == "StripAccents") return std::make_unique<StripAccents>();
  return std::make_unique<Sequence>(json);
}

}  // namespace perigee::text
