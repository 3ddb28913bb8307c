// perigee plot: the metrics of a trained run as a chart, a table and JSON.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Contains;

TEST_CASE("plot draws a run, writes its table, and says what a run lacks") {
  const TrainingJob job;
  job.good("train", "--nproc 1 --set train.steps=3");
  const auto folder = job.output();
  const auto svg = run("plot " + folder);
  CHECK(svg.status == 0);
  CHECK_THAT(svg.out, Catch::StartsWith("<svg ") && Contains(">grad_norm<"));

  const auto table = job.folder() / "steps.csv";
  REQUIRE(run("plot " + folder + " --chart loss,lr -o " + table).status == 0);
  CHECK_THAT(read(table), Catch::StartsWith("run,step,loss,lr\r\nrun,1,"));
  CHECK(run("plot " + folder + " --chart loss " + folder).status == 0);

  const auto runs = nlohmann::json::parse(run("plot " + folder + " --json").out).at("runs");
  CHECK(runs.at(0).at("columns").at("loss").size() == 3);
  CHECK(runs.at(0).at("summary").at("steps") == 3);

  const auto link = job.folder() / "run-\xe9";  // in Latin-1
  std::filesystem::create_directory_symlink(folder, link);
  const auto linked = nlohmann::json::parse(run("plot " + link + " --json").out);
  CHECK(linked.at("runs").at(0).at("name") == "run-\ufffd");

  const auto fails = [&](const std::string& arguments, const std::string& part) {
    const auto ran = run("plot " + arguments);
    CHECK(ran.status == 2);
    CHECK_THAT(ran.err, Contains(part));
    CHECK(is_short(ran.err));
  };
  fails(folder + " --chart los", "did you mean \"loss\"?");
  fails(folder + " -o loss.png", "plot writes .svg or .csv");
  fails(job.folder() / "none", "a run is a folder with metrics.jsonl");
  fails(std::string(300, 'a'), "a run is a folder with metrics.jsonl");  // longer than any name
  fails(folder + " --x tokns", "did you mean \"tokens\"?");

  // The folder of another format, also by its metrics.jsonl, and to be resumed.
  auto memory = nlohmann::json::parse(read(folder + "/memory.json"));
  CHECK(memory["format"] == "perigee.run/1");
  memory["format"] = "perigee.run/2";
  job.folder().write("run/memory.json", memory.dump());
  const std::string message =
      "must be a run in the format perigee.run/1, but its memory.json states "
      "\"perigee.run/2\": the Perigee that wrote it, or a later one, reads it";
  fails(folder, message);
  fails(folder + "/metrics.jsonl", message);
  CHECK_THAT(job.refused("train", "--resume --set train.steps=5"), Contains(message));
  CHECK(nlohmann::json::parse(read(folder + "/memory.json")) == memory);
}
