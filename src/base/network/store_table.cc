#include "base/network/store_table.h"

#include <fmt/format.h>

#include <charconv>

namespace perigee::store {

const std::string* Table::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void Table::allow(const std::string& key, size_t value_size) {
  if (value_size > limits_.value) {
    throw Refusal(fmt::format("the value of \"{}\" must have at most {} bytes, but has {}", key,
                              limits_.value, value_size));
  }
  const auto* value = find(key);
  if (!value && values_.size() >= limits_.keys) {
    throw Refusal(fmt::format("the job must have at most {} keys, but \"{}\" is one more",
                              limits_.keys, key));
  }
  const size_t before = value ? key.size() + value->size() : 0;
  const size_t bytes = bytes_ - before + key.size() + value_size;
  if (bytes > limits_.total) {
    throw Refusal(fmt::format("keys and values must have at most {} bytes, but have {} with \"{}\"",
                              limits_.total, bytes, key));
  }
  bytes_ = bytes;
}

void Table::set(const std::string& key, std::string_view value) {
  allow(key, value.size());
  values_[key] = value;
}

void Table::append(const std::string& key, std::string_view text) {
  const auto* value = find(key);
  allow(key, (value ? value->size() : 0) + text.size());
  values_[key] += text;
}

std::string Table::compare_set(const std::string& key, std::string_view expected,
                               std::string_view wanted) {
  const auto* value = find(key);
  if (value ? *value == expected : expected.empty()) set(key, wanted);
  value = find(key);
  return value ? *value : std::string(expected);
}

int64_t Table::add(const std::string& key, int64_t amount) {
  int64_t sum = 0;
  if (const auto* value = find(key)) {
    const auto* end = value->data() + value->size();
    const auto parsed = std::from_chars(value->data(), end, sum);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      throw Refusal(
          fmt::format("\"{}\" must be a number to add to, but has {} bytes of another form", key,
                      value->size()));
    }
  }
  if (__builtin_add_overflow(sum, amount, &sum)) {
    throw Refusal(fmt::format("the sum of \"{}\" must fit in 64 bits, but does not", key));
  }
  set(key, std::to_string(sum));
  return sum;
}

bool Table::erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= key.size() + found->second.size();
  values_.erase(found);
  return true;
}

}  // namespace perigee::store
