// Documents as samples: in a stream, packed side by side, and each in a sample of its own.
#include <set>

#include "tests/data/documents/support.h"
#include "text/tokenizer.h"

using namespace perigee;
using test::document_job;
using test::error_of;
using test::Folder;
using test::ids;
using test::list;

namespace {

// One sample of a batch, as lists by field.
std::map<std::string, std::vector<int64_t>> sample(const Batch& batch, int64_t i) {
  std::map<std::string, std::vector<int64_t>> fields;
  for (const auto& [name, tensor] : batch) fields[name] = list(tensor[i]);
  return fields;
}

const std::string kOrder = "sampler = \"sequential\"\nvalidation = 0\n";

std::string lines(const std::vector<std::string>& texts) {
  std::string out;
  for (const auto& text : texts) out += "{\"text\": \"" + text + "\"}\n";
  return out;
}

}  // namespace

TEST_CASE("lines of a stream are one after the other, each with its end") {
  const Folder folder;
  folder.add("a.jsonl", lines({"ab", "", "cdef"}));
  folder.add("b.jsonl", lines({"g"}));
  const auto job = document_job(folder, "jsonl = [\"*.jsonl\"]\nsequence = 3\n" + kOrder,
                                "[batch]\nglobal = 3");
  const auto data = data::open_data(job);
  CHECK(data.vocab == 256);
  CHECK(data.fields == std::vector<std::string>{"tokens", "labels"});
  const auto batch = data.training->at(1, {0, 3});
  CHECK(batch.size() == 2);
  CHECK(list(batch.at("tokens")) == ids("ab||cdef|"));
  CHECK(list(batch.at("labels")) == ids("b||cdef|g"));
}

TEST_CASE("a template's fields are the document") {
  const Folder folder;
  folder.add("a.jsonl", "{\"title\": \"T\", \"body\": \"x\\ny\", \"n\": 3}\n");
  const auto job = document_job(
      folder, "jsonl = \"a.jsonl\"\ntemplate = \"{title}:{n}\\n{body}\"\nsequence = 7\n" + kOrder,
      "[batch]\nglobal = 1");
  CHECK(list(data::open_data(job).training->at(1, {0, 1}).at("tokens")) == ids("T:3\nx\ny"));
}

TEST_CASE("packed documents are numbered, and their positions begin at 0") {
  const Folder folder;
  // With their ends, of 4, 3, 2, 12, 6 and 1 tokens; a sample has 8.
  folder.add("a.jsonl", lines({"abc", "de", "f", "ghijklmnopq", "rstuv", ""}));
  const auto job = document_job(
      folder, "jsonl = \"a.jsonl\"\npack = \"documents\"\nsequence = 8\n" + kOrder,
      "[batch]\nglobal = 4");
  const auto data = data::open_data(job);
  CHECK(data.fields == std::vector<std::string>{"tokens", "labels", "documents", "positions"});
  const auto batch = data.training->at(1, {0, 4});
  const int64_t none = -100;
  // The first 8 tokens of the fourth document fill a sample; the other 4 go to the fullest of the
  // open samples with room for them. The last document has nothing to learn.
  const auto full = sample(batch, 0);
  CHECK(full.at("tokens") == ids("ghijklmn"));
  CHECK(full.at("labels") == ids("hijklmno"));
  CHECK(full.at("documents") == std::vector<int64_t>(8, 0));
  CHECK(full.at("positions") == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  const auto second = sample(batch, 1);
  CHECK(second.at("tokens") == ids("abc|de||"));
  CHECK(second.at("labels") == std::vector<int64_t>{'b', 'c', 0, none, 'e', 0, none, none});
  CHECK(second.at("documents") == std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 2});
  CHECK(second.at("positions") == std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 0});
  const auto third = sample(batch, 2);
  CHECK(third.at("tokens") == ids("f|opq|||"));
  CHECK(third.at("labels") == std::vector<int64_t>{0, none, 'p', 'q', 0, none, none, none});
  CHECK(third.at("documents") == std::vector<int64_t>{0, 0, 1, 1, 1, 1, 2, 2});
  CHECK(third.at("positions") == std::vector<int64_t>{0, 1, 0, 1, 2, 3, 0, 1});
  const auto fourth = sample(batch, 3);
  CHECK(fourth.at("tokens") == ids("rstuv|||"));
  CHECK(fourth.at("labels") == std::vector<int64_t>{'s', 't', 'u', 'v', 0, none, none, none});
  CHECK(fourth.at("documents") == std::vector<int64_t>{0, 0, 0, 0, 0, 0, 1, 1});
  CHECK(data.training->at(2, {0, 4}).at("tokens").equal(batch.at("tokens")));  // all have been read
}

