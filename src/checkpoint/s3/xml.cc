#include "checkpoint/s3/xml.h"

#include <charconv>

namespace perigee::checkpoint::s3 {
namespace {

// Appends a character as UTF-8.
void append(std::string& out, unsigned code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned kFirst[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kFirst[more] | (code >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) {
    out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
  }
}

std::string resolved(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto at = text.find('&');
    out += text.substr(0, at);
    if (at == text.npos) break;
    text.remove_prefix(at + 1);
    const auto end = text.find(';');
    auto name = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (name == "lt") out += '<';
    if (name == "gt") out += '>';
    if (name == "amp") out += '&';
    if (name == "quot") out += '"';
    if (name == "apos") out += '\'';
    if (!name.starts_with('#')) continue;
    name.remove_prefix(1);
    const int base = name.starts_with('x') ? 16 : 10;
    if (base == 16) name.remove_prefix(1);
    unsigned code = 0;
    std::from_chars(name.data(), name.data() + name.size(), code, base);
    if (code > 0 && code <= 0x10FFFF) append(out, code);
  }
  return out;
}

}  // namespace

std::vector<std::string_view> elements(std::string_view text, std::string_view name) {
  std::vector<std::string_view> found;
  const auto open = "<" + std::string(name) + ">", close = "</" + std::string(name) + ">";
  for (size_t at = 0; (at = text.find(open, at)) != text.npos;) {
    at += open.size();
    const auto end = text.find(close, at);
    if (end == text.npos) break;
    found.push_back(text.substr(at, end - at));
    at = end + close.size();
  }
  return found;
}

std::string element(std::string_view text, std::string_view name) {
  const auto found = elements(text, name);
  return found.empty() ? "" : resolved(found.front());
}

}  // namespace perigee::checkpoint::s3
