#include "base/files/file.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "base/error.h"
#include "base/files/durable.h"
#include "base/files/glob.h"

TEST_CASE("read returns a whole file, or throws the reason why it cannot be read") {
  CHECK(perigee::read_file("LICENSE", "test").size() > 10000);
  CHECK(perigee::read_file("/dev/null", "test") == "");
  CHECK_THROWS_WITH(perigee::read_file("no/such", "test"),
                    "[test] cannot read \"no/such\": No such file or directory");
  CHECK_THROWS_WITH(perigee::read_file("src", "test"),
                    "[test] cannot read \"src\": Is a directory");
}

TEST_CASE("a file is anything but a folder") {
  CHECK(perigee::is_file("LICENSE"));
  CHECK(perigee::is_file("/dev/null"));
  CHECK_FALSE(perigee::is_file("src"));
  CHECK_FALSE(perigee::is_file("no/such"));
  CHECK_FALSE(perigee::is_file("LICENSE/such"));
  CHECK_FALSE(perigee::is_file(std::string(300, 'a')));  // a name that no file can have
}

TEST_CASE("a pattern matches files, in sorted order, and no folders") {
  using Strings = std::vector<std::string>;
  CHECK(perigee::glob_files("src/base/files/glob.*") ==
        Strings{"src/base/files/glob.cc", "src/base/files/glob.h"});
  CHECK(perigee::glob_files("LICENSE") == Strings{"LICENSE"});
  CHECK(perigee::glob_files("sr?") == Strings{});
  CHECK(perigee::glob_files("no/such*") == Strings{});
  CHECK(perigee::pattern_of("run[1]/*?\\") == "run\\[1]/\\*\\?\\\\");
}

TEST_CASE("a link planted in place of a temporary file is not followed") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / "perigee_planted_link";
  fs::remove_all(folder);
  fs::create_directory(folder);
  const auto victim = (folder / "victim").string(), path = (folder / "file").string();
  perigee::write_durably(victim, "kept");
  fs::create_symlink(victim, path + ".partial");
  perigee::write_durably(path, "written");
  CHECK(perigee::read_file(victim, "test") == "kept");
  CHECK(perigee::read_file(path, "test") == "written");
  CHECK(!fs::exists(fs::symlink_status(path + ".partial")));
  fs::create_symlink(victim, folder / "link");  // a destination that is a link is followed
  perigee::write_durably((folder / "link").string(), "new");
  CHECK(perigee::read_file(victim, "test") == "new");
  CHECK(fs::is_symlink(folder / "link"));
  fs::remove_all(folder);
}
