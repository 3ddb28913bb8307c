// The keys and values of a job's store.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/network/store_message.h"

namespace perigee::store {

// All functions throw Refusal at a limit and then change nothing.
class Table {
 public:
  explicit Table(const Limits& limits) : limits_(limits) {}

  // Returns the value, or nullptr. Valid until the next change.
  const std::string* find(const std::string& key) const;
  void set(const std::string& key, std::string_view value);
  void append(const std::string& key, std::string_view text);
  // Writes `wanted` where the value, "" where there is none, is `expected`. Returns the value after
  // that, or `expected` where there is none (as c10d's TCPStore).
  std::string compare_set(const std::string& key, std::string_view expected,
                          std::string_view wanted);
  // Adds to the decimal number of the key (0 where there is none) and returns the sum. Throws
  // Refusal where the value is not a number or the sum does not fit.
  int64_t add(const std::string& key, int64_t amount);
  bool erase(const std::string& key);  // returns whether it existed
  size_t size() const { return values_.size(); }

 private:
  // Counts the key with a value of this size, or throws.
  void allow(const std::string& key, size_t value_size);

  const Limits limits_;
  std::unordered_map<std::string, std::string> values_;
  size_t bytes_ = 0;
};

}  // namespace perigee::store
