// Labels of masked language models and of classes; broken lines; files that change.
#include <filesystem>
#include <fstream>
#include <set>

#include "data/documents/masking.h"
#include "data/files_record.h"
#include "tests/data/documents/support.h"
#include "tests/support/letters_tokenizer.h"
#include "text/tokenizer.h"

using namespace perigee;
using test::document_job;
using test::error_of;
using test::Folder;
using test::ids;
using test::list;

TEST_CASE("15 % of the tokens are hidden: 80 % by the mask, 10 % by others, 10 % not") {
  const int64_t sequence = 1000, vocab = 500;
  const data::Masking masking{.mask = 3, .vocab = vocab, .special = {3, 7}, .seed = 7};
  int64_t hidden = 0, masks = 0, same = 0, all = 0;
  for (int64_t sample = 0; sample < 200; ++sample) {
    std::vector<int64_t> tokens(sequence), labels(sequence, 0);
    for (int64_t i = 0; i < sequence; ++i) tokens[i] = 3 + i * sample % (vocab - 3);
    const auto before = tokens;
    const data::Row row{.tokens = tokens.data(), .labels = labels.data()};
    hide_tokens(masking, sample, sequence, 900, row);
    for (int64_t i = 0; i < sequence; ++i) {
      const bool special = before[i] == 3 || before[i] == 7;
      all += !special && i < 900;
      if (labels[i] == data::kIgnored) {
        CHECK(tokens[i] == before[i]);
        continue;
      }
      CHECK((!special && i < 900 && labels[i] == before[i]));
      CHECK((tokens[i] >= 0 && tokens[i] < vocab));
      ++hidden;
      masks += tokens[i] == 3;
      same += tokens[i] == before[i];
    }
    auto again = before, other = before;
    hide_tokens(masking, sample, sequence, 900, {.tokens = again.data(), .labels = labels.data()});
    CHECK(again == tokens);
    hide_tokens(masking, sample + 1, sequence, 900,
                {.tokens = other.data(), .labels = labels.data()});
    CHECK((other != tokens || sample == 0));
  }
  CHECK(std::abs(double(hidden) / double(all) - 0.15) < 0.005);
  CHECK(std::abs(double(masks) / double(hidden) - 0.8) < 0.02);
  CHECK(std::abs(double(same) / double(hidden) - 0.1) < 0.02);
}

TEST_CASE("at least one token of a sample is hidden, if any may be") {
  const data::Masking masking{.mask = 3, .vocab = 500, .special = {3, 7}, .seed = 7};
  std::set<int64_t> places;
  for (int64_t sample = 0; sample < 100; ++sample) {
    const std::vector<int64_t> before = {7, 20, 21, 22, 7, 0};
    auto tokens = before;
    std::vector<int64_t> labels(before.size());
    hide_tokens(masking, sample, 6, 5, {.tokens = tokens.data(), .labels = labels.data()});
    int64_t hidden = 0;
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] == data::kIgnored) continue;
      ++hidden;
      places.insert(static_cast<int64_t>(i));
      CHECK(labels[i] == before[i]);
    }
    CHECK(hidden >= 1);
  }
  CHECK(places == std::set<int64_t>{1, 2, 3});
  std::vector<int64_t> special = {7, 7}, labels(2);
  hide_tokens(masking, 0, 2, 2, {.tokens = special.data(), .labels = labels.data()});
  CHECK(labels == std::vector<int64_t>{data::kIgnored, data::kIgnored});
}

TEST_CASE("a masked job hides tokens of its samples and learns these") {
  const Folder folder;
  folder.add("tokenizer.json",
             test::letters_tokenizer("abcdefghijklmnopqrstuvwxyz", {"[SEP]", "[MASK]"}));
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"thequickbrownfox\"}\n";
  folder.add("a.jsonl", lines);
  const auto job = document_job(folder,
                                "jsonl = \"a.jsonl\"\ntokenizer = \"tokenizer.json\"\n"
                                "objective = \"masked\"\npack = \"none\"\nsequence = 20\n"
                                "validation = 0.2",
                                "[batch]\nglobal = 20");
  auto sized = job;
  sized.model.values["vocab"] = int64_t{28};
  const auto data = data::open_data(sized);
  CHECK(data.fields == std::vector<std::string>{"tokens", "labels", "attention_mask"});
  const auto clean = text::make_tokenizer(folder.at("tokenizer.json"))->encode("thequickbrownfox");
  for (auto* source : {data.training.get(), data.validation.data.get()}) {
    const auto batch = source->at(1, {0, 20});
    const auto tokens = list(batch.at("tokens")), labels = list(batch.at("labels"));
    const auto mask = list(batch.at("attention_mask"));
    int hidden = 0;
    for (int64_t i = 0; i < 400; ++i) {
      const auto at = i % 20;
      CHECK(mask[i] == (at < 17 ? 1 : 0));
      if (at >= 16) CHECK((labels[i] == -100 && tokens[i] == (at == 16 ? 26 : 0)));
      if (at < 16) CHECK((labels[i] == -100 ? tokens[i] : labels[i]) == clean[at]);
      hidden += labels[i] != -100;
    }
    CHECK((hidden > 25 && hidden < 75));  // 48 of 320 expected
  }
  CHECK(!data.training->at(1, {0, 20})
             .at("labels")
             .equal(data.training->at(5, {0, 20}).at("labels")));
}

