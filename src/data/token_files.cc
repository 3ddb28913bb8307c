#include "data/token_files.h"

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "base/files/mapped_file.h"

namespace perigee::data {

void Tokens::add_file(const std::string& path, int width) {
  auto file = map_file(path);
  if (file.bytes.size() % width != 0) {
    fail("data",
         "a file of {}-byte tokens must be a multiple of {} bytes long, but {} has {}: it is cut "
         "short, or data.token_type is wrong",
         width, width, path, file.bytes.size());
  }
  add(path, {std::move(file.owner), file.bytes, width});
}

void Tokens::add(const std::string& path, TokenBytes tokens) {
  ends_.push_back(size() + static_cast<int64_t>(tokens.bytes.size()) / tokens.width);
  parts_.push_back({path, std::move(tokens)});
}

void Tokens::read(int64_t begin, int64_t length, const IdLimit& limit, int64_t* out) const {
  auto part = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
  while (length > 0) {
    const int64_t first = part == 0 ? 0 : ends_[part - 1];
    const auto count = std::min(length, ends_[part] - begin);
    read_part(parts_[part], begin - first, count, limit, out);
    begin += count;
    length -= count;
    out += count;
    ++part;
  }
}

void Tokens::read_part(const Part& part, int64_t begin, int64_t count, const IdLimit& limit,
                       int64_t* out) {
  const int width = part.tokens.width;
  const auto* at = part.tokens.bytes.data() + begin * width;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t id = 0;  // little endian, as this machine
    std::memcpy(&id, at + i * width, width);
    if (limit.below > 0 && id >= limit.below) {
      fail("data", "token ids must be below {} = {}, but token {} of {} is {}", limit.why,
           limit.below, begin + i, part.path, id);
    }
    out[i] = id;
  }
}

}  // namespace perigee::data
