// Files of gzip and Zstandard, and those that are refused.
#include "text/documents/byte_source.h"

#include <catch2/catch.hpp>

#include "base/files/file.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
using namespace std::string_view_literals;
using test::error_of;
using test::Folder;

namespace {

std::string content(const std::string& path, size_t piece) {
  const auto source = text::open_bytes(path);
  std::string text, bytes(piece, '\0');
  while (const auto count = source->read(bytes.data(), piece)) text.append(bytes, 0, count);
  CHECK(source->read(bytes.data(), piece) == 0);
  CHECK(source->position() == text::size_of_file(path));
  return text;
}

// Compresses a file by the system's gzip.
std::string gzip(const Folder& folder, const std::string& name, const std::string& text) {
  const auto plain = folder.add(name, text);
  REQUIRE(std::system(("gzip -kf " + plain).c_str()) == 0);
  return plain + ".gz";
}

// A Zstandard frame that stores the text as it is.
std::string stored_frame(std::string_view text) {
  std::string frame = "\x28\xb5\x2f\xfd\xa0";
  const auto number = [&](uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) frame += char(value >> (8 * i));
  };
  number(text.size(), 4);
  do {
    const auto block = text.substr(0, 100'000);
    text.remove_prefix(block.size());
    number(block.size() << 3 | (text.empty() ? 1 : 0), 3);
    frame += block;
  } while (!text.empty());
  return frame;
}

std::string line_100() {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "{\"text\": \"one and the same line\"}\n";
  return text;
}

// line_100 by libzstd at level 19.
constexpr auto kCompressed =
    "\x28\xb5\x2f\xfd\x60\x48\x0c\x5d\x01\x00\x24\x02\x7b\x22\x74\x65\x78\x74\x22\x3a\x20\x22\x6f"
    "\x6e\x65\x20\x61\x6e\x64\x20\x74\x68\x65\x20\x73\x61\x6d\x65\x20\x6c\x69\x6e\x65\x22\x7d\x0a"
    "\x01\x00\x1a\x69\xf1\xd5\x13"sv;

}  // namespace

TEST_CASE("plain, gzip and Zstandard files give the same bytes in pieces of any size") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 60'000; ++i) text += std::to_string(i * 7919 % 100'003) + "\n";
  const auto plain = folder.add("a.txt", text);
  const auto packed = gzip(folder, "b.txt", text);
  CHECK(text::size_of_file(packed) < text.size() / 2);
  const auto stored = folder.add("a.zst", stored_frame(text));
  for (const size_t piece : {1000, 262'144, 10'000'000}) {
    CHECK(content(plain, piece) == text);
    CHECK(content(packed, piece) == text);
    CHECK(content(stored, piece) == text);
  }
  CHECK(content(folder.add("c.zst", kCompressed), 7) == line_100());
  CHECK(content(folder.add("empty", ""), 7).empty());
  CHECK(content(folder.add("short", "abc"), 2) == "abc");
  CHECK(text::is_compressed(packed));
  CHECK(!text::is_compressed(plain));
}

TEST_CASE("a file may have several members of gzip or frames of Zstandard") {
  const Folder folder;
  const auto a = read_file(gzip(folder, "a", "first\n"), "test");
  const auto b = read_file(gzip(folder, "b", "second\n"), "test");
  CHECK(content(folder.add("two.gz", a + b), 3) == "first\nsecond\n");
  CHECK(content(folder.add("padded.gz", a + std::string(100, '\0')), 100) == "first\n");
  const auto frames = stored_frame("first\n") + std::string(kCompressed);
  CHECK(content(folder.add("two.zst", frames), 100) == "first\n" + line_100());
}

TEST_CASE("a compressed file that is cut short or damaged is named") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 5000; ++i) text += std::to_string(i * 7919 % 100'003) + "\n";
  auto packed = read_file(gzip(folder, "a", text), "test");
  const auto message = [&](const std::string& name, const std::string& bytes) {
    const auto file = folder.add(name, bytes);
    const auto error = error_of([&] { content(file, 1000); });
    CHECK_THAT(error, Catch::StartsWith("[data] " + file + " must be a complete file of "));
    return error;
  };
  CHECK_THAT(message("cut.gz", packed.substr(0, packed.size() - 5)),
             Catch::EndsWith("gzip, but: it is cut short"));
  packed[packed.size() / 2] ^= 0x55;
  message("damaged.gz", packed);
  CHECK_THAT(message("cut.zst", std::string(kCompressed.substr(0, 40))),
             Catch::EndsWith("Zstandard, but: it is cut short"));
  auto frame = stored_frame(text);
  frame[9] = char(7);  // the type of the first block
  message("damaged.zst", frame);
}

TEST_CASE("files of other compressions, and Parquet, are refused by their content") {
  const Folder folder;
  const auto message = [&](std::string_view bytes) {
    return error_of([&] { text::open_bytes(folder.add("a.jsonl", bytes)); });
  };
  CHECK(message("BZh91AY") ==
        "[data] files of documents are plain, or compressed by gzip or zstd, but " +
            folder.at("a.jsonl") + " is compressed by bzip2: compress it by one of these");
  CHECK_THAT(message("\375\067zXZ\0"sv), Catch::Contains("compressed by xz"));
  CHECK_THAT(message("PK\x03\x04"), Catch::Contains("compressed by zip"));
  CHECK_THAT(message("PAR1...."), Catch::Contains("is Parquet: convert it, for example by Python's "
                                                  "pandas.read_parquet(FILE).to_json("));
  CHECK_THAT(error_of([&] { text::open_bytes(folder.at("none")); }),
             Catch::Contains("cannot read \"" + folder.at("none") + "\": No such file"));
}
