#include "train/output/metrics.h"

#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/log_format.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"
#include "train/output/progress.h"

using namespace perigee;
using namespace perigee::train;
using test::error_of;
using test::Folder;
using test::read_text;

namespace {

StepMetrics at_step(int64_t step) {
  return {.step = step,
          .loss = 4.25,
          .lr = 1.5e-05,
          .grad_norm = 0.1,
          .samples = 32,
          .tokens = 8192,
          .step_s = 0.5,
          .tokens_per_s = 16384,
          .peak_bytes = {100, 200}};
}

std::string lines_of(std::initializer_list<int64_t> steps) {
  std::string text;
  for (const auto step : steps) text += to_json(at_step(step)) + "\n";
  return text;
}

struct Lines : log::Sink {
  Lines() { log::set_sink(this); }
  ~Lines() override { log::set_sink(nullptr); }
  void write(log::Level, std::string_view text) override { all.emplace_back(text); }
  std::vector<std::string> all;
};

}  // namespace

TEST_CASE("a step's metrics are one line of JSON with 17 digits") {
  CHECK(to_json(at_step(1)) ==
        "{\"step\":1,\"loss\":4.25,\"lr\":1.5e-05,\"grad_norm\":0.10000000000000001,\"samples\":32,"
        "\"tokens\":8192,\"step_s\":0.5,\"tokens_per_s\":16384,\"peak_bytes\":[100,200]}");
  auto metrics = at_step(2);
  metrics.mfu = 0.5;
  metrics.val_loss = 2;
  metrics.loss_scale = 65536;
  metrics.skipped = true;
  CHECK_THAT(to_json(metrics),
             Catch::EndsWith(",\"mfu\":0.5,\"val_loss\":2,\"loss_scale\":65536,\"skipped\":true}"));
}

TEST_CASE("a bad step's metrics name its reason and samples, and ranks their seconds") {
  auto metrics = at_step(2);
  metrics.skipped = true;
  metrics.bad = "its loss is \"odd\"";
  metrics.bad_samples = {4, 9};
  metrics.transient = true;
  metrics.compute_s = {0.25, 0.5};
  metrics.wait_s = {0.25, 0};
  metrics.pause_s = {0, 5};
  metrics.submit_s = {0.5, 0.125};
  CHECK_THAT(
      to_json(metrics),
      Catch::EndsWith(",\"skipped\":true,\"bad\":\"its loss is \\\"odd\\\"\",\"bad_samples\":"
                      "[4,9],\"transient\":true,\"compute_s\":[0.25,0.5],\"wait_s\":[0.25,0],"
                      "\"pause_s\":[0,5],\"submit_s\":[0.5,0.125]}"));
  CHECK_THAT(to_json(Summary{.steps = 3,
                             .peak_bytes = {7},
                             .compute_s = {0.5},
                             .wait_s = {0},
                             .bad_steps = 2,
                             .spikes = 1,
                             .skipped_steps = 3,
                             .transient_steps = 1}),
             Catch::EndsWith(",\"compute_s\":[0.5],\"wait_s\":[0],\"bad_steps\":2,\"spikes\":1,"
                             "\"skipped_steps\":3,\"transient_steps\":1}}"));
}

TEST_CASE("a step's report has sections with their computing, and the exchanges of parameters") {
  const compile::ValueId bucket{4};
  const std::vector<compile::Interval> intervals{
      {.name = "aten::mm", .section = "micro", .begin = 2'000, .end = 5'000},
      {.name = "comm::all_reduce",
       .section = "micro",
       .stream = 1,
       .begin = 3'000,
       .end = 9'000,
       .operand = bucket},
      {.name = "aten::gelu", .section = "micro", .begin = 5'000, .end = 6'000},
      {.name = "comm::send", .section = "micro", .stream = 2, .begin = 6'000, .end = 7'000},
      {.name = "aten::mm", .section = "micro", .microbatch = 1, .begin = 1'000, .end = 2'000}};
  const auto report = nlohmann::json::parse(
      step_report(at_step(1), intervals, {{bucket, {true, {"w", "b"}}}}));
  CHECK(report["loss"] == 4.25);
  const auto check = [](const nlohmann::json& part, double begin, double end) {
    CHECK(part["begin"].get<double>() == Approx(begin).margin(1e-12));
    CHECK(part["end"].get<double>() == Approx(end));
  };
  const auto& sections = report["sections"];
  REQUIRE(sections.size() == 2);
  CHECK(sections[0]["microbatch"] == 1);
  check(sections[0], 0, 1e-6);
  CHECK(sections[0]["busy"].get<double>() == Approx(1e-6));
  CHECK(sections[1]["name"] == "micro");
  check(sections[1], 1e-6, 8e-6);
  CHECK(sections[1]["busy"].get<double>() == Approx(4e-6));
  const auto& collectives = report["collectives"];
  REQUIRE(collectives.size() == 1);
  CHECK(collectives[0]["what"] == "gradients");
  CHECK(collectives[0]["parameters"] == std::vector<std::string>{"w", "b"});
  check(collectives[0], 2e-6, 8e-6);
  CHECK(nlohmann::json::parse(step_report(at_step(1), {}, {}))["sections"].empty());
}

