// The tokens of several files as one sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/id_limit.h"
#include "data/token_cache.h"

namespace perigee::data {

// Tokens in memory or mapped files, joined.
class Tokens {
 public:
  // Appends a file of raw ids (1, 2 or 4 bytes each, little endian). Throws Error where it cannot
  // be read, or its size is no multiple of `width`.
  void add_file(const std::string& path, int width);

  // Appends the tokens of a text file.
  void add(const std::string& path, TokenBytes tokens);

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  // Copies tokens [begin, begin + length) to `out`. Throws Error for an id beyond the limit.
  void read(int64_t begin, int64_t length, const IdLimit& limit, int64_t* out) const;

 private:
  struct Part {
    std::string path;
    TokenBytes tokens;
  };

  static void read_part(const Part& part, int64_t begin, int64_t count, const IdLimit& limit,
                        int64_t* out);

  std::vector<Part> parts_;
  std::vector<int64_t> ends_;
};

}  // namespace perigee::data
