#include <fmt/format.h>

#include "tests/support/torch_test.h"
// Torch first.
#include <cstdlib>
#include <filesystem>
#include <set>

#include "checkpoint/safetensors.h"
#include "data/data.h"
#include "data/sampler.h"
#include "tests/data/support.h"

using namespace perigee;
using namespace perigee::data;
using test::error_of;
using test::Folder;

namespace {

template <class T>
std::string raw(const std::vector<T>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T)};
}

}  // namespace

TEST_CASE("a job's sampler orders its samples") {
  Folder folder;
  folder.add("a.txt", "abcdefghijklm");  // windows 0, 1, 2 of 4 + 1 tokens
  const auto order = [&](const std::string& more) {
    const auto job = job_of(folder, "text = [\"*.txt\"]\nsequence = 4\nvalidation = 0\n" + more +
                                        "\n[batch]\nglobal = 3");
    const auto data = data::open_data(job);
    CHECK(is_independent_of_ranges(*data.training, 3));
    std::vector<int64_t> windows;
    for (int64_t step = 1; step <= 40; ++step) {
      const auto tokens = data.training->at(step, {0, 3}).at("tokens");
      const auto places = data.training->indices(step, {0, 3});
      for (int64_t i = 0; i < 3; ++i) {
        windows.push_back((list(tokens[i])[0] - 'a') / 4);
        CHECK(places[static_cast<size_t>(i)] == windows.back());
      }
    }
    return windows;
  };
  const auto shuffled = order("");
  CHECK(order("sampler = \"shuffle\"") == shuffled);
  const auto sequential = order("sampler = \"sequential\"");
  for (size_t i = 0; i < sequential.size(); ++i)
    CHECK(sequential[i] == static_cast<int64_t>(i % 3));
  CHECK(shuffled != sequential);
  const auto drawn = order("sampler = \"random\"");
  int repeated = 0;
  for (size_t i = 0; i < drawn.size(); i += 3) {
    repeated += std::set<int64_t>(drawn.begin() + i, drawn.begin() + i + 3).size() < 3;
  }
  CHECK(repeated > 20);  // expected: 7 in 9 of 40 epochs
  CHECK(std::set<int64_t>(drawn.begin(), drawn.end()).size() == 3);
  const auto refusal = [&](const std::string& data) {
    return error_of([&] { job_of(folder, data); });
  };
  CHECK_THAT(refusal("text = [\"*.txt\"]\nsampler = \"sequental\""),
             Catch::Contains("data.sampler is one of shuffle, sequential, random, or a library "
                             "NAME.so, but got \"sequental\", did you mean \"sequential\"?"));
  CHECK_THAT(refusal("text = [\"*.txt\"]\nsampler = \"none.so\""), Catch::Contains("there is no"));
  CHECK_THAT(refusal("synthetic = true\nsampler = \"random\""),
             Catch::Contains("data.synthetic has none"));
  const char* const build = std::getenv("PERIGEE_BUILD");
  const auto other = std::filesystem::absolute(build ? build : "build").string() +
                     "/libplugin_of_other_";
  CHECK_THAT(error_of([&] { order("sampler = \"" + other + "perigee.so\""); }),
             Catch::Contains("was built with Perigee 0.0.9") && Catch::EndsWith("build it again"));
  CHECK_NOTHROW(order("sampler = \"" + other + "none.so\""));  // its interface is C
  folder.add("empty.so", "no library");
  CHECK_THAT(error_of([&] { order("sampler = \"empty.so\""); }),
             Catch::Contains("data.sampler must be a library"));
}

