// data.sampler: a library that orders the samples of a run.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "tests/command/job.h"

using namespace perigee::test;

namespace {

std::string library() {
  const char* build = std::getenv("PERIGEE_BUILD");
  return std::filesystem::absolute(build ? build : "build").string() + "/libplugin_sampler.so";
}

// 16 samples of 32 bytes that all begin with the same byte, so that a sample's last label does not
// depend on the sample after it.
std::string samples(bool backwards) {
  std::string text;
  for (int i = 0; i < 16; ++i) {
    text += "#";
    for (int k = 1; k < 32; ++k) text += char('a' + (7 * (backwards ? 15 - i : i) + k * k) % 26);
  }
  return text + "#";
}

}  // namespace

TEST_CASE("samples have a library's order on any number of ranks and after a resume") {
  const TrainingJob job;
  const auto forwards = job.folder().write("forwards.txt", samples(false));
  const auto backwards = job.folder().write("backwards.txt", samples(true));
  const auto train = [&](const std::string& text, const std::string& sampler,
                         const std::string& more) {
    auto words = job.words("train",
                           "--set data.validation=0 --set seed=7 --set optimizer.lr=0.01 " + more +
                               " --set data.sampler=" + sampler);
    words.erase(words.begin());  // the command
    words.insert(words.end(), {"--set", "data.text=[\"" + text + "\"]"});
    const auto ran = run(words, job.how());
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return job.losses();
  };
  // An epoch is two steps of eight samples.
  const auto plain = train(backwards, "sequential", "--set train.steps=2");
  const auto ordered = train(forwards, library(), "--set train.steps=2 --overwrite");
  CHECK(ordered == plain);
  CHECK(train(forwards, "sequential", "--set train.steps=2 --overwrite") != plain);
  // The second epoch has another order, also in a resumed run.
  const auto whole = train(forwards, library(), "--set train.steps=4 --overwrite");
  const auto first = train(backwards, "sequential", "--set train.steps=4 --overwrite");
  REQUIRE(whole.size() == 4);
  CHECK(whole[1] == first[1]);
  CHECK(whole[2] != first[2]);
  train(forwards, library(), "--set train.steps=3 --overwrite");
  CHECK(train(forwards, library(), "--set train.steps=4 --resume") == whole);
  train(forwards, library(), "--set train.steps=3 --overwrite --nproc 2");
  const auto two = train(forwards, library(), "--set train.steps=4 --resume --nproc 2");
  REQUIRE(two.size() == 4);
  for (size_t i = 0; i < two.size(); ++i) CHECK(two[i] == Approx(whole[i]).epsilon(1e-4));
}
