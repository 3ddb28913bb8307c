// Text and conversations of models, through the command.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/command/job.h"
#include "tests/command/text/chat_job.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("chat answers each message after those before it, and /new begins again") {
  const ChatJob job;
  const auto ran = job.chat("abc\\nfed\\n/new\\nabc\\n", "--tokens 5");
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const auto answers = lines_of(ran.out);
  REQUIRE(answers.size() == 3);
  CHECK(answers[0] == answers[2]);
  CHECK(job.chat("fed\\n", "--tokens 5").out != answers[1] + "\n");
  CHECK_THAT(ran.err, Contains("has no checkpoint") && Contains("tensors loaded"));

  // The same texts from sample.
  const auto sampled = [&](const std::string& prompt) {
    const auto text = run(
        {"sample", job.file(), "--prompt", prompt, "--tokens", "5", "--temperature", "0"});
    INFO(text.err);
    REQUIRE(text.status == 0);
    REQUIRE_THAT(text.out, Catch::StartsWith(prompt));
    return text.out.substr(prompt.size());
  };
  CHECK_THAT(sampled("<u>abc</s><a>"), Catch::StartsWith(answers[0]));
  CHECK_THAT(sampled("<u>abc</s><a>" + answers[0] + "</s><u>fed</s><a>"),
             Catch::StartsWith(answers[1]));
}

TEST_CASE("chat leaves the oldest messages out, and goes on without one that is too long") {
  const ChatJob job;
  const auto ran = job.chat("abcdef\\nabcdef\\nabcdef\\n", "--tokens 4");
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK(lines_of(ran.out).size() == 3);
  CHECK_THAT(ran.err, Contains("the oldest messages are left out: the model reads 20 tokens"));
  const auto skipped = job.chat("abc\\nabcdefghijklmnopqrst\\nfed\\n", "--tokens 5");
  INFO(skipped.err);
  CHECK(skipped.status == 0);
  CHECK(skipped.out == job.chat("abc\\nfed\\n", "--tokens 5").out);
  CHECK_THAT(skipped.err,
             Contains("a message may have at most 19 tokens with its template, but has 23"));
  const auto other = run("chat " + job.file() + " --set data.tokenizer=bytes");
  CHECK(other.status == 2);
  CHECK_THAT(other.err, Contains("a chat template must be given"));
}

TEST_CASE("sample completes several prompts side by side, as one after the other") {
  const ChatJob job;
  const auto greedy = [&](const std::vector<std::string>& prompts) {
    std::vector<std::string> words = {"sample", job.file(), "--tokens", "8", "--temperature", "0"};
    for (const auto& prompt : prompts) words.insert(words.end(), {"--prompt", prompt});
    const auto ran = run(words);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return ran.out;
  };
  const auto both = greedy({"abc", "qrstq"});
  CHECK(both == "--- 1\n" + greedy({"abc"}) + "--- 2\n" + greedy({"qrstq"}));
  const auto text = greedy({"abc"});
  const auto stop = text.substr(5, 1);
  const auto stopped = run({"sample", job.file(), "--prompt", "abc", "--tokens", "8",
                            "--temperature", "0", "--stop", stop});
  CHECK(stopped.status == 0);
  CHECK(stopped.out == text.substr(0, text.find(stop, 3)) + "\n");
  const auto refused = run({"sample", job.file(), "--prompt", "abc", "--top-p", "0"});
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, Contains("top_p must be above 0 and at most 1, but got 0"));
}

TEST_CASE("a model without a cache completes several prompts as one after the other") {
  const TrainingJob job("kind = \"moe\"\nlayers = 1\nwidth = 32\nheads = 2\n");
  job.good("train", "--set train.steps=1 --set optimizer.lr=0.0");
  const auto greedy = [&](const std::vector<std::string>& prompts) {
    std::vector<std::string> words = {"sample", job.file(), "--tokens", "12", "--temperature", "0"};
    for (const auto& prompt : prompts) words.insert(words.end(), {"--prompt", prompt});
    const auto ran = run(words, job.how());
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return ran.out;
  };
  const std::vector<std::string> prompts = {"x", "The old man", "and"};
  std::string expected;
  for (size_t i = 0; i < prompts.size(); ++i) {
    expected += "--- " + std::to_string(i + 1) + "\n" + greedy({prompts[i]});
  }
  CHECK(greedy(prompts) == expected);
}

