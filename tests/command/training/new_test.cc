// The folders of `perigee new` and the shipped jobs train as they are.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "job/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

void train_three_steps(const Folder& folder, const std::string& made) {
  const auto ran = run(
      "train " + made + "/job.toml --set train.steps=3",
      {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}, .folder = folder.path()});
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK(fs::exists(folder / "runs/new/metrics.jsonl"));
}

}  // namespace

TEST_CASE("the folder that new makes trains on words, validates and writes samples") {
  Folder folder;
  REQUIRE(run("new " + (folder / "mine")).status == 0);
  train_three_steps(folder, folder / "mine");
  CHECK(fs::exists(folder / "runs/new/samples.jsonl"));
  CHECK_THAT(read(folder / "runs/new/metrics.jsonl"), Contains("\"val_loss\""));
  // It trains as long as the sample job of the repository, whose result the README shows.
  const auto made = perigee::job::Job::load(folder / "mine/job.toml");
  const auto sample = perigee::job::Job::load("strategies/gpt.toml");
  CHECK(made.train.steps == sample.train.steps);
  CHECK(made.train.validate_every == sample.train.validate_every);
  CHECK(made.train.samples == sample.train.samples);
  CHECK(made.data.sequence == sample.data.sequence);
  CHECK(made.batch.global == sample.batch.global);
}

TEST_CASE("the folder that new makes has the files that editors read") {
  Folder folder;
  const auto made = folder / "mine";
  REQUIRE(run("new " + made).status == 0);
  const auto settings = nlohmann::json::parse(read(made + "/.luarc.json"));
  CHECK(settings["runtime.version"] == "LuaJIT");
  const fs::path types = settings["workspace.library"].at(0).get<std::string>();
  CHECK_THAT(read(types / "perigee.d.lua"), Contains("---@meta"));
  // A build of the plugin writes how its files are compiled.
  CHECK_FALSE(fs::exists(made + "/build"));
  const auto build = fs::path(command_path()).parent_path().string();
  const auto configured =
      Process({"cmake", "-S", made, "-B", made + "/build", "-DCMAKE_PREFIX_PATH=" + build}).wait();
  INFO(configured.out << configured.err);
  REQUIRE(configured.status == 0);
  const auto commands = nlohmann::json::parse(read(made + "/build/compile_commands.json"));
  REQUIRE(commands.size() == 1);
  CHECK(commands[0]["file"] == made + "/model.cc");
  CHECK_THAT(commands[0]["command"].get<std::string>(), Contains("-I") || Contains("-isystem"));
}

TEST_CASE("the folder that new makes for PyTorch trains the model that it exports") {
  Folder folder;
  const auto made = folder / "mine";
  REQUIRE(run("new --from pytorch " + made).status == 0);
  fs::copy("tests/capture/exported/fixtures/other/new.pt2", made + "/model.pt2");
  train_three_steps(folder, made);
}

TEST_CASE(
    "a model of the user's reports tokens, and names the table that ids of another tokenizer "
    "exceed") {
  Folder folder;
  const auto made = folder / "mine";
  REQUIRE(run("new --from pytorch " + made).status == 0);
  fs::copy("tests/capture/exported/fixtures/other/new.pt2", made + "/model.pt2");
  folder.write("text.txt", std::string(4000, 'a') + std::string(4000, 'b'));
  folder.write("texts.jsonl", std::string(4000, 'a'));
  const auto train = [&](const std::string& more) {
    return run("train " + made + "/job.toml --set data.text=" + (folder / "text.txt") +
                   " --set train.steps=2 --set train.output=" + (folder / "run") + " --overwrite " +
                   more,
               {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}});
  };
  const auto good = train("");
  INFO(good.err);
  CHECK(good.status == 0);
  CHECK_THAT(good.err, Contains(" tokens/s") && !Contains("samples/s"));
  const auto other = train("--set data.tokenizer=strategies/data/novels.model");
  CHECK(other.status == 2);
  CHECK_THAT(other.err, Contains("ids of data.tokenizer must be below the rows of parameter") &&
                            Contains("= 256, but ") && Contains("novels.model has 4096 ids"));
  CHECK_THAT(train("--set data.text=" + (folder / "texts.jsonl")).err,
             Contains("texts.jsonl is JSON") && Contains("name it in data.jsonl"));
}

TEST_CASE("train ends with the commands that show its results, as they are typed") {
  Folder folder;
  How how{.environment = {{"XDG_CACHE_HOME", folder / "cache"}}, .folder = folder.path()};
  REQUIRE(run("new mine", how).status == 0);
  // The run's folder and the model's width are not those of the job's file.
  const auto ran = run({"train", "mine/job.toml", "--set", "train.steps=2", "--set",
                        "train.output=a run", "--set", "model.width=32", "--trace", "t.json"},
                       how);
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK_THAT(ran.err, Contains("wrote the trace of a step, t.json"));
  std::istringstream lines(ran.err);
  int commands = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("next: ")) continue;
    ++commands;
    CHECK(line.find("  ") > std::string("next: ").size());    // words on what it shows
    if (line.find(" watch ") != std::string::npos) continue;  // serves until it is ended
    const auto typed = line.substr(line.find_first_not_of(' ', line.find("  ")));
    const auto command = "HERE=" + folder.path() + "; cd $HERE; " + typed;
    const auto shown = Process({"/bin/bash", "-c", command}, how).wait();
    INFO(command << "\n" << shown.err);
    CHECK(shown.status == 0);
    if (typed.find(" export ") != std::string::npos) {
      CHECK_THAT(shown.err, Contains("wrote weights.safetensors ("));
    }
  }
  CHECK(commands == 5);
  CHECK(fs::exists(folder / "a run/plan.html"));
  CHECK(fs::exists(folder / "loss.svg"));
  CHECK(fs::exists(folder / "weights.safetensors"));
  // The bytes of a model that has learnt nothing are shown as valid text.
  const auto text = run({"sample", "mine/job.toml", "--checkpoint", "a run", "--set",
                         "model.width=32", "--tokens", "200", "--temperature", "3"},
                        how)
                        .out;
  CHECK(text.size() > 100);
  CHECK_NOTHROW(nlohmann::json(text).dump());
  CHECK_THAT(run({"export", "a run", "-o", "x.gguf"}, how).err,
             Contains("x.gguf") && Contains("--hf"));
  CHECK_FALSE(fs::exists(folder / "x.gguf"));
}

TEST_CASE("the phases of a start are shown on a terminal") {
  Folder folder;
  How how{.environment = {{"XDG_CACHE_HOME", folder / "cache"}},
          .folder = folder.path(),
          .columns = 80};
  REQUIRE(run("new mine", how).status == 0);
  const auto ran = run("train mine/job.toml --set train.steps=2", how);
  REQUIRE(ran.status == 0);
  size_t at = 0;
  for (const std::string phase :
       {"planning ...", "tokenizing", "compiling", "initialising the weights [", "step 2/2",
        "step 2/2 [\x1b[32m==", "saving the last checkpoint", "\nloss ", "\npeak memory "}) {
    INFO(phase << "\n" << ran.err);
    at = ran.err.find(phase, at);
    REQUIRE(at != std::string::npos);
  }
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
