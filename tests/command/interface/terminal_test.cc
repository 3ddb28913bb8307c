// Bars and phases on a terminal, and the table at the end of training.

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

TEST_CASE("a terminal shows a progress line, and the log has plain lines") {
  const TrainingJob job;
  const std::string more = "--set train.steps=6 --set train.log_every=3 --overwrite";
  auto how = job.how();
  how.columns = 30;
  const auto narrow = Process(job.words("train", more), how).wait();
  CHECK(narrow.status == 0);
  CHECK_THAT(narrow.err, Contains("\r\x1b[Kstep 2/6, loss"));  // no room for a bar
  std::istringstream shown(narrow.err);                        // a line that changes must not wrap
  for (std::string line; std::getline(shown, line, '\r');) {
    if (line.starts_with("\x1b[K") && line.find("/6") != std::string::npos &&
        line.find_first_of("245") == 8) {
      CHECK(line.size() <= 3 + 29);
    }
  }
  const auto plain = job.good("train", more).err;
  for (const auto& text : {plain, read(job.output() + "/log.txt")}) {
    CHECK_THAT(text, !Contains("\x1b") && !Contains("\r") && Contains("step 1/6") &&
                         !Contains("step 2/6") && Contains("step 3/6") && Contains("step 6/6"));
  }
  how.columns = 200;
  const auto wide = Process(job.words("train", more), how).wait();
  CHECK_THAT(wide.err, Contains("tokens/s") && Contains(" left") &&
                           Contains("step 3/6 [\x1b[32m===============>"));
  how.environment["NO_COLOR"] = "1";
  CHECK_THAT(Process(job.words("train", more), how).wait().err,
             Contains("step 3/6 [===============>") && !Contains("\x1b[3"));
}

TEST_CASE("train ends with a table of its results, in a pipe and in a terminal") {
  const TrainingJob job;
  const std::string more = "--overwrite --set train.validate_every=4 --trace " +
                           (job.folder() / "t.json");
  auto how = job.how();
  how.columns = 80;
  const auto piped = job.good("train", more).err;
  const auto terminal = Process(job.words("train", more), how).wait().err;
  for (const auto& text : {piped, terminal}) {
    INFO(text);
    size_t at = text.find("done: 4 steps");
    for (const auto& row : std::vector<std::string>{
             "\nloss             ", "\nvalidation loss  ", "\nspeed            ",
             "\npeak memory      ", "\ncheckpoint       " + job.output() + "/checkpoints/step-4",
             "\ntrace            " + (job.folder() / "t.json"),
             "\nreport           " + (job.output() + "/plan.html, the plan as a page"),
             "\nrun              " + job.output(),
             "\nnext: charts on a page     " + command_path() + " watch " + job.output()}) {
      INFO(row);
      at = text.find(row, at);
      REQUIRE(at != std::string::npos);
    }
  }
  CHECK(read(job.output() + "/trace.json") == read(job.folder() / "t.json"));
  const auto report = read(job.output() + "/plan.html");
  CHECK_THAT(report, Contains("<!DOCTYPE html>") && Contains("<h2>Memory") && Contains("<svg "));
  // The kinds of memory add up to the predicted peak.
  const auto memory = json::parse(read(job.output() + "/memory.json"));
  int64_t bytes = 0;
  for (const double of_kind : memory["ranks"][0]) bytes += static_cast<int64_t>(of_kind);
  CHECK(bytes == job.metrics().back()["summary"]["predicted_peak_bytes"][0]);
  CHECK_THAT(piped, !Contains("\x1b") && Contains(" after step 4\n") && Contains(" counted, "));
}

TEST_CASE("evaluate and plan show their phases on a terminal alone") {
  const TrainingJob job;
  job.good("train", "--set train.validate_every=2");
  auto how = job.how();
  how.columns = 80;
  const auto evaluated = Process(job.words("evaluate"), how).wait();
  REQUIRE(evaluated.status == 0);
  CHECK_THAT(evaluated.err, Contains("planning ...") && Contains("checkpoints/step-4 [") &&
                                Contains("evaluating ["));
  CHECK(job.good("evaluate").err.empty());
  const auto planned = Process(job.words("plan", "-o " + (job.folder() / "plan.json")), how).wait();
  CHECK_THAT(planned.err, Contains("planning ...\r\x1b[K"));
  const auto trained =
      Process(job.words("train", "--overwrite --set train.validate_every=2"), how).wait();
  CHECK_THAT(trained.err, Contains("validating ["));
}
