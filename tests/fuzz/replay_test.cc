// Feeds every kept input to its target: seeds, and inputs that once broke a parser.
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/target.h"

using namespace perigee;
namespace fs = std::filesystem;

namespace {

const fs::path kCorpus = "tests/fuzz/corpus";

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("every kept input parses or is refused with a sentence") {
  for (const auto& [name, target] : fuzz::targets()) {
    INFO("target " << name);
    REQUIRE(fs::is_directory(kCorpus / name));
    int inputs = 0;
    for (const auto& file : fs::directory_iterator(kCorpus / name)) {
      ++inputs;
      INFO("input " << file.path().string());
      CHECK_NOTHROW(fuzz::feed(target, content(file.path())));
    }
    CHECK(inputs > 0);
  }
}

TEST_CASE("each folder of kept inputs has a target") {
  for (const auto& folder : fs::directory_iterator(kCorpus)) {
    CHECK(fuzz::targets().contains(folder.path().filename().string()));
  }
}

TEST_CASE("texts nested a hundred thousand deep are refused, and do not end the stack") {
  const size_t depth = 100'000;
  const auto repeat = [&](std::string_view text) {
    std::string all;
    for (size_t i = 0; i < depth; ++i) all += text;
    return all;
  };
  const auto list = repeat("[") + repeat("]");
  const std::string inputs[] = {list,
                                "{\"format\":" + list + "}",
                                repeat("{\"a\":") + "1" + repeat("}"),
                                "[megatron]\n" + repeat("a.") + "a = 1\n",
                                "[megatron]\na = " + list + "\n",
                                "r" + list};
  for (const auto* name : {"job", "plan", "problem", "cluster", "profile", "hosts", "stages"}) {
    INFO("target " << name);
    for (const auto& input : inputs) CHECK_NOTHROW(fuzz::feed(fuzz::targets().at(name), input));
  }
  uint64_t length = list.size();
  const std::string header(reinterpret_cast<const char*>(&length), sizeof length);
  CHECK_NOTHROW(fuzz::feed(fuzz::targets().at("safetensors"), header + list));
  CHECK_NOTHROW(fuzz::feed(fuzz::targets().at("checkpoint"), inputs[1]));
}

TEST_CASE("a broken rule, a foreign exception and a message for a terminal are noticed") {
  CHECK_THROWS_AS(fuzz::feed([](std::string_view) { throw std::bad_alloc(); }, ""), std::bad_alloc);
  CHECK_THROWS_AS(fuzz::feed([](std::string_view) { fuzz::require(false, "a rule"); }, ""),
                  fuzz::Broken);
  const auto throws = [](const char* text) {
    return [text] { throw Error(Status::invalid, "job", text); };
  };
  CHECK_THROWS_AS(fuzz::accepted("a rule", throws("a job is refused again")), fuzz::Broken);
  CHECK_NOTHROW(fuzz::feed(
      [](std::string_view) { throw Error(Status::invalid, "job", "a seed is a number"); }, ""));
  CHECK_THROWS_AS(fuzz::feed([](std::string_view) { throw Error(Status::invalid, "job", ""); }, ""),
                  fuzz::Broken);
}
