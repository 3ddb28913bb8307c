#include "text/tokenizers/regex/pattern.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdint>

#include "base/fail.h"
#include "text/tokenizers/characters/unicode.h"

namespace perigee::text {
namespace {

using Atoms = std::set<size_t>;

// A part of a pattern, and how its atoms relate to its ends.
struct Part {
  std::string text;
  Atoms first, last;
  bool empty = true;     // it may match nothing
  Atoms alone;           // atoms that can match the whole part, past no assertion
  bool certain = true;   // it may match nothing, past no assertion
  bool is_atom = false;  // one atom, to which a quantifier may be added
};

constexpr const char* kSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
constexpr const char* kNoSpace =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-"
    "\\x{10ffff}";
constexpr const char* kWord =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
    "\\x{1f170}-\\x{1f189}";

class Parser {
 public:
  Parser(std::string_view text, std::string where, bool joiners)
      : text_(text), where_(std::move(where)), word_(kWord) {
    if (joiners) word_ += "\\x{200c}\\x{200d}";
  }

  Pattern parse() {
    const auto whole = alternatives(false, 0);
    if (at_ < text_.size()) refuse("an unmatched )");
    pattern_.translated = whole.text;
    pattern_.alone = whole.alone;
    if (whole.empty) pattern_.related = false;  // a match of nothing may be at any place
    return std::move(pattern_);
  }

 private:
  [[noreturn]] void refuse(const std::string& syntax) const {
    fail("tokenizer", "{} must be a regular expression that Perigee reads, but \"{}\" has {}",
         where_, text_, syntax);
  }

  bool more() const { return at_ < text_.size(); }
  bool is(std::string_view next) const { return text_.substr(at_).starts_with(next); }
  bool take(std::string_view next) {
    if (!is(next)) return false;
    at_ += next.size();
    return true;
  }

  Part make_atom(const std::string& text, bool caseless) {
    if (pattern_.atoms.size() == 500) refuse("more than 500 characters and classes");
    Part part;
    part.text = caseless ? "(?i:" + text + ")" : text;
    pattern_.atoms.push_back(part.text);
    pattern_.after.emplace_back();
    part.first = part.last = part.alone = {pattern_.atoms.size() - 1};
    part.empty = part.certain = false;
    part.is_atom = true;
    return part;
  }

  void link(const Atoms& from, const Atoms& to) {
    for (const auto atom : from) pattern_.after[atom].insert(to.begin(), to.end());
  }

  // Alternatives up to the end of the group.
  Part alternatives(bool caseless, int depth) {
    if (depth > 50) refuse("more than 50 nested groups");
    Part all = sequence(caseless, depth);
    while (take("|")) {
      const auto next = sequence(caseless, depth);
      all.text += "|" + next.text;
      all.first.insert(next.first.begin(), next.first.end());
      all.last.insert(next.last.begin(), next.last.end());
      all.alone.insert(next.alone.begin(), next.alone.end());
      all.empty |= next.empty;
      all.certain |= next.certain;
    }
    return all;
  }

  // `caseless` may change within: (?i).
  Part sequence(bool& caseless, int depth) {
    Part all;
    while (more() && !is("|") && !is(")")) {
      const auto next = quantified(one(caseless, all.text.empty(), depth));
      link(all.last, next.first);
      all.text += next.text;
      if (all.empty) all.first.insert(next.first.begin(), next.first.end());
      if (!next.empty) all.last.clear();
      all.last.insert(next.last.begin(), next.last.end());
      Atoms alone;
      if (next.certain) alone.insert(all.alone.begin(), all.alone.end());
      if (all.certain) alone.insert(next.alone.begin(), next.alone.end());
      all.alone = std::move(alone);
      all.empty &= next.empty;
      all.certain &= next.certain;
    }
    return all;
  }

  Part quantified(Part part) {
    while (more()) {
      int64_t least = 0, most = -1;
      std::string mark;
      bool braces = false;
      if (take("*")) {
        mark = "*";
      } else if (take("+")) {
        mark = "+";
        least = 1;
      } else if (take("?")) {
        mark = "?";
        most = 1;
      } else if (bounds(least, most)) {
        braces = true;
        mark = most < 0 ? fmt::format("{{{},}}", least) : fmt::format("{{{},{}}}", least, most);
      } else {
        break;
      }
      // In Ruby, a{2}? is an optional a{2}, and a{1,2}+ repeats a{1,2}.
      bool possessive = false;
      if (!(braces && least == most) && take("?")) {
        mark += "?";
      } else if (!braces && take("+")) {
        mark += "+";
        possessive = true;
      }
      if (part.text.empty()) refuse("a quantifier of nothing");
      part.text = (part.is_atom ? part.text : "(?:" + part.text + ")") + mark;
      part.is_atom = false;
      if (most < 0 || most > 1) link(part.last, part.first);
      if (least > 1 && !part.certain) part.alone.clear();
      if (most == 0) part.alone.clear();
      if (least == 0) part.empty = part.certain = true;
      if (possessive) part.certain = false;  // it takes all that it can
    }
    return part;
  }

