// Several sources by weight, and the bounded shuffle.
#include "data/documents/mixture.h"

#include <set>

#include "data/sampler.h"
#include "tests/data/documents/support.h"

using namespace perigee;
using test::document_job;
using test::error_of;
using test::Folder;
using test::list;

TEST_CASE("sources have their shares to 0.1 % after 10,000 samples") {
  const std::vector<std::vector<double>> all = {
      {1, 1}, {0.9, 0.1}, {5, 3, 2}, {1, 1e-4}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {0.3, 0.3, 0.4}};
  for (const auto& weights : all) {
    const data::Mixture mixture(weights, 7);
    double sum = 0;
    for (const auto weight : weights) sum += weight;
    std::vector<int64_t> counts(weights.size(), 0);
    std::vector<std::set<int64_t>> seen(weights.size());
    for (int64_t n = 0; n < 30'000; ++n) {
      const auto place = mixture.at(n);
      ++counts[place.source];
      CHECK(seen[place.source].insert(place.sample).second);  // each sample once
      if (n + 1 < 10'000) continue;
      for (size_t i = 0; i < weights.size(); ++i) {
        const auto share = double(counts[i]) / double(n + 1);
        if (std::abs(share - weights[i] / sum) > 1e-3) FAIL(n << " " << i << " " << share);
      }
    }
    CHECK(mixture.counts(30'000) == counts);
    for (size_t i = 0; i < weights.size(); ++i) {
      // No sample is left out: those that were drawn are the first ones, but for a block.
      CHECK(*seen[i].rbegin() < counts[i] + 128);
    }
  }
  int64_t differ = 0;
  const data::Mixture a({1, 1}, 7), b({1, 1}, 8);
  for (int64_t n = 0; n < 1000; ++n) differ += a.at(n).source != b.at(n).source;
  CHECK(differ > 300);
}

TEST_CASE("a bounded shuffle permutes consecutive samples only, and each once an epoch") {
  std::vector<int64_t> first;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> order;
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 250; ++i) {
      order.push_back(data::shuffled(epoch * 250 + i, 250, 7, 40));
      CHECK(order.back() / 40 == i / 40);
      seen.insert(order.back());
    }
    CHECK(seen.size() == 250);
    if (epoch == 0) first = order;
    if (epoch == 1) CHECK(order != first);
  }
  CHECK(!std::is_sorted(first.begin(), first.begin() + 40));
  for (int64_t i = 0; i < 50; ++i) {
    CHECK(data::shuffled(i, 50, 7, 50) == data::shuffled(i, 50, 7));
    CHECK(data::shuffled(i, 50, 7, 1) == i);
  }
}

TEST_CASE("a job mixes its sources, and any range of samples is that of the whole step") {
  const Folder folder;
  std::string text, low, high;
  for (int i = 0; i < 200; ++i) low += "{\"text\": \"abcdefg\"}\n";
  for (int i = 0; i < 200; ++i) high += "{\"body\": \"ABCDEFG\"}\n";
  for (int i = 0; i < 200; ++i) text += "01234567";
  folder.add("low.jsonl", low);
  folder.add("high.jsonl", high);
  folder.add("digits.txt", text);
  const std::string sources =
      "[[data.sources]]\nname = \"low\"\njsonl = \"low.jsonl\"\nweight = 2\n"
      "[[data.sources]]\njsonl = \"high.jsonl\"\ntemplate = \"{body}\"\n"
      "[[data.sources]]\ntext = [\"digits.txt\"]\nweight = 1\n";
  const auto job = document_job(folder, "sequence = 8\nvalidation = 0.25",
                                sources + "[batch]\nglobal = 40");
  CHECK(job.data.sources[1].name == "source 2");
  CHECK(job.data.sources[1].document == "{body}");
  CHECK(job::Job::parse(to_toml(job, folder.path()), folder.at("again.toml")).data == job.data);
  const auto data = data::open_data(job);
  std::map<char, int> counts;  // by the kind of character
  for (int64_t step = 1; step <= 10; ++step) {
    const auto whole = data.training->at(step, {0, 40}).at("tokens");
    for (int64_t i = 0; i < 40; ++i) {
      const auto row = list(whole[i]);
      const auto kind = [](int64_t id) {
        return id == 0 ? '.' : id < '@' ? '0' : id < 'a' ? 'A' : 'a';
      };
      std::set<char> kinds;
      for (const auto id : row) kinds.insert(kind(id));
      kinds.erase('.');
      CHECK(kinds.size() == 1);
      ++counts[*kinds.begin()];
    }
    CHECK(data.training->at(step, {13, 9}).at("tokens").equal(whole.narrow(0, 13, 9)));
  }
  CHECK(std::abs(counts['a'] - 200) <= 8);
  CHECK(std::abs(counts['A'] - 100) <= 8);
  CHECK(std::abs(counts['0'] - 100) <= 8);
  const auto named = data.training->counts(400);
  CHECK(named[0] == std::pair<std::string, int64_t>{"low", counts['a']});
  CHECK(named[1].first == "source 2");
  CHECK(data.validation.batches == 2);  // "low", half of the samples, has 49 held-out ones
  const auto places = data.training->indices(1, {0, 40});
  CHECK(std::set<int64_t>(places.begin(), places.end()).size() == 40);
  std::set<int64_t> held;  // none twice
  for (int64_t step = 1; step <= 2; ++step) {
    for (const auto place : data.validation.data->indices(step, {0, 40})) held.insert(place);
  }
  CHECK(held.size() == 80);
}

TEST_CASE("held-out sources are read in their order, none of their samples twice") {
  const std::vector<double> weights = {5, 3, 2};
  const data::Mixture ordered(weights, 7, /*in_order=*/true), drawn(weights, 7);
  std::vector<int64_t> next(3, 0);
  for (int64_t n = 0; n < 1000; ++n) {
    const auto place = ordered.at(n);
    CHECK(place.source == drawn.at(n).source);
    CHECK(place.sample == next[place.source]++);
  }
  CHECK(ordered.counts(1000) == next);
}

TEST_CASE("sources that do not say where samples come from are refused") {
  const Folder folder;
  folder.add("a.jsonl", "{\"text\": \"a\"}\n");
  folder.add("a.parquet", "PAR1");
  folder.add("a.txt", "text");
  const auto message = [&](const std::string& data, const std::string& more = "") {
    return error_of([&] { document_job(folder, data, more); });
  };
  CHECK_THAT(message("", "[[data.sources]]\nname = \"a\""),
             Catch::Contains("a has one of text, tokens, jsonl and conversations, but got none"));
  CHECK_THAT(message("jsonl = \"a.jsonl\"", "[[data.sources]]\njsonl = \"a.jsonl\""),
             Catch::Contains("but got jsonl and [[data.sources]]"));
  CHECK_THAT(message("", "[[data.sources]]\njsonl = \"a.jsonl\"\nweight = 0"),
             Catch::Contains("data.sources.weight is more than 0, but got 0"));
  CHECK_THAT(message("", "[[data.sources]]\njsonl = \"no.jsonl\""),
             Catch::Contains("data.sources.jsonl names files, but none matches"));
  CHECK_THAT(message("", "[data.sources]\njsonl = \"a.jsonl\""),
             Catch::Contains("is a list of tables ([[data.sources]])"));
  CHECK_THAT(message("",
                     "[[data.sources]]\nname = \"a\"\njsonl = \"a.jsonl\"\n"
                     "[[data.sources]]\nname = \"a\"\njsonl = \"a.jsonl\""),
             Catch::Contains("two are named \"a\""));
  CHECK_THAT(message("jsonl = \"a.parquet\""),
             Catch::Contains("job.toml:5:9: data.jsonl does not read Parquet, but got ") &&
                 Catch::Contains("pandas.read_parquet"));
  CHECK_THAT(message("jsonl = \"a.jsonl\"\ntemplate = \"{title\""),
             Catch::Contains("job.toml:6:12: a template of fields is"));
  CHECK_THAT(message("synthetic = true\npack = \"documents\""),
             Catch::Contains("needs documents of text, jsonl or conversations, but got synthetic"));
  CHECK_THAT(message("tokens = \"a.txt\"\npack = \"none\""),
             Catch::Contains("but got tokens, whose documents are not known"));
  CHECK_THAT(message("jsonl = \"a.jsonl\"\nshuffle_buffer = 3\nsampler = \"random\""),
             Catch::Contains("data.shuffle_buffer belongs to data.sampler = \"shuffle\""));
  CHECK_THAT(message("jsonl = \"a.jsonl\"\nchat_template = \"a.txt\""),
             Catch::Contains("data.chat_template is of data.conversations"));
  CHECK_THAT(message("text = \"a.txt\"\nobjective = \"classification\"\npack = \"none\""),
             Catch::Contains("reads the field \"label\" of jsonl, but got text"));
  CHECK_THAT(message("jsonl = \"a.jsonl\"\nobjective = \"classification\""),
             Catch::Contains("data.pack = \"none\""));
}