TEST_CASE("a number that is not finite is null, and every line is JSON") {
  auto metrics = at_step(1);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = -std::numeric_limits<double>::infinity();
  const auto value = nlohmann::json::parse(to_json(metrics));
  CHECK(value["loss"].is_null());
  CHECK(value["grad_norm"].is_null());
  CHECK(value["lr"].get<double>() == 1.5e-05);
}

TEST_CASE("the summary has each measured value beside the predicted one") {
  CHECK(to_json(Summary{.steps = 3, .seconds = 1.5, .step_s = 0.5, .peak_bytes = {7}}) ==
        "{\"summary\":{\"steps\":3,\"seconds\":1.5,\"step_s\":0.5,\"peak_bytes\":[7]}}");
  CHECK(to_json(Summary{.steps = 3,
                        .seconds = 1.5,
                        .step_s = 0.5,
                        .predicted_step_s = 0.25,
                        .predicted_measured = 0.75,
                        .peak_bytes = {7},
                        .predicted_peak_bytes = {7},
                        .library_bytes = {9},
                        .mfu = 0.5}) ==
        "{\"summary\":{\"steps\":3,\"seconds\":1.5,\"step_s\":0.5,\"predicted_step_s\":0.25,"
        "\"predicted_measured\":0.75,\"peak_bytes\":[7],\"predicted_peak_bytes\":[7],\"library_"
        "bytes\":[9],\"mfu\":0.5}}");
}

TEST_CASE("a line is in the file after write, without sync") {
  Folder folder;
  const auto path = folder.at("metrics.jsonl");
  MetricsFile file(path, 0);
  file.write(at_step(1));
  CHECK(read_text(path) == lines_of({1}));
  file.write(at_step(2));
  file.sync();
  CHECK(read_text(path) == lines_of({1, 2}));
}

TEST_CASE("a resumed run truncates metrics to its first step") {
  Folder folder;
  const auto cut = [&](const std::string& text, int64_t last) {
    const auto path = folder.add("metrics.jsonl", text);
    MetricsFile file(path, last);
    return read_text(path);
  };
  CHECK(cut(lines_of({1, 2, 3}), 2) == lines_of({1, 2}));
  CHECK(cut(lines_of({1, 2, 3}), 3) == lines_of({1, 2, 3}));
  CHECK(cut(lines_of({1, 2, 3}), 0).empty());
  CHECK(cut(lines_of({1, 2}) + to_json(Summary{}) + "\n", 2) == lines_of({1, 2}));
  CHECK(cut(lines_of({1}) + "{\"step\":2,\"lo", 9) == lines_of({1}));   // a partial line
  CHECK(cut(lines_of({1}) + to_json(at_step(2)), 9) == lines_of({1}));  // no newline
  CHECK(cut(lines_of({1}) + std::string(100, '\0'), 9) ==
        lines_of({1}));  // zeros of a file that was extended but not written
  const auto path = folder.add("metrics.jsonl", lines_of({1, 2, 3}));
  MetricsFile file(path, 1);
  file.write(at_step(2));
  CHECK(read_text(path) == lines_of({1, 2}));
}