  // Takes {n}, {n,}, {n,m} or {,m}.
  bool bounds(int64_t& least, int64_t& most) {
    if (!is("{")) return false;
    const auto end = text_.find('}', at_);
    if (end == text_.npos) return false;
    const auto inside = text_.substr(at_ + 1, end - at_ - 1);
    const auto comma = inside.find(',');
    const auto number = [](std::string_view digits, int64_t none) -> int64_t {
      if (digits.empty()) return none;
      int64_t value = 0;
      for (const char c : digits) {
        if (c < '0' || c > '9' || value > 6553) return -2;
        value = 10 * value + (c - '0');
      }
      return value;
    };
    least = number(inside.substr(0, comma), comma == inside.npos ? -2 : 0);
    most = comma == inside.npos ? least : number(inside.substr(comma + 1), -1);
    if (least == -2 || most == -2 || inside == ",") return false;
    if (most >= 0 && most < least) refuse("a quantifier whose first number is the larger one");
    if (least > 1000 || most > 1000) refuse("a quantifier of more than 1,000");
    at_ = end + 1;
    return true;
  }

  Part assertion(const std::string& text) {
    Part part;
    part.text = text;
    part.certain = false;
    return part;
  }

  Part one(bool& caseless, bool begins, int depth) {
    if (take("(")) return group(caseless, begins, depth);
    if (take("[")) return make_atom(char_class(), caseless);
    if (take(".")) return make_atom("[^\\n]", false);
    if (is("^") || is("$")) {
      pattern_.related = false;
      return assertion(fmt::format("(?m:{})", text_[at_++]));
    }
    if (take("\\")) return escape(caseless);
    if (is("*") || is("+") || is("?")) refuse("a quantifier of nothing");
    const auto c = character_at(text_, at_);
    at_ += c.length;
    return make_atom(fmt::format("\\x{{{:x}}}", uint32_t(c.code)), caseless);
  }

  Part group(bool& caseless, bool begins, int depth) {
    bool inner = caseless;
    std::string begin = "(?:";
    bool ahead = false, behind = false, atomic = false;
    if (take("?")) {
      if (take("=")) {
        begin = "(?=";
        ahead = true;
      } else if (take("!")) {
        begin = "(?!";
        ahead = true;
      } else if (is("<=") || is("<!")) {
        begin = fmt::format("(?{}", text_.substr(at_, 2));
        at_ += 2;
        behind = true;
      } else if (take(">")) {
        begin = "(?>";
        atomic = true;
      } else if (!take(":")) {
        const bool off = take("-");
        if (!take("i")) refuse("options other than (?i)");
        inner = !off;
        if (take(")")) {
          if (!begins) refuse("(?i) that does not begin a group");
          caseless = inner;
          return {};
        }
        if (!take(":")) refuse("options other than (?i)");
      }
    }
    auto part = alternatives(inner, depth + 1);
    if (!take(")")) refuse("an unmatched (");
    part.text = begin + part.text + ")";
    part.is_atom = true;
    if (behind) pattern_.related = false;
    if (atomic) part.certain = false;  // it takes the first way that matches
    if (!ahead && !behind) return part;
    auto seen = assertion(part.text);
    seen.first = part.first;  // characters that are tried, but not matched
    return seen;
  }

  // Returns the class \p{...} or \P{...} after the backslash.
  std::string property() {
    const char letter = text_[at_++];
    if (!take("{")) refuse(fmt::format("\\{} without braces", letter));
    const auto end = text_.find('}', at_);
    if (end == text_.npos) refuse("an unmatched {");
    const auto name = text_.substr(at_, end - at_);
    if (name.find_first_not_of("^&_ abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") !=
        name.npos) {
      refuse("an unknown property");
    }
    at_ = end + 1;
    return fmt::format("\\{}{{{}}}", letter, name);
  }