TEST_CASE("no token and no label is lost by packing") {
  const Folder folder;
  std::vector<std::string> texts;
  std::multiset<std::pair<int64_t, int64_t>> expected;  // token, label
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (int k = 0; k < i * 37 % 61; ++k) text += char('a' + (i * 7 + k * k) % 26);
    texts.push_back(text);
    const auto all = ids(text + "|");
    for (size_t k = 0; k + 1 < all.size(); ++k) expected.insert({all[k], all[k + 1]});
  }
  folder.add("a.jsonl", lines(texts));
  int64_t samples[3] = {};
  for (const std::string pack : {"documents", "none"}) {
    const auto data_of = [&](int64_t global) {
      return data::open_data(document_job(
          folder, "jsonl = \"a.jsonl\"\npack = \"" + pack + "\"\nsequence = 24\n" + kOrder,
          fmt::format("[batch]\nglobal = {}", global)));
    };
    auto& count = samples[pack == "none"];
    const auto one = data_of(1);
    const auto first = one.training->at(1, {0, 1}).at("tokens");
    const auto places = one.training->indices(1, {0, 1000});
    count = *std::max_element(places.begin(), places.end()) + 1;
    const auto batch = data_of(count).training->at(1, {0, count});
    const auto tokens = list(batch.at("tokens")), labels = list(batch.at("labels"));
    std::multiset<std::pair<int64_t, int64_t>> found;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (labels[i] >= 0) found.insert({tokens[i], labels[i]});
    }
    CHECK(found == expected);
  }
  CHECK(samples[0] < samples[1]);
  const auto full = double(expected.size() + 500) / 24;
  CHECK(double(samples[0]) < full * 1.05);  // less than 5 % is padding
}

TEST_CASE("a document a sample: longer ones are cut, shorter ones padded") {
  const Folder folder;
  folder.add("a.txt", "abcde");
  folder.add("b.txt", "f");
  const auto job = document_job(folder,
                                "text = [\"*.txt\"]\npack = \"none\"\nsequence = 4\n" + kOrder,
                                "[batch]\nglobal = 3");
  const auto batch = data::open_data(job).training->at(1, {0, 3});
  CHECK(batch.size() == 2);
  CHECK(list(batch.at("tokens")) == ids("abcde|||f|||"));
  CHECK(list(batch.at("labels")) ==
        std::vector<int64_t>{'b', 'c', 'd', 'e', 0, -100, -100, -100, 0, -100, -100, -100});
}

TEST_CASE("of conversations only the answers are learned, in a stream and packed") {
  const Folder folder;
  folder.add("chat.jinja",
             "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
             "{% if add_generation_prompt %}a{% endif %}");
  const auto turn = [](const std::string& q, const std::string& a) {
    return "{\"messages\": [{\"role\": \"user\", \"content\": \"" + q +
           "\"}, {\"role\": \"assistant\", \"content\": \"" + a + "\"}]}\n";
  };
  folder.add("a.jsonl", turn("12", "34") + turn("5", "6"));
  const auto batch_of = [&](const std::string& pack, int64_t sequence) {
    const auto job = document_job(
        folder,
        fmt::format("conversations = \"a.jsonl\"\nchat_template = \"chat.jinja\"\npack = \"{}\"\n"
                    "sequence = {}\n{}",
                    pack, sequence, kOrder),
        "[batch]\nglobal = 1");
    return data::open_data(job).training->at(1, {0, 1});
  };
  const int64_t none = -100;
  // u12a34| u5a6|
  const auto stream = batch_of("stream", 11);
  CHECK(list(stream.at("tokens")) == ids("u12a34|u5a6"));
  CHECK(list(stream.at("labels")) ==
        std::vector<int64_t>{none, none, none, '3', '4', none, none, none, none, '6', none});
  const auto packed = batch_of("documents", 13);
  CHECK(list(packed.at("tokens")) == ids("u12a34|u5a6||"));
  CHECK(list(packed.at("labels")) == std::vector<int64_t>{none, none, none, '3', '4', none, none,
                                                          none, none, '6', none, none, none});
  CHECK(list(packed.at("documents")) ==
        std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2});
  // Parts and windows without an answer are left out.
  CHECK(list(batch_of("none", 3).at("labels")) == std::vector<int64_t>{'3', '4', none});
  CHECK(list(batch_of("stream", 2).at("labels")) == std::vector<int64_t>{none, '3'});
}

