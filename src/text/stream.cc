#include "text/stream.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/parallel.h"
#include "base/text/bytes.h"

namespace perigee::text {
namespace {

// The read text that is not encoded yet.
class Buffer {
 public:
  explicit Buffer(const Stream& stream) : stream_(stream) {}

  std::string_view text() const { return std::string_view(bytes_).substr(begin_); }
  bool ended() const { return ended_; }

  void drop(size_t count) { begin_ += count; }

  // Reads until the buffer has so many bytes, or the text ends.
  void fill(size_t size) {
    bytes_.erase(0, begin_);
    begin_ = 0;
    while (!ended_ && bytes_.size() < size) {
      const auto had = bytes_.size();
      bytes_.resize(size);
      const auto count = stream_.read(bytes_.data() + had, size - had);
      bytes_.resize(had + count);
      ended_ = count == 0;
    }
  }

 private:
  const Stream& stream_;
  std::string bytes_;
  size_t begin_ = 0;
  bool ended_ = false;
};

// Returns the lengths of parts of a text that end where it may be cut. The rest after the last of
// them is a part where the text ends.
std::vector<size_t> parts_of(const Tokenizer& tokenizer, std::string_view text, size_t chunk,
                             bool ended) {
  std::vector<size_t> parts;
  size_t limit = chunk;
  while (text.size() > limit) {
    const auto cut = tokenizer.last_cut(text, limit);
    if (cut == 0) {
      limit *= 2;
      continue;
    }
    parts.push_back(cut);
    text.remove_prefix(cut);
    limit = chunk;
  }
  if (ended && !text.empty()) parts.push_back(text.size());
  return parts;
}

}  // namespace

void encode_stream(const Tokenizer& tokenizer, const Stream& stream) {
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const auto chunk = std::max<size_t>(1, stream.chunk);
  Buffer buffer(stream);
  bool rest = false;
  uint64_t done = 0;
  for (size_t size = 2 * cores * chunk;;) {
    buffer.fill(size);
    const auto text = buffer.text();
    const auto parts = parts_of(tokenizer, text, chunk, buffer.ended());
    if (parts.empty() && buffer.ended()) return;
    if (parts.empty()) {  // no cut in all of it
      size *= 2;
      continue;
    }
    std::vector<std::vector<int64_t>> ids(parts.size());
    std::vector<size_t> begins(parts.size(), 0);
    for (size_t i = 1; i < parts.size(); ++i) begins[i] = begins[i - 1] + parts[i - 1];
    in_parallel(parts.size(), [&](size_t i) {
      const auto part = text.substr(begins[i], parts[i]);
      ids[i] = rest || i > 0 ? tokenizer.encode_rest(part) : tokenizer.encode(part);
    });
    for (size_t i = 0; i < parts.size(); ++i) {
      stream.take(ids[i]);
      done += parts[i];
      buffer.drop(parts[i]);
    }
    stream.progress(done);
    rest = true;
    if (buffer.ended() && buffer.text().empty()) return;
  }
}

std::string progress_line(const std::string& file, uint64_t done, uint64_t all) {
  const auto line = "tokenizing " + file + ": " + bytes_text(double(done));
  return all == 0 ? line : line + " of " + bytes_text(double(all));
}

std::function<size_t(char*, size_t)> reader_of(std::string_view text) {
  return [text](char* bytes, size_t most) mutable {
    const auto count = std::min(most, text.size());
    if (count > 0) std::memcpy(bytes, text.data(), count);
    text.remove_prefix(count);
    return count;
  };
}

}  // namespace perigee::text
