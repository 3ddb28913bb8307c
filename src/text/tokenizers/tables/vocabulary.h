// The tokens of a model and their ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/reader.h"
#include "text/tokenizers/tables/string_table.h"

namespace perigee::text {

class Vocabulary {
 public:
  Vocabulary() = default;
  explicit Vocabulary(const Reader& json);  // {"token": id}

  void add(std::string_view token, int64_t id);
  int64_t id(std::string_view token) const { return ids_.find(token); }  // or -1
  const std::vector<std::string>& tokens() const { return tokens_; }     // by id
  bool has_shared_ids() const { return shared_; }                        // of several tokens
  size_t size() const { return ids_.size(); }

 private:
  StringTable ids_;
  std::vector<std::string> tokens_;
  bool shared_ = false;
};

}  // namespace perigee::text
