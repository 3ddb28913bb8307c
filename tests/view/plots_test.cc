// Which charts runs have, and their table.
#include "view/plots.h"

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

using namespace perigee;
using Catch::Contains;
using view::Run;

namespace {

Run run_of(const test::Folder& folder, const std::string& name, const std::string& lines) {
  auto metrics = std::make_shared<view::Metrics>(folder.add(name + ".jsonl", lines));
  metrics->read();
  return {name, metrics};
}

}  // namespace

TEST_CASE("without columns there are charts of those that the runs have") {
  const test::Folder folder;
  const std::vector<Run> runs = {
      run_of(folder, "a", "{\"step\":1,\"loss\":2,\"lr\":0.1}\n"),
      run_of(folder, "b", "{\"step\":1,\"loss\":2,\"val_loss\":3,\"tokens_per_s\":10}\n")};
  const auto charts = view::plots(runs, {});
  std::vector<std::string> titles;
  for (const auto& chart : charts) titles.push_back(chart.title);
  CHECK(titles == std::vector<std::string>{"loss, val_loss", "lr", "tokens_per_s"});
  std::vector<std::string> labels;
  for (const auto& line : charts[0].lines) labels.push_back(line.label);
  CHECK(labels == std::vector<std::string>{"a loss", "b loss", "b val_loss"});
  CHECK(charts[1].lines.at(0).label == "a");
}

TEST_CASE("positions are steps, or sums up to each step") {
  const test::Folder folder;
  const std::vector<Run> runs = {run_of(folder, "a",
                                        "{\"step\":5,\"loss\":2,\"tokens\":30,\"step_s\":0.5}\n"
                                        "{\"step\":6,\"loss\":1,\"tokens\":20,\"step_s\":0.25}\n")};
  const auto of = [&](const std::string& x) {
    return view::plots(runs, {.charts = {{"loss"}}, .x = x}).at(0).lines.at(0).x;
  };
  CHECK(of("step") == std::vector<double>{5, 6});
  CHECK(of("tokens") == std::vector<double>{30, 50});
  CHECK(of("seconds") == std::vector<double>{0.5, 0.75});
  CHECK_THROWS_WITH(of("token"), Contains("did you mean \"tokens\"?"));
  CHECK_THROWS_WITH(view::plots(runs, {.charts = {{"los"}}}), Contains("did you mean \"loss\"?"));
}

TEST_CASE("a table has a row for each step, and numbers that are read back to the bit") {
  const test::Folder folder;
  const std::vector<Run> runs = {
      run_of(folder, "a,b", "{\"step\":1,\"loss\":0.1}\n{\"step\":2,\"loss\":null}\n"),
      run_of(folder, "c", "{\"step\":1,\"lr\":1e-05}\n")};
  CHECK(view::to_csv(runs, {}) ==
        "run,step,loss,lr\r\n\"a,b\",1,0.10000000000000001,\r\n\"a,b\",2,,\r\n"
        "c,1,,1.0000000000000001e-05\r\n");
  CHECK(view::to_csv(runs, {.charts = {{"lr"}}}).starts_with("run,step,lr\r\n"));
}
