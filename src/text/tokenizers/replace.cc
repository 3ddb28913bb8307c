#include "text/tokenizers/replace.h"

#include "text/tokenizers/characters/unicode.h"
#include "text/tokenizers/regex/pattern.h"

namespace perigee::text {

Regex make_regex(const Reader& pattern) {
  if (pattern.has("String")) {
    const auto text = pattern.at("String");
    return {literal_pattern(text.text()), text.place()};
  }
  const auto regex = pattern.at("Regex");
  return {regex.text(), regex.place()};
}

Replacement::Replacement(const Reader& json) : content_(json.at("content").text()) {
  const auto pattern = json.at("pattern");
  if (pattern.has("String")) search_ = pattern.at("String").text();
  if (search_.empty()) regex_ = std::make_unique<Regex>(make_regex(pattern));
}

void Replacement::apply(std::string& text) const {
  std::string result;
  size_t done = 0;
  const auto replace = [&](size_t begin, size_t end) {
    result.append(text, done, begin - done);
    result += content_;
    done = end;
  };
  if (regex_) {
    regex_->find_all(text, replace);
  } else {
    for (auto at = text.find(search_); at != text.npos; at = text.find(search_, done)) {
      replace(at, at + search_.size());
    }
  }
  if (done == 0 && result.empty()) return;
  result.append(text, done);
  text = std::move(result);
}

bool Replacement::cut(char32_t& a, char32_t& b) const {
  if (regex_) {
    // A match that has `b` begins there.
    if (!regex_->separates(a, b) || content_.empty()) return false;
    if (!regex_->ignores(b) && character_at(content_, 0).code != b) return false;
    if (a != kUnknown && !regex_->ignores(a)) a = kUnknown;
    return true;
  }
  const auto first = character_at(search_, 0);
  const bool single = first.length == search_.size();
  if (single && first.code == b) {
    if (content_.empty()) return false;
    b = character_at(content_, 0).code;
  } else if (!single) {  // no occurrence has b
    for (size_t at = 0; at < search_.size();) {
      const auto c = character_at(search_, at);
      if (c.code == b) return false;
      at += c.length;
    }
  }
  for (size_t at = 0; at < search_.size();) {
    const auto c = character_at(search_, at);
    if (c.code == a) a = kUnknown;
    at += c.length;
  }
  return a != kUnknown || !content_.empty();  // else nothing may be left of the first part
}

}  // namespace perigee::text
