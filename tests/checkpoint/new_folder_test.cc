// A folder that is written whole or not at all.
#include "checkpoint/weights/new_folder.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
namespace fs = std::filesystem;

TEST_CASE("a new folder may be named with a slash at its end") {
  const test::Folder folder;
  const auto write = [](const std::string& path) { std::ofstream(path + "/config.json") << "{}"; };
  fs::create_directory(folder.at("empty"));
  for (const std::string name : {"plain", "slash/", "empty/", "dot/."}) {
    INFO(name);
    checkpoint::write_new_folder(folder.at(name), "--hf", write);
    CHECK(fs::is_regular_file(fs::path(folder.at(name)) / "config.json"));
  }
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 4);
}

TEST_CASE("a folder that cannot get its name leaves nothing") {
  const test::Folder folder;
  const auto taken = [&](const std::string&) {
    fs::create_directories(folder.at("model/another"));
  };
  CHECK_THROWS_AS(checkpoint::write_new_folder(folder.at("model"), "--hf", taken), Error);
  CHECK(fs::exists(folder.at("model/another")));
  CHECK_FALSE(fs::exists(folder.at("model.partial")));
}
