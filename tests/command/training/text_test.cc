// Text by a SentencePiece model, through the command.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "job/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

// Returns the losses and validation losses of a run.
std::pair<std::vector<double>, std::vector<double>> losses(const std::string& run) {
  std::istringstream lines(read(run + "/metrics.jsonl"));
  std::pair<std::vector<double>, std::vector<double>> result;
  for (std::string line; std::getline(lines, line);) {
    const auto value = json::parse(line);
    if (value.contains("loss")) result.first.push_back(value["loss"]);
    if (value.contains("val_loss")) result.second.push_back(value["val_loss"]);
  }
  return result;
}

std::vector<std::string> files(const std::string& folder, const std::string& ending) {
  std::vector<std::string> found;
  if (!fs::exists(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().string().ends_with(ending)) found.push_back(entry.path());
  }
  return found;
}

}  // namespace

TEST_CASE("a job trains on text by a SentencePiece model, tokenized once for all ranks") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += "the quick brown fox jumps over the lazy dog and the dog sleeps\n";
    if (i % 3 == 0) text += "over the fox the dog jumps and the quick fox sleeps\n";
  }
  folder.write("text.txt", text);
  fs::copy_file("strategies/data/novels.model", folder / "small.model");
  const auto job = folder.write(
      "job.toml",
      "[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 32\nheads = 2\ndtype = \"float64\"\n"
      "[data]\ntext = [\"text.txt\"]\ntokenizer = \"small.model\"\nsequence = 16\n"
      "validation = 0.1\n[batch]\nglobal = 8\n[optimizer]\nlr = 1e-2\n"
      "[train]\nsteps = 12\nvalidate_every = 6\noutput = \"" +
          folder / "run" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const How how = {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}};
  const auto train = [&](const std::string& more, const How& way) {
    const auto ran = run("train " + job + " --overwrite " + more, way);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return losses(folder / "run");
  };
  const auto four = train("--nproc 4", how);
  REQUIRE(four.first.size() == 12);
  REQUIRE(four.second.size() == 2);
  CHECK(four.first.back() < 0.8 * four.first.front());
  // One token file, whole, and nothing half written beside it.
  const auto tokens = files(folder / "cache/perigee/tokens", ".u16");
  REQUIRE(tokens.size() == 1);
  CHECK(files(folder / "cache/perigee/tokens", ".partial").empty());
  const auto written = fs::last_write_time(tokens[0]);

  // Samples of training and validation do not depend on the number of ranks.
  const auto two = train("--nproc 2", how);
  REQUIRE(two.first.size() == four.first.size());
  for (size_t i = 0; i < four.first.size(); ++i)
    CHECK(two.first[i] == Approx(four.first[i]).epsilon(1e-10));
  for (size_t i = 0; i < four.second.size(); ++i)
    CHECK(two.second[i] == Approx(four.second[i]).epsilon(1e-10));
  CHECK(fs::last_write_time(tokens[0]) == written);
  CHECK(perigee::job::Job::load(folder / "run/job.toml").model.integer("vocab") == 4096);

  const auto sampled = run({"sample", job, "--prompt", "the quick", "--tokens", "20"}, how);
  INFO(sampled.err);
  CHECK(sampled.status == 0);
  CHECK_THAT(sampled.out, Catch::StartsWith("the quick"));

  // data.tokens accepts the file.
  const auto raw = folder.write(
      "raw.toml",
      "name = \"job\"\n[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 32\nheads = 2\nvocab = 4096\n"
      "dtype = \"float64\"\n[data]\ntokens = [\"" +
          tokens[0] +
          "\"]\nsequence = 16\nvalidation = 0.1\n[batch]\nglobal = 8\n[optimizer]\nlr = 1e-2\n"
          "[train]\nsteps = 12\nvalidate_every = 6\noutput = \"" +
          folder / "raw" + "\"\n[cluster]\ndevice = \"cpu\"\n");
  const auto ran = run("train " + raw + " --nproc 4", how);
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  CHECK(losses(folder / "raw") == four);

  // Another text gives another file; without a writable cache ranks tokenize in memory and say so.
  folder.write("text.txt", text + "the end\n");
  train("--set train.steps=1", how);
  CHECK(files(folder / "cache/perigee/tokens", ".u16").size() == 2);
  folder.write("text.txt", text);
  fs::create_directories(folder / "other/perigee");
  folder.write("other/perigee/tokens", "a file in the folder's place");
  const How other = {.environment = {{"XDG_CACHE_HOME", folder / "other"}}};
  const auto without = run("train " + job + " --overwrite --nproc 4", other);
  INFO(without.err);
  REQUIRE(without.status == 0);
  CHECK_THAT(without.err, Contains("every rank tokenizes for itself") &&
                              Contains((folder / "other") + "/perigee/tokens must be a folder"));
  CHECK(losses(folder / "run") == four);
}
