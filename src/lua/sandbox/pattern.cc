#include "lua/sandbox/pattern.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>

namespace perigee::lua {
namespace {

constexpr int kMaxCaptures = 32;
constexpr int kMaxDepth = 200;
constexpr long kMaxSteps = 10'000'000;
constexpr ptrdiff_t kUnfinished = -1;
constexpr ptrdiff_t kPosition = -2;

struct Capture {
  const char* begin;
  ptrdiff_t length;
};

// One match of one pattern. Recursive as in lstrlib.c, with a depth and a step limit.
class Matcher {
 public:
  Matcher(lua_State* L, std::string_view subject, std::string_view pattern)
      : L_(L),
        begin_(subject.data()),
        end_(subject.data() + subject.size()),
        pattern_end_(pattern.data() + pattern.size()) {}

  const char* begin() const { return begin_; }
  const char* end() const { return end_; }
  void reset() { level_ = 0; }

  // Returns the end of the match of p at s, or nullptr.
  const char* match(const char* s, const char* p) {
    if (++depth_ > kMaxDepth) luaL_error(L_, "pattern is nested too deeply");
    const char* result = match_here(s, p);
    --depth_;
    return result;
  }

  // Pushes capture i, or the whole match where the pattern has no captures.
  void push_capture(int i, const char* s, const char* e) {
    if (i >= level_) {
      if (i != 0) luaL_error(L_, "invalid capture index");
      lua_pushlstring(L_, s, e - s);
      return;
    }
    const auto& capture = captures_[i];
    if (capture.length == kUnfinished) luaL_error(L_, "unfinished capture");
    if (capture.length == kPosition) {
      lua_pushinteger(L_, capture.begin - begin_ + 1);
    } else {
      lua_pushlstring(L_, capture.begin, capture.length);
    }
  }

  int push_captures(const char* s, const char* e) {
    const int count = level_ == 0 && s ? 1 : level_;
    luaL_checkstack(L_, count, "too many captures");
    for (int i = 0; i < count; ++i) push_capture(i, s, e);
    return count;
  }

 private:
  void step() {
    if (++steps_ > kMaxSteps) {
      luaL_error(L_, "pattern takes more than %d steps on this string", int(kMaxSteps));
    }
  }

  const char* match_here(const char* s, const char* p) {
    for (;;) {
      step();
      if (p == pattern_end_) return s;
      switch (*p) {
        case '(':
          return p + 1 < pattern_end_ && p[1] == ')' ? open_capture(s, p + 2, kPosition)
                                                     : open_capture(s, p + 1, kUnfinished);
        case ')':
          return close_capture(s, p + 1);
        case '%':
          if (p + 1 < pattern_end_ && p[1] == 'b') {
            s = match_balance(s, p + 2);
            if (!s) return nullptr;
            p += 4;
            continue;
          }
          if (p + 1 < pattern_end_ && p[1] == 'f') {
            p += 2;
            if (p == pattern_end_ || *p != '[')
              luaL_error(L_, "missing '[' after '%%f' in pattern");
            const char* next = class_end(p);
            const char before = s == begin_ ? '\0' : s[-1];
            const char here = s == end_ ? '\0' : *s;
            if (in_set(before, p, next - 1) || !in_set(here, p, next - 1)) return nullptr;
            p = next;
            continue;
          }
          if (p + 1 < pattern_end_ && std::isdigit(static_cast<unsigned char>(p[1]))) {
            s = match_back_reference(s, p[1]);
            if (!s) return nullptr;
            p += 2;
            continue;
          }
          break;
        case '$':
          if (p + 1 == pattern_end_) return s == end_ ? s : nullptr;
          break;
        default:
          break;
      }
      const char* next = class_end(p);
      const char suffix = next < pattern_end_ ? *next : '\0';
      const bool one = s < end_ && single_match(*s, p, next);
      if (suffix == '?') {
        if (one) {
          if (const char* result = match(s + 1, next + 1)) return result;
        }
        p = next + 1;
      } else if (suffix == '*') {
        return max_expand(s, p, next);
      } else if (suffix == '+') {
        return one ? max_expand(s + 1, p, next) : nullptr;
      } else if (suffix == '-') {
        return min_expand(s, p, next);
      } else {
        if (!one) return nullptr;
        ++s;
        p = next;
      }
    }
  }

  const char* class_end(const char* p) {
    const char c = *p++;
    if (c == '%') {
      if (p == pattern_end_) luaL_error(L_, "malformed pattern (ends with '%%')");
      return p + 1;
    }
    if (c == '[') {
      if (p < pattern_end_ && *p == '^') ++p;
      do {
        if (p == pattern_end_) luaL_error(L_, "malformed pattern (missing ']')");
        if (*p++ == '%' && p < pattern_end_) ++p;
      } while (p == pattern_end_ || *p != ']');
      return p + 1;
    }
    return p;
  }