TEST_CASE("of damaged metrics the good lines are kept, and the lost steps are known") {
  Folder folder;
  const auto path = folder.at("metrics.jsonl");
  const auto open = [&](const std::string& text, int64_t last) {
    folder.add("metrics.jsonl", text);
    const MetricsFile file(path, last);
    return std::pair(read_text(path), file.lost_steps());
  };
  using Kept = std::pair<std::string, std::string>;
  CHECK(open(lines_of({1, 2, 3}), 3) == Kept(lines_of({1, 2, 3}), ""));
  // A run that began with another run's checkpoint lacks nothing.
  CHECK(open(lines_of({4, 5}), 5) == Kept(lines_of({4, 5}), ""));
  CHECK(open(lines_of({1, 2}), 5) == Kept(lines_of({1, 2}), "3 to 5"));
  CHECK(open("", 4) == Kept("", "1 to 4"));
  CHECK(open("", 1) == Kept("", "1"));
  CHECK(open("", 0) == Kept("", ""));
  // Cut to nothing while a run wrote it, which then went on with steps 4 and 5.
  const std::string hole(lines_of({1, 2, 3}).size(), '\0');
  CHECK(open(hole + lines_of({4, 5}), 5) == Kept(lines_of({4, 5}), "1 to 3"));
  CHECK(open(hole, 3) == Kept("", "1 to 3"));
  // A damaged page in the middle.
  const auto whole = lines_of({1, 2, 3, 4});
  const auto line = whole.size() / 4;
  auto torn = whole;
  torn.replace(line + 5, line, std::string(line, '\0'));
  CHECK(open(torn, 4) == Kept(lines_of({1, 4}), "2 to 3"));
  CHECK(open(lines_of({1}) + "}{\n" + lines_of({3, 4, 5}), 4) == Kept(lines_of({1, 3, 4}), "2"));
  // The run goes on after the kept lines.
  folder.add("metrics.jsonl", hole + lines_of({4, 5}));
  MetricsFile file(path, 5);
  file.write(at_step(6));
  CHECK(read_text(path) == lines_of({4, 5, 6}));
}

TEST_CASE("a line that does not fit on the disk is one error and leaves no partial line") {
  Folder folder;
  const auto path = folder.at("metrics.jsonl");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // a process cannot raise its file size limit
    MetricsFile file(path, 0);
    file.write(at_step(1));
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{lines_of({1}).size() + 10, lines_of({1}).size() + 10};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto message = error_of([&] { file.write(at_step(2)); });
    ::_exit(message == fmt::format("[file] {} must be written, but: File too large", path) ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(read_text(path) == lines_of({1}));
  CHECK(error_of([&] { MetricsFile(folder.at("none/metrics.jsonl"), 0); }) ==
        fmt::format("[file] {} must be written, but: No such file or directory",
                    folder.at("none/metrics.jsonl")));
}

TEST_CASE("progress shows step, loss, speed and remaining time") {
  CHECK(progress_line(at_step(20), 200, 73.2) ==
        "step 20/200, loss 4.2500, 16384 tokens/s, 1:14 left");
  auto metrics = at_step(200);
  metrics.tokens = 0;
  metrics.val_loss = 3;
  CHECK(progress_line(metrics, 200, 7389) ==
        "step 200/200, loss 4.2500, validation loss 3.0000, 64 samples/s, 2:03:09 left");
  metrics.loss = -std::numeric_limits<double>::quiet_NaN();
  CHECK_THAT(progress_line(metrics, 200, 7389), Catch::StartsWith("step 200/200, loss nan, "));
}

TEST_CASE("without a terminal, progress is a line of the log every few steps") {
  Lines lines;
  Progress progress(3, 12, 5);
  for (int64_t step = 3; step <= 12; ++step) progress.step(at_step(step));
  CHECK(lines.all ==
        std::vector<std::string>{"step 3/12, loss 4.2500, 16384 tokens/s, 0:05 left",
                                 "step 5/12, loss 4.2500, 16384 tokens/s, 0:04 left",
                                 "step 10/12, loss 4.2500, 16384 tokens/s, 0:01 left",
                                 "step 12/12, loss 4.2500, 16384 tokens/s, 0:00 left"});
}

TEST_CASE("on a terminal, progress is one line that is overwritten, below all messages") {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "1", 1);
    log::set_sink(log::standard_sink());
    {
      Progress progress(1, 5, 4);
      progress.step(at_step(1));
      progress.step(at_step(2));
      log::warn("slow");
      for (const int64_t step : {3, 4, 5}) progress.step(at_step(step));
    }
    ::_exit(0);
  }
  std::string text;
  char buffer[512];
  for (ssize_t n; (n = ::read(terminal, buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  int status = -1;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  CHECK(status == 0);
  const std::string clear = "\r\x1b[K";
  const auto line = [](int64_t step) {
    return progress_line(at_step(step), 5, 0.5 * double(5 - step));
  };
  const auto bar = [](int64_t step) {
    return log::progress_line(step_progress(at_step(step), 5, 0.5 * double(5 - step), {}), 79,
                              false);
  };
  // Permanent lines (the first, every fourth, the last) are above the bar.
  CHECK(text == line(1) + "\r\n" + clear + bar(1) + clear + bar(2) + clear + "warning: slow\r\n" +
                    clear + bar(2) + clear + bar(3) + clear + line(4) + "\r\n" + clear + bar(3) +
                    clear + bar(4) + clear + line(5) + "\r\n" + clear + bar(4) + clear + bar(5) +
                    clear);
}