TEST_CASE("a library's order holds for any range of samples and every epoch") {
  Folder folder;
  folder.add("a.txt", "abcdefghijklm");  // windows 0, 1, 2 of 4 + 1 tokens
  const char* build = std::getenv("PERIGEE_BUILD");
  const auto library = std::filesystem::absolute(build ? build : "build").string() + "/lib";
  const auto open = [&](const std::string& name, int seed) {
    const auto data = fmt::format(
        "text = [\"*.txt\"]\nsequence = 4\nvalidation = 0\nsampler = \"{}{}.so\"\n[batch]\nglobal "
        "= 3",
        library, name);
    auto job = job_of(folder, data);
    job.seed = seed;
    return data::open_data(job);
  };
  const auto data = open("plugin_sampler", 7);
  CHECK(is_independent_of_ranges(*data.training, 3));
  const std::vector<std::vector<int64_t>> epochs = {{2, 1, 0}, {1, 0, 2}, {0, 2, 1}, {2, 1, 0}};
  for (int64_t step = 1; step <= 4; ++step) {
    const auto tokens = data.training->at(step, {0, 3}).at("tokens");
    for (int64_t i = 0; i < 3; ++i) {
      CHECK((list(tokens[i])[0] - 'a') / 4 == epochs[static_cast<size_t>(step - 1)][i]);
    }
  }
  CHECK_THAT(
      error_of([&] {
        open("plugin_sampler", 1000).training->at(2, {0, 1});
      }),
      Catch::Contains("libplugin_sampler.so must give sample 3 an index below 3, but got 3"));
  CHECK_THAT(error_of([&] { open("perigee_core", 7); }),
             Catch::Contains("exports int64_t perigee_sampler(int64_t sample, int64_t count, "
                             "uint64_t seed), but"));
}

TEST_CASE("tokens are the bytes of all files, labels the next bytes") {
  Folder folder;
  folder.add("a.txt", "abcde");
  folder.add("b.txt", "");
  folder.add("c.txt", "fghijkl\xff");
  // 13 bytes: three windows of 4 + 1 tokens.
  const auto job = job_of(folder,
                          "text = [\"*.txt\"]\nsequence = 4\nvalidation = 0\n[batch]\nglobal = 3");
  const auto data = data::open_data(job);
  CHECK(data.vocab == 256);
  CHECK(data.validation.batches == 0);
  CHECK(data.validation.data == nullptr);
  const auto batch = data.training->at(1, {0, 3});
  CHECK(batch.size() == 2);
  std::set<std::vector<int64_t>> windows;
  for (int64_t i = 0; i < 3; ++i) {
    auto window = list(batch.at("tokens")[i]);
    const auto labels = list(batch.at("labels")[i]);
    CHECK(std::equal(window.begin() + 1, window.end(), labels.begin()));
    window.push_back(labels.back());
    windows.insert(window);
  }
  CHECK(windows == std::set<std::vector<int64_t>>{{'a', 'b', 'c', 'd', 'e'},
                                                  {'e', 'f', 'g', 'h', 'i'},
                                                  {'i', 'j', 'k', 'l', 255}});
  CHECK(data.training->at(0, {0, 2}).at("tokens").sizes() == at::IntArrayRef{2, 4});
  CHECK(data.training->at(1, {1, 0}).at("tokens").sizes() == at::IntArrayRef{0, 4});
}

TEST_CASE("token files of 2 and 4 bytes give the same samples") {
  Folder folder;
  std::vector<uint16_t> small;
  for (int i = 0; i < 1001; ++i) small.push_back(static_cast<uint16_t>(i * 31 % 60000));
  folder.add("two/a.bin", raw(std::vector(small.begin(), small.begin() + 333)));
  folder.add("two/b.bin", raw(std::vector(small.begin() + 333, small.end())));
  folder.add("four/a.bin", raw(std::vector<uint32_t>(small.begin(), small.end())));
  const std::string model = "vocab = 60000\n[batch]\nglobal = 4";
  const auto two = data::open_data(
      job_of(folder, "tokens = [\"two/*\"]\nsequence = 10", "gpt", model));
  const auto four = data::open_data(job_of(
      folder, "tokens = [\"four/*\"]\ntoken_type = \"uint32\"\nsequence = 10", "gpt", model));
  CHECK(two.vocab == 0);
  for (int64_t step = 1; step <= 60; ++step) {
    const auto a = two.training->at(step, {0, 4}), b = four.training->at(step, {0, 4});
    CHECK(a.at("tokens").equal(b.at("tokens")));
    CHECK(a.at("labels").equal(b.at("labels")));
  }
  CHECK(is_independent_of_ranges(*two.training, 4));
}