  // Returns the character of an escape that names one, after the backslash; -1: it names none.
  int64_t escaped_character() {
    const auto hexadecimal = [&](size_t most) {
      int64_t code = 0;
      size_t digits = 0;
      for (; digits < most && more(); ++digits, ++at_) {
        const char c = text_[at_];
        if (!std::isxdigit(static_cast<unsigned char>(c))) break;
        code = 16 * code + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
      }
      if (digits == 0 || code > 0x10ffff) refuse("an escape of no character");
      return code;
    };
    if (!more()) refuse("a lone \\ at its end");
    if (take("r")) return '\r';
    if (take("n")) return '\n';
    if (take("t")) return '\t';
    if (take("f")) return '\f';
    if (take("v")) return '\v';
    if (take("a")) return 7;
    if (take("e")) return 27;
    if (take("x{")) {
      const auto code = hexadecimal(8);
      if (!take("}")) refuse("an unmatched {");
      return code;
    }
    if (take("x")) {
      const auto code = hexadecimal(2);
      if (code > 0x7f) refuse("\\x of a single byte beyond ASCII");
      return code;
    }
    if (take("u")) return hexadecimal(4);
    const auto c = character_at(text_, at_);
    if (c.code < 0x80 && std::isalnum(static_cast<int>(c.code))) return -1;
    at_ += c.length;
    return c.code;
  }

  Part escape(bool caseless) {
    if (const auto code = escaped_character(); code >= 0) {
      return make_atom(fmt::format("\\x{{{:x}}}", code), caseless);
    }
    if (is("p") || is("P")) return make_atom(property(), caseless);
    if (take("s")) return make_atom(fmt::format("[{}]", kSpace), false);
    if (take("S")) return make_atom(fmt::format("[^{}]", kSpace), false);
    if (take("d")) return make_atom("\\p{Nd}", false);
    if (take("D")) return make_atom("\\P{Nd}", false);
    if (take("w")) return make_atom(fmt::format("[{}]", word_), false);
    if (take("W")) return make_atom(fmt::format("[^{}]", word_), false);
    if (take("h")) return make_atom("[0-9a-fA-F]", false);
    const bool edge = is("b");
    if (edge || is("B")) {
      ++at_;
      pattern_.related = false;
      return assertion(edge ? fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", word_)
                            : fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", word_));
    }
    for (const char* anchor : {"A", "z", "Z"}) {
      if (!take(anchor)) continue;
      pattern_.related = false;
      return assertion(fmt::format("\\{}", anchor));
    }
    refuse(fmt::format("\\{}", text_[at_]));
  }

  // Returns the class after its bracket.
  std::string char_class() {
    std::string result = "[";
    if (take("^")) result += "^";
    bool any = false;
    int64_t before = -1;  // the character that may begin a range
    for (;; any = true) {
      if (!more()) refuse("an unmatched [");
      if (is("]") && any) break;
      if (is("[") || is("&&")) refuse("a class within a class");
      if (is("]")) refuse("an empty class");
      if (is("-") && before >= 0 && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        const auto end = class_character();
        if (end < before) refuse("a range without an end");
        result += fmt::format("-\\x{{{:x}}}", end);
        before = -1;
        continue;
      }
      before = -1;
      if (!is("\\")) {
        before = class_character();
        result += fmt::format("\\x{{{:x}}}", before);
        continue;
      }
      const auto begin = at_;
      ++at_;
      before = escaped_character();
      if (before >= 0) {
        result += fmt::format("\\x{{{:x}}}", before);
      } else if (is("p") || is("P")) {
        result += property();
      } else if (take("s")) {
        result += kSpace;
      } else if (take("S")) {
        result += kNoSpace;
      } else if (take("d")) {
        result += "\\p{Nd}";
      } else if (take("D")) {
        result += "\\P{Nd}";
      } else if (take("w")) {
        result += word_;
      } else if (take("h")) {
        result += "0-9a-fA-F";
      } else {
        refuse(fmt::format("{} in a class", text_.substr(begin, 2)));
      }
    }
    ++at_;
    return result + "]";
  }

  // Returns the next character of a class, which a backslash may precede, or -1.
  int64_t class_character() {
    if (take("\\")) return escaped_character();
    const auto c = character_at(text_, at_);
    at_ += c.length;
    return c.code;
  }

  std::string_view text_;
  std::string where_, word_;
  size_t at_ = 0;
  Pattern pattern_;
};

}  // namespace

Pattern parse_pattern(std::string_view text, const std::string& where, bool joiners) {
  return Parser(text, where, joiners).parse();
}

std::string literal_pattern(std::string_view text) {
  if (text.empty()) return "(?!)";
  std::string pattern;
  for (size_t at = 0; at < text.size();) {
    const auto c = character_at(text, at);
    pattern += fmt::format("\\x{{{:x}}}", uint32_t(c.code));
    at += c.length;
  }
  return pattern;
}

}  // namespace perigee::text
