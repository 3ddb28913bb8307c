#include "text/stream.h"

#include <catch2/catch.hpp>
#include <thread>

#include "base/error.h"

using namespace perigee;

namespace {

// Ids are bytes; a text may be cut before each 'x', and notes its longest part.
class Marked : public text::Tokenizer {
 public:
  int64_t vocab() const override { return 256; }
  std::vector<int64_t> encode(std::string_view text) const override {
    return {text.begin(), text.end()};
  }
  std::string decode(const std::vector<int64_t>& ids) const override {
    return {ids.begin(), ids.end()};
  }
  size_t last_cut(std::string_view text, size_t limit) const override {
    for (size_t at = std::min(limit, text.size() - 1); at > 0; --at) {
      if (text[at] == 'x') return at;
    }
    return 0;
  }
  std::vector<int64_t> encode_rest(std::string_view text) const override {
    if (text.empty() || text[0] != 'x') throw Error(Status::failed, "test", "no cut");
    return encode(text);
  }
};

// Returns the ids of the stream, and the largest number of bytes that were read and not yet taken.
std::pair<std::vector<int64_t>, size_t> stream(std::string_view text, size_t chunk) {
  std::vector<int64_t> ids;
  size_t read = 0, most = 0;
  uint64_t done = 0;
  text::Stream stream;
  stream.read = [&](char* to, size_t size) {
    const auto count = std::min({size, text.size() - read, size_t{777}});
    std::copy_n(text.data() + read, count, to);
    read += count;
    most = std::max(most, read - ids.size());
    return count;
  };
  stream.take = [&](std::span<const int64_t> more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  stream.progress = [&](uint64_t bytes) { done = bytes; };
  stream.chunk = chunk;
  text::encode_stream(Marked(), stream);
  CHECK(done == text.size());
  return {ids, most};
}

}  // namespace

TEST_CASE("a stream is cut only where the tokenizer allows, with little of it in memory") {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += i % 37 == 0 ? 'x' : char('a' + i % 7);
  for (const size_t chunk : {1, 10, 100, 5'000, 1 << 20}) {
    CAPTURE(chunk);
    const auto [ids, most] = stream(text, chunk);
    CHECK(std::equal(ids.begin(), ids.end(), text.begin(), text.end()));
    const size_t cores = std::max(1U, std::thread::hardware_concurrency());
    CHECK(most <= std::max<size_t>(4 * cores * chunk, 4'000));
  }
  const auto [ids, most] = stream(std::string(10'000, 'a'), 10);  // no cut
  CHECK(ids == std::vector<int64_t>(10'000, 'a'));
  CHECK(stream("", 10).first.empty());
}