  static bool in_class(int c, int letter) {
    bool result;
    switch (std::tolower(letter)) {
      case 'a':
        result = std::isalpha(c);
        break;
      case 'c':
        result = std::iscntrl(c);
        break;
      case 'd':
        result = std::isdigit(c);
        break;
      case 'l':
        result = std::islower(c);
        break;
      case 'p':
        result = std::ispunct(c);
        break;
      case 's':
        result = std::isspace(c);
        break;
      case 'u':
        result = std::isupper(c);
        break;
      case 'w':
        result = std::isalnum(c);
        break;
      case 'x':
        result = std::isxdigit(c);
        break;
      case 'z':
        result = c == 0;
        break;
      default:
        return letter == c;
    }
    return std::islower(letter) ? result : !result;
  }

  // `last` points at the closing bracket.
  static bool in_set(char character, const char* p, const char* last) {
    const int c = static_cast<unsigned char>(character);
    bool wanted = true;
    if (p[1] == '^') {
      wanted = false;
      ++p;
    }
    while (++p < last) {
      if (*p == '%') {
        ++p;
        if (in_class(c, static_cast<unsigned char>(*p))) return wanted;
      } else if (p[1] == '-' && p + 2 < last) {
        p += 2;
        if (static_cast<unsigned char>(p[-2]) <= c && c <= static_cast<unsigned char>(*p)) {
          return wanted;
        }
      } else if (static_cast<unsigned char>(*p) == c) {
        return wanted;
      }
    }
    return !wanted;
  }

  static bool single_match(char character, const char* p, const char* next) {
    const int c = static_cast<unsigned char>(character);
    switch (*p) {
      case '.':
        return true;
      case '%':
        return in_class(c, static_cast<unsigned char>(p[1]));
      case '[':
        return in_set(character, p, next - 1);
      default:
        return static_cast<unsigned char>(*p) == c;
    }
  }

  const char* match_balance(const char* s, const char* p) {
    if (pattern_end_ - p < 2) luaL_error(L_, "unbalanced pattern");
    if (s == end_ || *s != *p) return nullptr;
    int open = 1;
    for (const char* at = s + 1; at < end_; ++at) {
      step();
      if (*at == p[1]) {
        if (--open == 0) return at + 1;
      } else if (*at == p[0]) {
        ++open;
      }
    }
    return nullptr;
  }

  const char* max_expand(const char* s, const char* p, const char* next) {
    ptrdiff_t count = 0;
    while (s + count < end_ && single_match(s[count], p, next)) {
      step();
      ++count;
    }
    for (; count >= 0; --count) {
      if (const char* result = match(s + count, next + 1)) return result;
    }
    return nullptr;
  }

  const char* min_expand(const char* s, const char* p, const char* next) {
    for (;;) {
      if (const char* result = match(s, next + 1)) return result;
      if (s == end_ || !single_match(*s, p, next)) return nullptr;
      ++s;
    }
  }

  const char* open_capture(const char* s, const char* p, ptrdiff_t what) {
    if (level_ >= kMaxCaptures) luaL_error(L_, "too many captures");
    captures_[level_] = {s, what};
    ++level_;
    const char* result = match(s, p);
    if (!result) --level_;
    return result;
  }

  const char* close_capture(const char* s, const char* p) {
    int open = level_ - 1;
    while (open >= 0 && captures_[open].length != kUnfinished) --open;
    if (open < 0) luaL_error(L_, "invalid pattern capture");
    captures_[open].length = s - captures_[open].begin;
    const char* result = match(s, p);
    if (!result) captures_[open].length = kUnfinished;
    return result;
  }

  const char* match_back_reference(const char* s, char digit) {
    const int index = digit - '1';
    if (index < 0 || index >= level_ || captures_[index].length < 0) {
      luaL_error(L_, "invalid capture index in pattern");
    }
    const auto& capture = captures_[index];
    if (end_ - s < capture.length || std::memcmp(capture.begin, s, capture.length) != 0) {
      return nullptr;
    }
    return s + capture.length;
  }

