// `perigee tokenize --messages`: conversations to ids, and to samples that a job trains on.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// Sums of digits, as questions and answers.
std::string sums(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const int a = i % 10, b = i / 10 % 10;
    const auto question = std::to_string(a) + "+" + std::to_string(b) + "?";
    lines += json{{"messages",
                   {{{"role", "user"}, {"content", question}},
                    {{"role", "assistant"}, {"content", std::to_string(a + b)}}}}}
                 .dump() +
             "\n";
  }
  return lines;
}

}  // namespace

TEST_CASE("tokenize --messages prints ids and answers of conversations") {
  const Folder folder;
  fs::copy_file("tests/fuzz/corpus/tokenizer_json/byte_level.json", folder / "tokenizer.json");
  const auto file = folder.write("chats.jsonl", sums(2));
  folder.write("tokenizer_config.json",
               R"({"eos_token": "<s>", "chat_template": "{% for m in messages %}{{ m.content }})"
               R"({% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"})");
  const auto arguments = "tokenize " + file + " --messages --tokenizer " +
                         (folder / "tokenizer.json");
  const auto ran = run(arguments);
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const auto first = json::parse(ran.out.substr(0, ran.out.find('\n')));
  CHECK(first["ids"].size() == 6);
  CHECK(first["ids"][5] == 259);
  CHECK(first["answers"] == json::parse("[[4, 6]]"));
  CHECK(std::ranges::count(ran.out, '\n') == 2);

  const auto own = folder.write("own.jinja",
                                "{% generation %}{{ messages[1].content }}{% endgeneration %}");
  const auto other = run(arguments + " --template " + own);
  REQUIRE(other.status == 0);
  CHECK(json::parse(other.out.substr(0, other.out.find('\n')))["answers"] ==
        json::parse("[[0, 1]]"));
  folder.write("chats.jsonl",
               sums(1) + "{\"messages\": [{\"role\": \"user\", \"content\": \"?\"}]}");
  const auto broken = run(arguments + " --sequence 8 -o " + (folder / "s.safetensors"));
  CHECK(broken.status == 2);
  CHECK_THAT(broken.err,
             Contains("chats.jsonl:2: a conversation must have an answer of the model"));
  CHECK(!fs::exists(folder / "s.safetensors"));
  CHECK_THAT(run(arguments + " --sequence 8").err, Contains("--sequence requires --output"));
}

TEST_CASE("a job learns the answers of conversations") {
  const Folder folder;
  const auto file = folder.write("chats.jsonl", sums(100));
  const auto chatml = "tests/text/jinja/templates/chatml.jinja";
  const auto samples = folder / "chats.safetensors";
  const auto made = run("tokenize " + file + " --messages --tokenizer bytes --template " + chatml +
                        " --sequence 80 -o " + samples);
  INFO(made.err);
  REQUIRE(made.status == 0);
  CHECK_THAT(made.err, Contains("100 samples with 1245 tokens of answers in "));
  const auto job = folder.write(
      "job.toml",
      "[model]\nkind = \"llama\"\nlayers = 1\nwidth = 32\nheads = 2\nvocab = 256\n[data]\n"
      "tensors = [\"chats.safetensors\"]\nsequence = 80\nvalidation = 0.1\n[batch]\nglobal = 10\n"
      "[optimizer]\nlr = 1e-2\n[train]\nsteps = 30\nlog_every = 30\noutput = \"" +
          folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const auto trained = run("train " + job + " --nproc 2");
  INFO(trained.err);
  REQUIRE(trained.status == 0);
  // Eleven of a dozen tokens are the template's end of an answer, which follows from the prompt.
  const auto place = trained.err.find("step 30/30, loss ");
  REQUIRE(place != std::string::npos);
  CHECK(std::stod(trained.err.substr(place + 17)) < 1.0);
}