TEST_CASE("an epoch has each training window once, in an order of its own") {
  Folder folder;
  std::vector<uint16_t> ids(401);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(i);
  folder.add("a.bin", raw(ids));
  // 100 windows of 4; 20 are held out for validation.
  const auto job = job_of(folder, "tokens = [\"a.bin\"]\nsequence = 4\nvalidation = 0.2", "gpt",
                          "vocab = 401\n[batch]\nglobal = 8");
  const auto data = data::open_data(job);
  const auto starts = [](DataSource& source, int64_t first, int64_t steps) {
    std::vector<int64_t> found;
    for (int64_t step = first; step < first + steps; ++step) {
      for (const auto start : list(source.at(step, {0, 8}).at("tokens").select(1, 0))) {
        found.push_back(start);
      }
    }
    return found;
  };
  const auto one = starts(*data.training, 1, 10), two = starts(*data.training, 11, 10);
  CHECK(one != two);
  std::set<int64_t> expected;
  for (int64_t i = 0; i < 80; ++i) expected.insert(4 * i);
  CHECK(std::set<int64_t>(one.begin(), one.end()) == expected);
  CHECK(std::set<int64_t>(two.begin(), two.end()) == expected);
  CHECK(data.validation.batches == 2);
  const auto held = starts(*data.validation.data, 1, 2);
  for (int64_t i = 0; i < 16; ++i) CHECK(held[i] == 4 * (80 + i));
  auto other = job;
  other.seed = 8;
  CHECK(starts(*data::open_data(other).training, 1, 10) != one);
}

TEST_CASE("files are assigned to ranks as in EPL") {
  using Files = std::vector<std::vector<std::string>>;
  const std::vector<std::string> five = {"a", "b", "c", "d", "e"};
  CHECK(data::deal_files({"a", "b", "c", "d"}, "share", 2) == Files{{"a", "c"}, {"b", "d"}});
  CHECK(data::deal_files(five, "share", 2).empty());
  CHECK(data::deal_files(five, "deal", 2) == Files{{"a", "c", "e"}, {"b", "d"}});
  CHECK(data::deal_files(five, "drop", 2) == Files{{"a", "c"}, {"b", "d"}});
  CHECK(data::deal_files(five, "deal", 6).empty());
  CHECK(data::deal_files(five, "drop", 5) == Files{{"a"}, {"b"}, {"c"}, {"d"}, {"e"}});
}

