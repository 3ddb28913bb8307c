// `perigee tokenize`, and jobs with a tokenizer.json.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::string kTokenizer = "tests/fuzz/corpus/tokenizer_json/byte_level.json";

}  // namespace

TEST_CASE("tokenize prints the ids of a file, and the text of ids") {
  const Folder folder;
  const std::string text = "A token's  <s> t\xc3\xa9xt,\n1234 \xe4\xb8\xad\n";
  const auto file = folder.write("a.txt", text);
  const auto tokenize = [&](const std::string& more, const How& how = {}) {
    const auto ran = run("tokenize " + more, how);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return ran;
  };
  const auto ids = json::parse(tokenize(file + " --json --tokenizer " + kTokenizer).out);
  CHECK(ids.size() == 1);
  CHECK(ids["ids"].size() < text.size());
  CHECK(std::find(ids["ids"].begin(), ids["ids"].end(), 259) != ids["ids"].end());
  std::string plain;
  for (const auto& id : ids["ids"]) plain += (plain.empty() ? "" : " ") + id.dump();
  CHECK(tokenize(file + " --tokenizer " + kTokenizer).out == plain + "\n");

  // <s> takes the white space before it.
  const std::string back = "A token's<s> t\xc3\xa9xt,\n1234 \xe4\xb8\xad\n";
  for (const auto& given : {folder.write("a.json", ids.dump()), folder.write("a.ids", plain)}) {
    CHECK(tokenize(given + " --decode --tokenizer " + kTokenizer).out == back);
  }
  const auto bytes = folder.write("b.txt", "a\xff\xc3\xa9");
  CHECK(tokenize(bytes + " --tokenizer bytes").out == "97 255 195 169\n");
  const auto to = folder / "b.json";
  CHECK(tokenize(bytes + " --tokenizer bytes --json -o " + to).out.empty());
  CHECK(read(to) == "{\"ids\": [97, 255, 195, 169]}\n");
  CHECK(tokenize(to + " --decode --tokenizer bytes").out == "a\xff\xc3\xa9");
  const auto empty = folder.write("none.txt", "");
  CHECK(tokenize(empty + " --json --tokenizer " + kTokenizer).out == "{\"ids\": []}\n");
  CHECK_THAT(tokenize(file + " --tokenizer bytes", {.columns = 60}).err,
             Contains("tokenizing ") && Contains("a.txt"));
}

TEST_CASE("a terminal gets valid UTF-8 only") {
  const Folder folder;
  const auto ids = folder.write("a.ids", "97 255 195 169");
  const char* build = std::getenv("PERIGEE_BUILD");
  const auto command = std::string(build ? build : "build") + "/perigee tokenize " + ids +
                       " --decode --tokenizer bytes";
  // script runs the command on a terminal of its own.
  REQUIRE(std::system(("script -qec '" + command + "' /dev/null >" + (folder / "out")).c_str()) ==
          0);
  CHECK(read(folder / "out") == "a\xef\xbf\xbd\xc3\xa9");
}

TEST_CASE("tokenize refuses files with one sentence, and leaves nothing half written") {
  const Folder folder;
  const auto file = folder.write("a.txt", "text");
  const auto refused = [&](const std::string& arguments) {
    const auto ran = run("tokenize " + arguments);
    CHECK(ran.status == 2);
    CHECK(ran.out.empty());
    CHECK(std::ranges::count(ran.err, '\n') == 1);
    return ran.err;
  };
  CHECK_THAT(refused(folder / "none.txt" + " --tokenizer bytes"),
             Contains("none.txt must be a readable file, but: No such file"));
  CHECK_THAT(refused(file + " --tokenizer " + (folder / "none.json")),
             Contains("cannot read") && Contains("none.json"));
  const auto broken = folder.write("broken.json", "{\"model\": ");
  CHECK_THAT(refused(file + " --tokenizer " + broken),
             Contains("[tokenizer] ") && Contains("broken.json must be JSON"));
  const auto unknown = folder.write("unknown.json", "{\"model\": {\"type\": \"Magic\"}}");
  CHECK_THAT(refused(file + " --tokenizer " + unknown + " -o " + (folder / "to")),
             Contains("is \"Magic\""));
  // A character without a token and an unknown token.
  const auto lacks = folder.write(
      "lacks.json", R"({"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"a": 0}}})");
  CHECK_THAT(refused(file + " --json -o " + (folder / "to") + " --tokenizer " + lacks),
             Contains("model.unk_token must be a token of model.vocab"));
  CHECK(!fs::exists(folder / "to"));
  CHECK(!fs::exists(folder / "to.partial"));
  const auto large = folder.write("large.json", "{\"ids\": [3, 300]}");
  CHECK_THAT(refused(large + " --decode --tokenizer bytes"),
             Contains("ids of bytes must be below 256, but id 1 of ") && Contains("is 300"));
  CHECK_THAT(refused(folder.write("x.json", "{\"ids\": [-1]}") + " --decode --tokenizer bytes"),
             Contains("has -1"));
  CHECK_THAT(refused(folder.write("y.ids", "3 x") + " --decode --tokenizer bytes"),
             Contains("has none at byte 2"));
}

TEST_CASE("a job trains and samples with a tokenizer.json, and says when the model is too small") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "the token's text \xc3\xa9\xe4\xb8\xad\n";
  folder.write("text.txt", text);
  fs::copy_file(kTokenizer, folder / "tokenizer.json");
  const auto job = folder.write(
      "job.toml",
      "[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 32\nheads = 2\n[data]\ntext = [\"text.txt\"]\n"
      "tokenizer = \"tokenizer.json\"\nsequence = 16\nvalidation = 0.1\n[batch]\nglobal = 8\n"
      "[train]\nsteps = 3\noutput = \"" +
          folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const How how = {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}};
  const auto trained = run("train " + job, how);
  INFO(trained.err);
  REQUIRE(trained.status == 0);
  CHECK_THAT(read(folder / "run/job.toml"), Contains("vocab = 260"));
  size_t cached = 0;
  for (const auto& entry : fs::directory_iterator(folder / "cache/perigee/tokens")) {
    cached += entry.path().extension() == ".u16";
  }
  CHECK(cached == 1);
  const auto sampled = run("sample " + job + " --prompt token --tokens 20", how);
  INFO(sampled.err);
  CHECK(sampled.status == 0);
  CHECK_THAT(sampled.out, Catch::StartsWith("token"));
  const auto small = run("train " + job + " --overwrite --set model.vocab=200", how);
  CHECK(small.status == 2);
  CHECK_THAT(small.err, Contains("= 200, but ") && Contains("tokenizer.json has 260 ids"));
  CHECK_THAT(small.err, !Contains("step 1/"));
  folder.write("lacks.json",
               R"({"model": {"type": "WordLevel", "unk_token": "?", "vocab": {"a": 0}}})");
  const auto lacks = run(
      "train " + job + " --overwrite --set data.tokenizer=" + (folder / "lacks.json"), how);
  CHECK(lacks.status == 2);
  CHECK_THAT(lacks.err, Contains("model.unk_token must be a token") && !Contains("not cached"));
}