TEST_CASE("windows of a stream over several files are left out where nothing is learned") {
  const Folder folder;
  folder.add("chat.jinja",
             "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
             "{% if add_generation_prompt %}a{% endif %}");
  const auto turn = [](const std::string& q, const std::string& a) {
    return "{\"messages\": [{\"role\": \"user\", \"content\": \"" + q +
           "\"}, {\"role\": \"assistant\", \"content\": \"" + a + "\"}]}\n";
  };
  folder.add("a.jsonl", turn("1234567", "89"));
  folder.add("b.jsonl", turn("1", "xy"));
  const auto open = [&](const std::string& files) {
    return data::open_data(document_job(folder,
                                        "conversations = " + files +
                                            "\nchat_template = \"chat.jinja\"\npack = \"stream\"\n"
                                            "sequence = 5\n" +
                                            kOrder,
                                        "[batch]\nglobal = 2"));
  };
  // u1234 567a8 9|u1a xy|: nothing is learned in the first window.
  const auto batch = open("[\"a.jsonl\", \"b.jsonl\"]").training->at(1, {0, 2});
  CHECK(list(batch.at("tokens")) == ids("567a89|u1a"));
  const int64_t none = -100;
  CHECK(list(batch.at("labels")) ==
        std::vector<int64_t>{none, none, none, '8', '9', none, none, none, none, 'x'});
  folder.add("c.jsonl", turn("123456789", "0"));  // u1234 56789 a0|
  CHECK_THROWS_WITH(open("\"c.jsonl\""), Catch::Contains("answers alone are learned"));
}

TEST_CASE("the ids of lines are those of the tokenizer") {
  const Folder folder;
  nlohmann::ordered_json vocab;
  for (char c = 'a'; c <= 'z'; ++c) vocab[std::string(1, c)] = vocab.size();
  vocab["ab"] = vocab.size();
  const nlohmann::ordered_json file = {
      {"version", "1.0"},
      {"added_tokens", {{{"id", 27}, {"content", "</s>"}, {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"decoder", nullptr},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}}}};
  const auto path = folder.add("tokenizer.json", file.dump());
  folder.add("a.jsonl", lines({"abc", "cab", "xyz"}));
  const auto job = document_job(
      folder, "jsonl = \"a.jsonl\"\ntokenizer = \"tokenizer.json\"\nsequence = 9\n" + kOrder,
      "[batch]\nglobal = 1");
  auto small = job;
  small.model.values["vocab"] = int64_t{28};
  std::vector<int64_t> expected;
  const auto tokenizer = text::make_tokenizer(path);
  for (const std::string text : {"abc", "cab", "xyz"}) {
    for (const auto id : tokenizer->encode(text)) expected.push_back(id);
    expected.push_back(27);
  }
  expected.resize(9);
  CHECK(list(data::open_data(small).training->at(1, {0, 1}).at("tokens")) == expected);
  small.model.values["vocab"] = int64_t{27};
  CHECK(error_of([&] { data::open_data(small); }) ==
        "[data] ids of data.tokenizer must be below model.vocab = 27, but " + path + " has 28 ids");
}

TEST_CASE("a compressed text has the tokens of the plain one") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) text += char(i * i % 256);
  const auto plain = folder.add("a.txt", text);
  REQUIRE(std::system(("gzip -kf " + plain).c_str()) == 0);
  const auto batch_of = [&](const std::string& name, const std::string& more) {
    const auto job = document_job(
        folder, "text = \"" + name + "\"\nsequence = 500\n" + kOrder + more, "[batch]\nglobal = 5");
    return data::open_data(job).training->at(1, {0, 5});
  };
  for (const std::string more : {"", "end_of_text = \"\\n\"\n"}) {
    const auto a = batch_of("a.txt", more), b = batch_of("a.txt.gz", more);
    CHECK(list(a.at("tokens")) == ids(text.substr(0, 2500)));
    CHECK(a.at("tokens").equal(b.at("tokens")));
    CHECK(a.at("labels").equal(b.at("labels")));
  }
}