  lua_State* L_;
  const char* begin_;
  const char* end_;
  const char* pattern_end_;
  int level_ = 0;
  int depth_ = 0;
  long steps_ = 0;
  Capture captures_[kMaxCaptures];
};

std::string_view check_string(lua_State* L, int index) {
  size_t size;
  const char* data = luaL_checklstring(L, index, &size);
  return {data, size};
}

int find_or_match(lua_State* L, bool find) {
  const auto subject = check_string(L, 1);
  const auto pattern = check_string(L, 2);
  ptrdiff_t start = luaL_optinteger(L, 3, 1);
  if (start < 0) start += static_cast<ptrdiff_t>(subject.size()) + 1;
  start = std::max<ptrdiff_t>(start - 1, 0);
  if (start > static_cast<ptrdiff_t>(subject.size())) start = subject.size();
  if (find &&
      (lua_toboolean(L, 4) || pattern.find_first_of("^$*+?.([%-") == std::string_view::npos)) {
    const auto at = subject.find(pattern, start);
    if (at == std::string_view::npos) {
      lua_pushnil(L);
      return 1;
    }
    lua_pushinteger(L, at + 1);
    lua_pushinteger(L, at + pattern.size());
    return 2;
  }
  Matcher matcher(L, subject, pattern);
  const bool anchored = !pattern.empty() && pattern.front() == '^';
  const char* p = pattern.data() + anchored;
  for (const char* s = matcher.begin() + start; s <= matcher.end(); ++s) {
    matcher.reset();
    if (const char* e = matcher.match(s, p)) {
      if (!find) return matcher.push_captures(s, e);
      lua_pushinteger(L, s - matcher.begin() + 1);
      lua_pushinteger(L, e - matcher.begin());
      return matcher.push_captures(nullptr, nullptr) + 2;
    }
    if (anchored) break;
  }
  lua_pushnil(L);
  return 1;
}

int gmatch_next(lua_State* L) {
  const auto subject = check_string(L, lua_upvalueindex(1));
  const auto pattern = check_string(L, lua_upvalueindex(2));
  Matcher matcher(L, subject, pattern);
  for (const char* s = matcher.begin() + lua_tointeger(L, lua_upvalueindex(3)); s <= matcher.end();
       ++s) {
    matcher.reset();
    if (const char* e = matcher.match(s, pattern.data())) {
      lua_pushinteger(L, e - matcher.begin() + (e == s ? 1 : 0));
      lua_replace(L, lua_upvalueindex(3));
      return matcher.push_captures(s, e);
    }
  }
  return 0;
}

// Appends the replacement for the match [s, e) to the buffer.
void add_replacement(lua_State* L, Matcher& matcher, luaL_Buffer& buffer, const char* s,
                     const char* e) {
  switch (lua_type(L, 3)) {
    case LUA_TFUNCTION: {
      lua_pushvalue(L, 3);
      const int count = matcher.push_captures(s, e);
      lua_call(L, count, 1);
      break;
    }
    case LUA_TTABLE:
      matcher.push_capture(0, s, e);
      lua_gettable(L, 3);
      break;
    default: {
      const auto text = check_string(L, 3);
      for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
          luaL_addchar(&buffer, text[i]);
        } else if (++i == text.size()) {
          luaL_error(L, "invalid use of '%%' in the replacement");
        } else if (!std::isdigit(static_cast<unsigned char>(text[i]))) {
          luaL_addchar(&buffer, text[i]);
        } else if (text[i] == '0') {
          luaL_addlstring(&buffer, s, e - s);
        } else {
          matcher.push_capture(text[i] - '1', s, e);
          luaL_addvalue(&buffer);
        }
      }
      return;
    }
  }
  if (!lua_toboolean(L, -1)) {
    lua_pop(L, 1);
    lua_pushlstring(L, s, e - s);
  } else if (!lua_isstring(L, -1)) {
    luaL_error(L, "invalid replacement value (a %s)", luaL_typename(L, -1));
  }
  luaL_addvalue(&buffer);
}

}  // namespace

int string_find(lua_State* L) { return find_or_match(L, true); }
int string_match(lua_State* L) { return find_or_match(L, false); }

int string_gmatch(lua_State* L) {
  check_string(L, 1);
  check_string(L, 2);
  lua_settop(L, 2);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, gmatch_next, 3);
  return 1;
}

int string_gsub(lua_State* L) {
  const auto subject = check_string(L, 1);
  const auto pattern = check_string(L, 2);
  const int type = lua_type(L, 3);
  luaL_argcheck(
      L, type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TFUNCTION || type == LUA_TTABLE,
      3, "string, function or table expected");
  const ptrdiff_t most = luaL_optinteger(L, 4, subject.size() + 1);
  const bool anchored = !pattern.empty() && pattern.front() == '^';
  const char* p = pattern.data() + anchored;
  Matcher matcher(L, subject, pattern);
  luaL_Buffer buffer;
  luaL_buffinit(L, &buffer);
  const char* s = matcher.begin();
  ptrdiff_t count = 0;
  while (count < most) {
    matcher.reset();
    const char* e = matcher.match(s, p);
    if (e) {
      ++count;
      add_replacement(L, matcher, buffer, s, e);
    }
    if (e && e > s) {
      s = e;
    } else if (s < matcher.end()) {
      luaL_addchar(&buffer, *s++);
    } else {
      break;
    }
    if (anchored) break;
  }
  luaL_addlstring(&buffer, s, matcher.end() - s);
  luaL_pushresult(&buffer);
  lua_pushinteger(L, count);
  return 2;
}

}  // namespace perigee::lua
