#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "base/files/file.h"
#include "tests/text/support.h"
#include "text/stream.h"
#include "text/tokenizer.h"

using namespace perigee;
using Ids = std::vector<int64_t>;

namespace {

// Returns the place of the first difference, or -1.
template <class List>
int64_t difference(const List& a, const List& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != b[i]) return int64_t(i);
  }
  return a.size() == b.size() ? -1 : int64_t(std::min(a.size(), b.size()));
}

Ids in_chunks(const text::Tokenizer& tokenizer, std::string_view whole, size_t chunk) {
  Ids ids;
  text::Stream stream;
  stream.read = text::reader_of(whole);
  stream.take = [&](std::span<const int64_t> more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  stream.chunk = chunk;
  text::encode_stream(tokenizer, stream);
  return ids;
}

// Cuts at almost every place that the tokenizer allows.
Ids in_small_parts(const text::Tokenizer& tokenizer, std::string_view rest, size_t& parts) {
  Ids ids;
  parts = 0;
  for (size_t limit = 3; !rest.empty(); limit *= 2) {
    auto cut = tokenizer.last_cut(rest, limit);
    if (cut == 0 && limit < rest.size()) continue;
    if (cut == 0) cut = rest.size();
    const auto part = rest.substr(0, cut);
    const auto more = parts == 0 ? tokenizer.encode(part) : tokenizer.encode_rest(part);
    ids.insert(ids.end(), more.begin(), more.end());
    rest.remove_prefix(cut);
    limit = 1 + cut % 3;
    ++parts;
  }
  return ids;
}

// Returns a part of the text, with some bytes changed where `damaged`.
std::string part_of(const std::string& text, size_t size, uint64_t seed, bool damaged) {
  std::mt19937_64 random(seed);
  size_t begin = random() % (text.size() - size);
  while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) ++begin;
  auto part = text.substr(begin, size);
  for (int i = 0; damaged && i < 30; ++i) part[random() % size] = char(random());
  return part;
}

}  // namespace

TEST_CASE("ids and texts equal those of PyPI's tokenizers, and do not depend on chunks") {
  const test::Folder folder;
  if (!test::make_tokenizers(folder)) {
    WARN("not tested: PyPI's tokenizers cannot be installed here");
    return;
  }
  const auto mixed = read_file(folder.at("text.txt"), "test");
  size_t tested = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".ids") continue;
    const auto name = entry.path().stem().string();
    CAPTURE(name);
    const auto text = name == "inexact" ? "aaaa" + mixed : mixed;
    const auto tokenizer = text::make_tokenizer(folder.at(name + ".json"));
    const auto expected = nlohmann::json::parse(read_file(entry.path(), "test")).get<Ids>();
    const auto ids = tokenizer->encode(text);
    const auto differs = difference(ids, expected);
    if (differs >= 0) {
      const auto from = std::max<int64_t>(0, differs - 3);
      const Ids got(ids.begin() + from, ids.begin() + std::min<int64_t>(from + 9, ids.size()));
      const Ids want(expected.begin() + from,
                     expected.begin() + std::min<int64_t>(from + 9, expected.size()));
      CAPTURE(got, want, tokenizer->decode(got), tokenizer->decode(want));
      CHECK(differs == -1);
    }
    CHECK(*std::ranges::max_element(ids) < tokenizer->vocab());
    CHECK(difference(tokenizer->decode(expected), read_file(folder.at(name + ".txt"), "test")) ==
          -1);

    const auto chunks = in_chunks(*tokenizer, text, 10'000);
    CHECK(difference(chunks, expected) == -1);
    for (uint64_t seed = 0; seed < 2; ++seed) {
      const bool damaged = seed % 2 == 1;
      CAPTURE(seed);
      const auto part = part_of(text, 8'000, seed, damaged);
      const auto whole = tokenizer->encode(part);
      size_t parts = 0;
      CHECK(difference(in_small_parts(*tokenizer, part, parts), whole) == -1);
      CHECK(difference(in_chunks(*tokenizer, part, 500 + 97 * seed), whole) == -1);
      // A proof that fails everywhere would make the checks above true.
      if (name != "pieces" && name != "inexact") CHECK(parts > part.size() / 200);
    }
    ++tested;
  }
  CHECK(tested == 16);
}