TEST_CASE("the class of a document is its label") {
  const Folder folder;
  folder.add("a.jsonl", "{\"text\": \"ab\", \"label\": 2}\n{\"text\": \"cdefg\", \"label\": 0}\n");
  const auto data = data::open_data(document_job(
      folder,
      "jsonl = \"a.jsonl\"\nobjective = \"classification\"\npack = \"none\"\nsequence = 4\n"
      "validation = 0\nsampler = \"sequential\"",
      "[batch]\nglobal = 2"));
  const auto batch = data.training->at(1, {0, 2});
  CHECK(list(batch.at("tokens")) == ids("ab||cdef"));
  CHECK(batch.at("labels").sizes() == at::IntArrayRef{2});
  CHECK(list(batch.at("labels")) == std::vector<int64_t>{2, 0});
  CHECK(list(batch.at("attention_mask")) == std::vector<int64_t>{1, 1, 1, 0, 1, 1, 1, 1});
  const auto message = [&](const std::string& line) {
    folder.add("b.jsonl", line);
    return error_of([&] {
      data::open_data(document_job(
          folder,
          "jsonl = \"b.jsonl\"\nobjective = \"classification\"\npack = \"none\"\nsequence = 4"));
    });
  };
  const auto begin = "[data] " + folder.at("b.jsonl") + ":1: ";
  CHECK(message("{\"text\": \"a\"}") ==
        begin + "a line must have the field \"label\", but has none");
  CHECK_THAT(message("{\"text\": \"a\", \"label\": -1}"), Catch::EndsWith("from 0, but is -1"));
}

TEST_CASE("broken lines are errors, or are skipped, and leave nothing in the cache") {
  const Folder folder;
  const auto file = folder.add(
      "a.jsonl",
      "{\"text\": \"abc\"}\n{\"text\": 1, \"text\n{\"text\": \"de\"}\n{\"body\": \"\"}\n");
  const std::string keys =
      "jsonl = \"a.jsonl\"\nsequence = 6\nvalidation = 0\nsampler = \"sequential\"\n";
  const char* cache = std::getenv("XDG_CACHE_HOME");
  REQUIRE(cache);
  const auto cached = [&] {
    size_t files = 0;
    std::error_code ignored;
    for (const auto& each :
         std::filesystem::directory_iterator(std::string(cache) + "/perigee/tokens", ignored)) {
      files += each.path().filename() != "lock";
    }
    return files;
  };
  const auto before = cached();
  CHECK_THAT(error_of([&] { data::open_data(document_job(folder, keys)); }),
             Catch::StartsWith("[data] " + file + ":2: a line must be JSON"));
  CHECK(cached() == before);
  const auto job = document_job(folder, keys + "broken_lines = \"skip\"\n", "[batch]\nglobal = 1");
  CHECK(list(data::open_data(job).training->at(1, {0, 1}).at("tokens")) == ids("abc|de"));
  CHECK(cached() == before + 1);
  folder.add("a.jsonl", "{}\n");
  CHECK_THAT(error_of([&] { data::open_data(job); }), Catch::EndsWith("but it holds 0 tokens"));
}

TEST_CASE("a file that changed, grew, is gone or was added since a run began is named") {
  const Folder folder;
  const auto a = folder.add("a.jsonl", std::string(10'000'000, 'a'));
  const auto b = folder.add("b.jsonl", "b");
  const auto record = data::record_files({a, b});
  CHECK_NOTHROW(data::check_files(record, {a, b}));
  CHECK_NOTHROW(data::check_files("", {a}));
  CHECK_NOTHROW(data::check_files(R"({"files": []})", {}, {a}));  // of an earlier version
  const auto message = [&](const std::vector<std::string>& files) {
    return error_of([&] { data::check_files(record, files); });
  };
  const std::string remedy = ": restore it, or start a new run with another train.output";
  CHECK(message({a}) == "[data] the files of a resumed run stay as they were when it began, but " +
                            b + " is gone" + remedy);
  CHECK_THAT(message({a, b, folder.add("c.jsonl", "")}), Catch::Contains("c.jsonl was added"));
  folder.add("b.jsonl", "bb");
  CHECK_THAT(message({a, b}), Catch::Contains(b + " had 1 bytes and has 2" + remedy));
  folder.add("b.jsonl", "c");
  CHECK_THAT(message({a, b}), Catch::Contains(b + " has other content" + remedy));
  // A tokenizer or template is named as a file of the data is.
  const auto text = folder.add("t.jinja", "a"), read = data::record_files({a}, {text});
  CHECK_NOTHROW(data::check_files(read, {a}, {text}));
  folder.add("t.jinja", "b");
  CHECK_THAT(error_of([&] { data::check_files(read, {a}, {text}); }),
             Catch::Contains("t.jinja has other content" + remedy));
  folder.add("b.jsonl", "b");
  CHECK_NOTHROW(data::check_files(record, {a, b}));
  for (const auto place : {0, 9'999'999}) {
    std::string other(10'000'000, 'a');
    other[place] = 'b';
    folder.add("a.jsonl", other);
    CHECK_THAT(message({a, b}), Catch::Contains(a + " has other content"));
  }
}
