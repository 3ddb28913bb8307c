#include "text/tokenizers/regex/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <bitset>

#include "base/fail.h"
#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/regex/pattern.h"

namespace perigee::text {
namespace {

template <auto free>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using Stack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

std::string reason(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

Code compiled(const std::string& pattern, const std::string& where) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &place,
                          context.get()));
  if (!code) {
    fail("tokenizer", "{} must be a regular expression that PCRE2 compiles, but: {}", where,
         reason(error));
  }
  return code;
}

// The memory in which one thread matches.
struct Matcher {
  Stack stack{pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  MatchData data{pcre2_match_data_create(1, nullptr)};

  Matcher() {
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    pcre2_set_match_limit(context.get(), 10'000'000);
    pcre2_set_heap_limit(context.get(), 64 << 10);
  }
};

}  // namespace

struct Regex::Impl {
  Pattern pattern;
  std::string where;
  Code code;
  std::vector<Code> atoms;
  std::vector<std::bitset<128>> ascii;  // the characters of each atom

  bool matches(size_t atom, char32_t c) const {
    if (c < 128) return ascii[atom][c];
    if (c >= kUnknown) return true;
    std::string text;
    append(text, c);
    return matches_text(atom, text);
  }

  bool matches_text(size_t atom, const std::string& text) const {
    const MatchData data(pcre2_match_data_create(1, nullptr));
    return pcre2_match(atoms[atom].get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                       PCRE2_ANCHORED | PCRE2_ENDANCHORED, data.get(), nullptr) >= 0;
  }
};

Regex::Regex(std::string_view pattern, const std::string& where, bool joiners)
    : impl_(std::make_unique<Impl>()) {
  impl_->where = where;
  impl_->pattern = parse_pattern(pattern, where, joiners);
  impl_->code = compiled(impl_->pattern.translated, where);
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);  // else pcre2_match() interprets
  for (const auto& atom : impl_->pattern.atoms) {
    impl_->atoms.push_back(compiled(atom, where));
    std::bitset<128> set;
    for (char c = 0; c >= 0 && size_t(c) < 128; ++c) {
      set[size_t(c)] = impl_->matches_text(impl_->atoms.size() - 1, std::string(1, c));
      if (c == 127) break;
    }
    impl_->ascii.push_back(set);
  }
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

void Regex::find_all(std::string_view text,
                     const std::function<void(size_t, size_t)>& match) const {
  thread_local const Matcher matcher;
  size_t from = 0, last = text.size() + 1;
  const auto* begin = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto* place = pcre2_get_ovector_pointer(matcher.data.get());
  while (from <= text.size()) {
    const int found = pcre2_match(impl_->code.get(), begin, text.size(), from, PCRE2_NO_UTF_CHECK,
                                  matcher.data.get(), matcher.context.get());
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) {
      fail("tokenizer", "{} must match the text within the limits of PCRE2, but: {}", impl_->where,
           reason(found));
    }
    if (place[0] == place[1] && place[0] == last) {
      from += from < text.size() ? character_at(text, from).length : 1;
      continue;
    }
    from = last = place[1];
    match(place[0], place[1]);
  }
}

bool Regex::separates(char32_t a, char32_t b) const {
  const auto& pattern = impl_->pattern;
  if (!pattern.related) return false;
  for (size_t i = 0; i < pattern.atoms.size(); ++i) {
    if (pattern.after[i].empty() || !impl_->matches(i, a)) continue;
    for (const auto next : pattern.after[i]) {
      if (impl_->matches(next, b)) return false;
    }
  }
  return true;
}

bool Regex::begins_at(char32_t a, char32_t b) const {
  if (b >= kUnknown || !separates(a, b)) return false;
  for (const auto atom : impl_->pattern.alone) {
    if (impl_->matches(atom, b)) return true;
  }
  return false;
}

bool Regex::ignores(char32_t c) const {
  for (size_t i = 0; i < impl_->atoms.size(); ++i) {
    if (impl_->matches(i, c)) return false;
  }
  return true;
}

}  // namespace perigee::text
