#include "text/reply.h"

#include <algorithm>
#include <utility>

#include "base/text/utf8.h"

namespace perigee::text {
namespace {

constexpr size_t kBefore = 8;   // tokens that decide whether a text begins with a space
constexpr size_t kLongest = 4;  // bytes of a character, hence tokens that can make one

// Returns whether the text ends within a character. A tokenizer decodes a part of one to U+FFFD, or
// to its bytes.
bool ends_within_character(std::string_view text) {
  if (text.ends_with("\xef\xbf\xbd")) return true;
  for (size_t size = 1; size < kLongest && size <= text.size(); ++size) {
    const auto front = utf8_front(text.substr(text.size() - size));
    if (front.bytes == size && !front.whole) return true;
  }
  return false;
}

}  // namespace

Reply::Reply(const Tokenizer& tokenizer, std::span<const int64_t> before,
             std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  const auto last = before.last(std::min(kBefore, before.size()));
  tokens_.assign(last.begin(), last.end());
  decoded_ = tokens_.size();
}

std::string Reply::add(int64_t token) {
  if (stopped_) return "";
  tokens_.push_back(token);
  return certain(false);
}

std::string Reply::end() { return stopped_ ? "" : certain(true); }

std::string Reply::certain(bool last) {
  const auto known = tokenizer_.decode({tokens_.begin(), tokens_.begin() + int64_t(decoded_)});
  const auto all = tokenizer_.decode(tokens_);
  const bool partial = ends_within_character(all) && tokens_.size() - decoded_ < kLongest;
  if (last || !partial) {
    if (all.size() > known.size()) held_ += all.substr(known.size());
    // The tokens of this text are the context of the next.
    const auto kept = std::max(tokens_.size() - decoded_, std::min(kBefore, tokens_.size()));
    tokens_.erase(tokens_.begin(), tokens_.end() - int64_t(kept));
    decoded_ = tokens_.size();
  }
  size_t found = std::string::npos;
  for (const auto& stop : stops_) found = std::min(found, held_.find(stop));
  if (found != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, "").substr(0, found);
  }
  size_t kept = 0;  // the longest end of the text with which a stop string begins
  for (const auto& stop : last ? std::vector<std::string>() : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > kept; --size) {
      if (stop.starts_with(std::string_view(held_).substr(held_.size() - size))) kept = size;
    }
  }
  auto given = held_.substr(0, held_.size() - kept);
  held_.erase(0, given.size());
  return given;
}

}  // namespace perigee::text