TEST_CASE("with sliced files, each rank reads all samples of its own files") {
  Folder folder;
  for (int file = 0; file < 4; ++file) {
    std::vector<uint16_t> ids(41);  // 20 windows of 2, two of them held out
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(100 * file + i);
    folder.add(fmt::format("{}.bin", file), raw(ids));
  }
  const std::string keys = "tokens = [\"*.bin\"]\nsequence = 2\nvalidation = 0.1\n";
  const auto job = job_of(folder, keys + "slice_files = true", "gpt",
                          "vocab = 400\n[batch]\nglobal = 8");
  // Two microbatches of four samples on two ranks: each rank has two samples of each.
  const auto data = data::open_data(job, {.microbatches = 2, .ranks = 2});
  CHECK(is_independent_of_ranges(*data.training, 8));
  std::set<int64_t> seen[2];
  for (int64_t step = 1; step <= 9; ++step) {
    const auto tokens = data.training->at(step, {0, 8}).at("tokens").select(1, 0);
    const auto first = list(tokens);
    for (int64_t i = 0; i < 8; ++i) {
      const auto rank = i / 2 % 2;
      INFO(step << " " << i << ": " << first[i]);
      CHECK(first[i] / 100 % 2 == rank);  // files 0 and 2, or 1 and 3
      seen[rank].insert(first[i]);
    }
  }
  CHECK(seen[0].size() == 36);  // 9 steps of 4 samples: each once
  CHECK(seen[1].size() == 36);
  CHECK(data.validation.batches == 1);
  const auto held = list(data.validation.data->at(1, {0, 8}).at("tokens").select(1, 0));
  for (int64_t i = 0; i < 8; ++i) {
    CHECK(held[i] / 100 % 2 == i / 2 % 2);
    CHECK(!seen[i / 2 % 2].contains(held[i]));
  }
  // Other ranks of a run that began on two read the same samples.
  for (const int64_t ranks : {1, 4}) {
    const auto other = data::open_data(job, {.microbatches = 1, .ranks = ranks, .slices = 2});
    CHECK(is_independent_of_ranges(*other.training, 8));
    for (int64_t step = 1; step <= 9; ++step) {
      auto before = list(data.training->at(step, {0, 8}).at("tokens").select(1, 0));
      auto now = list(other.training->at(step, {0, 8}).at("tokens").select(1, 0));
      CHECK(std::ranges::is_permutation(before, now));
    }
    auto now = list(other.validation.data->at(1, {0, 8}).at("tokens").select(1, 0));
    CHECK(std::ranges::is_permutation(held, now));
  }
  // With one rank, or more ranks than files, files are not sliced.
  const auto plain = data::open_data(
      job_of(folder, keys, "gpt", "vocab = 400\n[batch]\nglobal = 8"));
  const auto batch = plain.training->at(3, {0, 8}).at("tokens");
  CHECK(data::open_data(job).training->at(3, {0, 8}).at("tokens").equal(batch));
  const data::Division eight{.microbatches = 1, .ranks = 8, .warn = false};
  CHECK(data::open_data(job, eight).training->at(3, {0, 8}).at("tokens").equal(batch));
  CHECK(!data.training->at(3, {0, 8}).at("tokens").equal(batch));
  CHECK_THAT(error_of([&] { data::open_data(job, {.microbatches = 3, .ranks = 2}); }),
             Catch::Contains("must be a multiple of 6 (3 microbatches on 2 ranks), but is 8"));
}

TEST_CASE("token files that are damaged, or of another size or vocabulary, are refused") {
  Folder folder;
  const auto path = folder.add("a.bin", raw<uint16_t>({1, 2, 3, 400, 5}));
  const auto message = [&](const std::string& more, const std::string& model = "") {
    return error_of([&] {
      data::open_data(job_of(folder, "tokens = [\"a.bin\"]\n" + more, "gpt", model))
          .training->at(1, {0, 1});
    });
  };
  CHECK(message("sequence = 4") ==
        fmt::format("[data] token ids must be below model.vocab = 256, but token 3 of {} is 400",
                    path));
  CHECK(message("sequence = 4", "vocab = 401") == "nothing was thrown");
  const auto limited = [&](int64_t rows) {
    return error_of([&] {
      const auto job = job_of(folder, "tokens = [\"a.bin\"]\nsequence = 4", "gpt", "vocab = 401");
      data::open_data(job, {}, {rows, "the rows of parameter w"}).training->at(1, {0, 1});
    });
  };
  CHECK(limited(401) == "nothing was thrown");
  CHECK(limited(500) == "nothing was thrown");
  CHECK(
      limited(400) ==
      fmt::format("[data] token ids must be below the rows of parameter w = 400, but token 3 of {} "
                  "is 400",
                  path));
  CHECK(message("sequence = 5", "vocab = 401") ==
        "[data] data must hold at least one sample of data.sequence + 1 = 6 tokens for training, "
        "but it holds 5 tokens");
  folder.add("a.bin", raw<uint16_t>({1, 2, 3}) + "x");
  CHECK(message("sequence = 1") ==
        fmt::format("[data] a file of 2-byte tokens must be a multiple of 2 bytes long, but {} has "
                    "7: it is cut short, or data.token_type is wrong",
                    path));
  folder.add("a.bin", "");
  CHECK_THAT(message("sequence = 1"), Catch::EndsWith("but it holds 0 tokens"));
}

