#include "text/reply.h"

#include <algorithm>
#include <utility>

#include "base/text/utf8.h"

namespace perigee::text {
namespace {

constexpr size_t kBefore = 8;   // tokens that decide whether a text begins with a space
constexpr size_t kLongest = 4;  // bytes of a character, hence tokens that can make one

// Returns the bytes of the text before a character that is not complete. A tokenizer decodes a part of
// one to U+FFFD, or to its bytes.
size_t complete_size(std::string_view text) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  const auto all = text.size();
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  if (text.size() < all) return text.size();
  for (size_t size = 1; size < kLongest && size <= all; ++size) {
    const auto front = utf8_front(text.substr(all - size));
    if (front.bytes == size && !front.whole) return all - size;
  }
  return all;
}

}  // namespace

Reply::Reply(const Tokenizer& tokenizer, std::span<const int64_t> before,
             std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  const auto last = before.last(std::min(kBefore, before.size()));
  tokens_.assign(last.begin(), last.end());
  given_ = tokenizer_.decode(tokens_).size();
}

std::string Reply::add(int64_t token) {
  if (stopped_) return "";
  tokens_.push_back(token);
  return certain(false);
}

std::string Reply::end() { return stopped_ ? "" : certain(true); }

std::string Reply::certain(bool last) {
  const auto all = tokenizer_.decode(tokens_);
  auto size = complete_size(all);
  if (last || ++waiting_ >= kLongest) size = all.size();
  if (size > given_) {
    held_ += all.substr(given_, size - given_);
    waiting_ = 0;
    // The last tokens are the context of the next.
    const bool whole = size == all.size();
    tokens_.erase(tokens_.begin(), tokens_.end() - int64_t(std::min(kBefore, tokens_.size())));
    const auto context = tokenizer_.decode(tokens_);
    given_ = whole ? context.size() : complete_size(context);
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
