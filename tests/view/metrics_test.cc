// Metrics of a run that goes on, goes back, or is damaged.
#include "view/metrics.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

using namespace perigee;
using view::Metrics;

namespace {

void append(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

std::vector<double> column(const Metrics& metrics, const std::string& name) {
  const auto* found = metrics.find(name);
  REQUIRE(found);
  return *found;
}

}  // namespace

TEST_CASE("columns have a number for each row, and none where a row lacks the key") {
  const test::Folder folder;
  const auto path = folder.add(
      "metrics.jsonl",
      "{\"step\":1,\"loss\":2.5,\"peak_bytes\":[7,8]}\n"
      "{\"step\":2,\"loss\":null,\"skipped\":true,\"peak_bytes\":[9,10],\"bad\":\"nan\"}\n"
      "{\"summary\":{\"steps\":2}}\n");
  Metrics metrics(path);
  CHECK(metrics.read());
  CHECK(metrics.rows() == 2);
  CHECK(metrics.names() ==
        std::vector<std::string>{"step", "loss", "peak_bytes[0]", "peak_bytes[1]", "skipped"});
  CHECK(column(metrics, "step") == std::vector<double>{1, 2});
  CHECK(column(metrics, "loss")[0] == 2.5);
  CHECK(std::isnan(column(metrics, "loss")[1]));
  CHECK(std::isnan(column(metrics, "skipped")[0]));
  CHECK(column(metrics, "skipped")[1] == 1);
  CHECK(column(metrics, "peak_bytes[1]") == std::vector<double>{8, 10});
  CHECK(metrics.find("bad") == nullptr);
  CHECK(metrics.summary()["steps"] == 2);
  CHECK_FALSE(metrics.read());
}

TEST_CASE("a file is followed line by line, and read anew once its run goes back") {
  const test::Folder folder;
  const auto path = folder.at("metrics.jsonl");
  Metrics metrics(path);
  CHECK_FALSE(metrics.read());  // there is no file yet
  append(path, "{\"step\":1,\"loss\":3}\n{\"step\":2,\"lo");
  CHECK(metrics.read());
  CHECK(metrics.rows() == 1);
  append(path, "ss\":2}\nno JSON\n{\"step\":3,\"loss\":1}\n");
  CHECK(metrics.read());
  CHECK(column(metrics, "loss") == std::vector<double>{3, 2, 1});
  CHECK(metrics.damaged() == 1);
  // The run goes back to step 1, and has as many bytes again.
  std::filesystem::resize_file(path, std::string("{\"step\":1,\"loss\":3}\n").size());
  append(path,
         "{\"step\":2,\"loss\":7}\nno JSON\n{\"step\":3,\"loss\":6}\n{\"step\":4,\"loss\":5}\n");
  CHECK(metrics.read());
  CHECK(column(metrics, "loss") == std::vector<double>{3, 7, 6, 5});
}

TEST_CASE("a folder in the place of the file is an error that names it") {
  const test::Folder folder;
  Metrics metrics(folder.path());
  CHECK_THROWS_WITH(metrics.read(), Catch::Contains("must be readable"));
}