TEST_CASE("chat on two ranks answers as on one") {
  const ChatJob job;
  const std::string float64 = "--tokens 5 --set model.dtype=float64";
  const auto alone = job.chat("abc\\nfed\\n", float64);
  INFO(alone.err);
  REQUIRE(alone.status == 0);
  const auto both = job.chat("abc\\nfed\\n", float64 + " --nproc 2 --strategy tensor_parallel");
  INFO(both.err);
  CHECK(both.status == 0);
  CHECK(both.out == alone.out);
  CHECK(lines_of(both.out).size() == 2);
  const auto skipped = job.chat("abcdefghijklmnopqrst\\n", "--tokens 4 --nproc 2 --strategy fsdp");
  CHECK(skipped.status == 0);
  CHECK(skipped.out.empty());
  CHECK_THAT(skipped.err, Contains("a message may have at most 20 tokens with its template"));
}

TEST_CASE("the ranks of a text read the weights in parts") {
  const ChatJob job;
  const auto read_by = [&](const std::string& strategy) {
    const auto ran = run("-v sample " + job.file() +
                         " --prompt abc --tokens 1 --nproc 2 --strategy " + strategy);
    INFO(ran.err);
    CHECK(ran.status == 0);
    std::vector<long> bytes(3, -1);  // of both ranks, and all
    for (const auto& line : lines_of(ran.err)) {
      int rank = 0;
      long read = 0, all = 0;
      const auto at = line.find("has read");
      if (at == std::string::npos) continue;
      if (std::sscanf(line.c_str() + line.rfind("rank", at), "rank %d has read %ld of %ld", &rank,
                      &read, &all) == 3) {
        bytes.at(size_t(rank)) = read;
        bytes[2] = all;
      }
    }
    return bytes;
  };
  const auto whole = read_by("ddp");
  REQUIRE(whole[2] > 0);
  CHECK(whole[0] == whole[2]);
  CHECK(whole[1] == whole[2]);
  const auto parts = read_by("fsdp");
  CHECK(parts[0] + parts[1] == whole[2]);
  CHECK(parts[0] > whole[2] / 3);
  CHECK(parts[1] > whole[2] / 3);
  const auto sharded = read_by("tensor_parallel");
  CHECK(sharded[0] < whole[2] * 2 / 3);
  CHECK(sharded[1] < whole[2] * 2 / 3);
}

TEST_CASE("a model that cannot use caches makes the same text on several ranks") {
  const TrainingJob job("kind = \"moe\"\nlayers = 1\nwidth = 16\nheads = 2\nexperts = 4\n");
  job.good("train", "--set train.steps=1");
  const std::string drawn = "--prompt abc --tokens 8 --seed 3 --set model.dtype=float64";
  const auto alone = job.good("sample", drawn);
  CHECK_THAT(alone.err, Contains("the model limits the tokens of its experts"));
  for (const std::string strategy : {"expert_parallel", "fsdp"}) {
    INFO(strategy);
    CHECK(job.good("sample", drawn + " --nproc 2 --strategy " + strategy).out == alone.out);
  }
}

TEST_CASE("a signal and a rank that is killed end a text on several ranks") {
  const ChatJob job;
  const auto words = perigee_command("sample " + job.file() +
                                     " --prompt abc --tokens 100000000 --nproc 2 --strategy fsdp");
  Process stopped(words);
  stopped.wait_for("abc");
  stopped.signal(SIGINT);
  const auto ended = stopped.wait();
  CHECK(ended.status == 1);
  CHECK_THAT(ended.err, Contains("the ranks were ended by a signal (Interrupt)"));

  Process process(words);
  process.wait_for("abc");
  const auto ranks = children(process.pid());
  REQUIRE(ranks.size() == 2);
  ::kill(ranks[1], SIGKILL);
  const auto lost = process.wait();
  CHECK(lost.status == 1);
  CHECK_THAT(lost.err, Contains("rank 1 was killed by signal 9"));
}
