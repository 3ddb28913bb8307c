// The folders of `perigee new` and the shipped jobs train as they are.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/command/support.h"

using namespace perigee::test;
namespace fs = std::filesystem;

TEST_CASE("the folder that new makes trains") {
  Folder folder;
  const auto made = folder / "mine";
  REQUIRE(run("new " + made).status == 0);
  const auto ran = run(
      "train " + made + "/job.toml --set train.steps=3",
      {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}, .folder = folder.path()});
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK(fs::exists(folder / "runs/new/metrics.jsonl"));
}

TEST_CASE("the folder that new makes for PyTorch trains the model that it exports") {
  Folder folder;
  const auto made = folder / "mine";
  REQUIRE(run("new --from pytorch " + made).status == 0);
  fs::copy("tests/capture/exported/fixtures/other/new.pt2", made + "/model.pt2");
  const auto ran = run(
      "train " + made + "/job.toml --set train.steps=3",
      {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}, .folder = folder.path()});
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK(fs::exists(folder / "runs/new/metrics.jsonl"));
}

TEST_CASE("every shipped job trains") {
  for (const std::string name : {"gpt", "llama", "moe", "mlp", "resnet"}) {
    Folder folder;
    const auto ran = run("train strategies/" + name +
                             ".toml --set train.steps=2 --set train.validate_every=0 "
                             "--set cluster.device=cpu --set batch.global=4 --set train.output=" +
                             (folder / "run"),
                         {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}});
    INFO(name << "\n" << ran.err);
    CHECK(ran.status == 0);
  }
}
