// The table at the end of a run.
#include "view/run_summary.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace perigee::view {
namespace {

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

}  // namespace

TEST_CASE("a run's table has its losses, speed, memory and newest complete checkpoint") {
  const test::Folder folder;
  const auto run = folder.at("run");
  write(run + "/metrics.jsonl",
        "{\"step\":1,\"loss\":5.5,\"samples\":8,\"tokens\":256,\"val_loss\":4.5}\n"
        "{\"step\":2,\"loss\":4.75,\"samples\":8,\"tokens\":256,\"val_loss\":4.625}\n"
        "{\"summary\":{\"step_s\":0.5,\"peak_bytes\":[1024,3072],"
        "\"predicted_peak_bytes\":[1024,2048],\"mfu\":0.25}}\n");
  write(run + "/checkpoints/step-9/COMPLETE", "");
  write(run + "/checkpoints/step-10/COMPLETE", "");
  write(run + "/checkpoints/step-11/index.json", "");  // not complete
  write(run + "/checkpoints/step-12.aside-1/COMPLETE", "");
  CHECK(summary_rows(run) ==
        std::vector<SummaryRow>{{"loss", "4.7500 after step 2"},
                                {"validation loss", "4.6250, lowest 4.5000 after step 1"},
                                {"speed", "512 tokens/s, 500.0 ms a step"},
                                {"peak memory", "3 KiB counted, 2 KiB predicted"},
                                {"utilisation", "25.0% of the devices' peak"},
                                {"checkpoint", run + "/checkpoints/step-10"}});
}

TEST_CASE("what a run does not have is left out of its table") {
  const test::Folder folder;
  CHECK(summary_rows(folder.at("none")).empty());
  const auto run = folder.at("run");
  write(run + "/metrics.jsonl",
        "{\"step\":1,\"loss\":null,\"samples\":8,\"tokens\":0}\n"
        "{\"summary\":{\"step_s\":2,\"peak_bytes\":[]}}\n");
  CHECK(summary_rows(run) == std::vector<SummaryRow>{{"speed", "4 samples/s, 2000.0 ms a step"}});
}

TEST_CASE("a table's texts begin at one column") {
  CHECK(aligned({{"loss", "1"}, {"checkpoint", "a b"}}) ==
        std::vector<std::string>{"loss        1", "checkpoint  a b"});
}

}  // namespace perigee::view
