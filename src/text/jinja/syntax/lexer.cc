#include "text/jinja/syntax/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "text/jinja/values/characters.h"
#include "text/jinja/values/literals.h"

namespace perigee::text::jinja {
namespace {

using Kind = Token::Kind;

constexpr std::array<std::string_view, 28> kSymbols{
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
    "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!", "&"};

// Line ends become "\n", and one at the end of the source is left out.
std::string with_newlines(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (source.substr(i + 1).starts_with('\n')) ++i;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool in_name(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return std::isalnum(byte) || c == '_' || byte >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_newlines(source)) {}

  std::vector<Token> all() {
    while (at_ < source_.size()) data();
    add(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  [[noreturn]] void fail(const std::string& text) const { throw PlacedRefusal(line_, text); }
  void add(Kind kind, std::string text, Value value = {}) {
    tokens_.push_back({kind, std::move(text), line_, std::move(value)});
  }
  void move(size_t bytes) {
    line_ += int(std::ranges::count(rest().substr(0, bytes), '\n'));
    at_ += bytes;
  }
  void skip_space() { move(rest().size() - strip_left(rest()).size()); }

  // Returns `text`, which precedes a tag with the sign, without the white space that it removes.
  std::string_view before_tag(std::string_view text, char sign, bool print) const {
    if (sign == '-') return strip_right(text);
    if (sign == '+' || print) return text;
    const auto line = text.rfind('\n') + 1;  // where the last line begins
    const auto last = text.substr(line);
    const bool blank = !last.empty() && strip_left(last).empty();
    return blank && (line > 0 || line_begins_) ? text.substr(0, line) : text;
  }

  void add_data(std::string_view text) {
    if (!text.empty()) add(Kind::data, std::string(text));
  }

  // Returns the sign after a tag's two characters at byte `at`, or 0.
  char sign_at(size_t at) const {
    const char c = at + 2 < source_.size() ? source_[at + 2] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  bool opens_tag(size_t brace) const {
    const char c = brace + 1 < source_.size() ? source_[brace + 1] : '\0';
    return c == '{' || c == '%' || c == '#';
  }

  // Reads text up to a tag, and the tag.
  void data() {
    size_t tag = source_.find('{', at_);
    while (tag != source_.npos && !opens_tag(tag)) tag = source_.find('{', tag + 1);
    if (tag == source_.npos) {
      add_data(rest());
      move(rest().size());
      return;
    }
    const char type = source_[tag + 1], sign = sign_at(tag);
    add_data(before_tag(rest().substr(0, tag - at_), sign, type == '{'));
    move(tag - at_ + 2 + (sign ? 1 : 0));
    if (type == '#') {
      comment();
    } else if (type == '%' && raw_begins()) {
      raw();
    } else {
      add(type == '{' ? Kind::print_begin : Kind::block_begin, "");
      while (!tag_ends(type == '{')) token();
    }
    line_begins_ = source_[at_ - 1] == '\n';
  }

  void comment() {
    const auto end = source_.find("#}", at_);
    if (end == source_.npos) fail("a comment must end with #}, but the template ends");
    const char before = end > at_ ? source_[end - 1] : '\0';
    move(end + 2 - at_);
    after_tag(before);
  }

  // Removes the white space after a tag that ends with the sign.
  void after_tag(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && rest().starts_with('\n')) {
      move(1);
    }
  }

  bool raw_begins() {
    auto tag = strip_left(rest());
    if (!tag.starts_with("raw")) return false;
    tag = strip_left(tag.substr(3));
    const bool strips = tag.starts_with("-%}");
    if (!strips && !tag.starts_with("%}")) return false;
    move(rest().size() - tag.size() + (strips ? 3 : 2));
    if (strips) skip_space();
    return true;
  }

  // Reads the text up to {% endraw %}.
  void raw() {
    for (size_t tag = source_.find("{%", at_); tag != source_.npos;
         tag = source_.find("{%", tag + 2)) {
      const char sign = sign_at(tag);
      auto end = strip_left(std::string_view(source_).substr(tag + 2 + (sign ? 1 : 0)));
      if (!end.starts_with("endraw")) continue;
      end = strip_left(end.substr(6));
      const char last = end.empty() || (end[0] != '-' && end[0] != '+') ? '\0' : end[0];
      if (last) end.remove_prefix(1);
      if (!end.starts_with("%}")) continue;
      line_begins_ = source_[at_ - 1] == '\n';
      add_data(before_tag(rest().substr(0, tag - at_), sign, false));
      move(rest().size() - end.size() + 2);
      after_tag(last);
      return;
    }
    fail("{% raw %} must end with {% endraw %}, but the template ends");
  }

  // Reads the end of a tag, if it is here.
  bool tag_ends(bool print) {
    skip_space();
    if (at_ >= source_.size()) fail("a tag must end with }} or %}, but the template ends");
    if (!brackets_.empty()) return false;
    const std::string_view end = print ? "}}" : "%}";
    const char first = rest()[0];
    const char sign = first == '-' || (first == '+' && !print) ? first : '\0';
    if (!rest().substr(sign ? 1 : 0).starts_with(end)) return false;
    add(print ? Kind::print_end : Kind::block_end, "");
    move(sign ? 3 : 2);
    if (print && sign != '-') return true;  // a line end after {{ }} stays
    after_tag(sign);
    return true;
  }

  void token() {
    const char c = rest()[0];
    if (c == '"' || c == '\'') return text();
    if (std::isdigit(static_cast<unsigned char>(c))) {
      const bool after_dot = !tokens_.empty() && tokens_.back().text == ".";
      const auto size = number_size(rest(), !after_dot);
      const auto digits = std::string(rest().substr(0, size));
      try {
        add(Kind::constant, digits, number_value(digits));
      } catch (const Refusal& refusal) {
        fail(refusal.what());
      }
      return move(size);
    }
    if (in_name(c)) {
      const auto end = std::ranges::find_if_not(rest(), in_name);
      const auto name = std::string(rest().begin(), end);
      add(Kind::name, name);
      return move(name.size());
    }
    const auto symbol = std::ranges::find_if(kSymbols,
                                             [&](auto each) { return rest().starts_with(each); });
    if (symbol == kSymbols.end()) {
      size_t size = 0;
      next_character(rest(), size);
      fail(fmt::format("a tag must be of names, texts, numbers and operators, but has \"{}\"",
                       rest().substr(0, size)));
    }
    bracket((*symbol)[0]);
    add(Kind::symbol, std::string(*symbol));
    move(symbol->size());
  }

  void bracket(char c) {
    if (c == '(') brackets_ += ')';
    if (c == '[') brackets_ += ']';
    if (c == '{') brackets_ += '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (brackets_.empty()) fail(fmt::format("\"{}\" must close a bracket, but none is open", c));
    if (brackets_.back() != c) {
      fail(fmt::format("\"{}\" must close the last bracket, but got \"{}\"", brackets_.back(), c));
    }
    brackets_.pop_back();
  }

  void text() {
    const char quote = rest()[0];
    size_t end = 1;
    while (end < rest().size() && rest()[end] != quote) end += rest()[end] == '\\' ? 2 : 1;
    if (end >= rest().size()) {
      fail(fmt::format("a text must end with {}, but the template ends", quote));
    }
    const auto inner = rest().substr(1, end - 1);
    try {
      add(Kind::constant, std::string(inner), Value(unescaped(inner)));
    } catch (const Refusal& refusal) {
      fail(refusal.what());
    }
    move(end + 1);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_begins_ = true;  // whether the last tag ended with a line end
  std::string brackets_;     // the closing ones of those that are open
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  if (!valid_utf8(source)) throw PlacedRefusal(1, "a template must be UTF-8, but is not");
  return Lexer(source).all();
}

}  // namespace perigee::text::jinja