TEST_CASE("synthetic samples depend on the seed and the split, not on the range") {
  Folder folder;
  struct Case {
    std::string model, more;
    std::vector<std::pair<std::string, std::vector<int64_t>>> fields;
  };
  const std::vector<Case> cases = {
      {"gpt", "", {{"tokens", {6, 8}}, {"labels", {6, 8}}}},
      {"llama", "vocab = 100", {{"tokens", {6, 8}}, {"labels", {6, 8}}}},
      {"moe", "vocab = 70000", {{"tokens", {6, 8}}, {"labels", {6, 8}}}},
      {"mlp", "inputs = 5\noutputs = 3", {{"x", {6, 5}}, {"y", {6}}}},
      {"mlp", "inputs = 5\noutputs = 3\nloss = \"mse\"", {{"x", {6, 5}}, {"y", {6, 3}}}},
      {"resnet", "image = 8", {{"image", {6, 3, 8, 8}}, {"label", {6}}}}};
  for (const auto& c : cases) {
    INFO(c.model << " " << c.more);
    auto job = job_of(folder, "synthetic = true\nsequence = 8", c.model,
                      c.more + "\ndtype = \"float64\"\n[batch]\nglobal = 6");
    const auto data = data::open_data(job);
    const auto batch = data.training->at(2, {0, 6});
    CHECK(batch.size() == c.fields.size());
    for (const auto& [name, shape] : c.fields) {
      const auto& tensor = batch.at(name);
      CHECK(tensor.sizes() == at::IntArrayRef(shape));
      CHECK(tensor.dtype() == (tensor.is_floating_point() ? at::kDouble : at::kLong));
      CHECK(!tensor.equal(data.training->at(1, {0, 6}).at(name)));
      CHECK(!tensor.equal(data.validation.data->at(2, {0, 6}).at(name)));
      CHECK(data.training->at(0, {0, 6}).at(name).sizes() == at::IntArrayRef(shape));
    }
    CHECK(is_independent_of_ranges(*data.training, 6));
    job.seed = 8;
    const auto& name = c.fields[0].first;
    CHECK(!data::open_data(job).training->at(2, {0, 6}).at(name).equal(batch.at(name)));
  }
  Folder other;
  other.add("net.so", "");
  CHECK(error_of([&] {
          data::open_data(job_of(other, "synthetic = true", "plugin", "file = \"net.so\""));
        }) ==
        "[data] synthetic data is for the built-in models and scripts that describe a batch, but "
        "model.kind is \"plugin\": use "
        "data.tensors");
}

TEST_CASE("synthetic samples follow a rule that a model can learn") {
  Folder folder;
  const auto many = [&](const std::string& model, const std::string& more) {
    return data::open_data(job_of(folder, "synthetic = true\nsequence = 64", model,
                                  more + "\ndtype = \"float64\"\n[batch]\nglobal = 512"))
        .training->at(1, {0, 512});
  };
  {
    const auto batch = many("gpt", "");
    const auto rule = (5 * batch.at("tokens") + 3).remainder(256);
    const double share = rule.eq(batch.at("labels")).to(at::kDouble).mean().item<double>();
    CHECK(share > 0.85);
    CHECK(share < 0.9);
    CHECK(batch.at("tokens").narrow(1, 1, 63).equal(batch.at("labels").narrow(1, 0, 63)));
  }
  {
    const auto batch = many("mlp", "inputs = 6\noutputs = 2\nloss = \"mse\"");
    const auto fit = std::get<0>(at::linalg_lstsq(batch.at("x"), batch.at("y")));
    const double left = (batch.at("y") - batch.at("x").mm(fit)).pow(2).mean().item<double>();
    CHECK(left < 0.02);
    CHECK(batch.at("y").pow(2).mean().item<double>() > 0.1);
  }
  {
    const auto batch = many("resnet", "image = 8\nclasses = 4");
    // The nearest class mean determines the class.
    const auto images = batch.at("image").flatten(1);
    std::vector<at::Tensor> distances;
    for (int64_t c = 0; c < 4; ++c) {
      const auto own = images.index_select(0, batch.at("label").eq(c).nonzero().flatten());
      distances.push_back((images - own.mean(0)).pow(2).sum(1));
    }
    const auto nearest = at::stack(distances, 1).argmin(1);
    CHECK(nearest.eq(batch.at("label")).to(at::kDouble).mean().item<double>() > 0.95);
  }
}
