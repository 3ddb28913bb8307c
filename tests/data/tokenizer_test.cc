#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "tests/support/torch_test.h"
// Torch first.
#include "base/files/file.h"
#include "data/data.h"
#include "tests/support/temporary_folder.h"
#include "text/tokenizer.h"

using namespace perigee;
using namespace perigee::data;
using test::error_of;
using test::Folder;

namespace {

// Sets the cache folder during its lifetime.
class Cache {
 public:
  explicit Cache(const std::string& folder) {
    if (const char* before = std::getenv(kName)) before_ = before;
    setenv(kName, folder.c_str(), 1);
  }
  ~Cache() { before_ ? setenv(kName, before_->c_str(), 1) : unsetenv(kName); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

 private:
  static constexpr const char* kName = "XDG_CACHE_HOME";
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("all bytes round trip as tokens") {
  const auto bytes = text::make_tokenizer("bytes");
  CHECK(bytes->vocab() == 256);
  CHECK(bytes->encode("a\xff\n") == std::vector<int64_t>{97, 255, 10});
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  CHECK(bytes->decode(bytes->encode(all)) == all);
  CHECK(bytes->encode("").empty());
}

TEST_CASE("a file that is no SentencePiece model is refused") {
  Folder folder;
  const auto damaged = folder.add("bad.model", "this is no model");
  CHECK_THAT(error_of([&] { text::make_tokenizer(damaged); }),
             Catch::StartsWith("[data] tokenizer must be \"bytes\", a tokenizer.json or a "
                               "SentencePiece model, but " +
                               damaged));
  // The library would read outside of the table.
  CHECK_THAT(error_of([&] { text::make_tokenizer("tests/fuzz/corpus/tokenizer/charsmap.model"); }),
             Catch::Contains("charsmap.model is damaged: its table of replacements has a trie of a "
                             "wrong size"));
}

TEST_CASE("a SentencePiece model tokenizes text, and its ids are data") {
  const auto* build = std::getenv("PERIGEE_BUILD");
  const auto maker = fmt::format("{}/make_sentencepiece", build ? build : "build");
  if (!std::filesystem::exists(maker)) {
    WARN("not tested: this machine has no libsentencepiece_train to make a small model with");
    return;
  }
  Folder folder;
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += "the quick brown fox jumps over the lazy dog and the dog sleeps\n";
  }
  const auto input = folder.add("text.txt", text);
  REQUIRE(std::system(fmt::format("{} {} {}", maker, input, folder.at("small")).c_str()) == 0);
  const auto tokenizer = text::make_tokenizer(folder.at("small.model"));
  CHECK(tokenizer->vocab() == 60);
  const std::string words = "the dog jumps over the fox";
  const auto ids = tokenizer->encode(words);
  CHECK(ids.size() < words.size() / 2);
  for (const auto id : ids) CHECK((id >= 0 && id < 60));
  CHECK(tokenizer->decode(ids) == words);
  CHECK(tokenizer->decode(tokenizer->encode("\uff54\uff48\uff45")) ==
        "the");  // by the table of replacements
  // The same model with a branch outside of that table: its name, key, size, size of the trie, trie.
  auto model = read_file(folder.at("small.model"), "test");
  const auto table = model.find("nmt_nfkc");
  REQUIRE(table != std::string::npos);
  model.replace(table + 8 + 1 + 3 + 4, 4, std::string("\xff\xff\xff\x7f", 4));
  CHECK_THAT(error_of([&] { text::make_tokenizer(folder.add("branch.model", model)); }),
             Catch::Contains("its table of replacements has a branch outside of its trie"));

  const auto job = job::Job::parse(
      "[data]\ntext = [\"text.txt\"]\ntokenizer = \"small.model\"\nsequence = 16\n"
      "validation = 0\n[batch]\nglobal = 1\n[model]\nkind = \"gpt\"\n",
      folder.at("job.toml"));
  const Cache cache(folder.path());  // a cache folder of this test's own
  const auto data = data::open_data(job);
  CHECK(data.vocab == 60);
  const auto whole = tokenizer->encode(text);
  const auto tokens = data.training->at(1, {0, 1}).at("tokens");
  const std::vector<int64_t> window(tokens.data_ptr<int64_t>(), tokens.data_ptr<int64_t>() + 16);
  CHECK(std::search(whole.begin(), whole.end(), window.begin(), window.end()) != whole.end());
}
