#include "base/file.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/glob.h"

TEST_CASE("a file is read whole, one that cannot be read is an error with the reason") {
  CHECK(perigee::read_file("LICENSE", "test").size() > 10000);
  CHECK(perigee::read_file("/dev/null", "test") == "");
  CHECK_THROWS_WITH(perigee::read_file("no/such", "test"),
                    "[test] cannot read \"no/such\": No such file or directory");
  CHECK_THROWS_WITH(perigee::read_file("src", "test"),
                    "[test] cannot read \"src\": Is a directory");
}

TEST_CASE("a pattern finds files, sorted, and no folders") {
  using Strings = std::vector<std::string>;
  CHECK(perigee::glob_files("src/base/glob.*") == Strings{"src/base/glob.cc", "src/base/glob.h"});
  CHECK(perigee::glob_files("LICENSE") == Strings{"LICENSE"});
  CHECK(perigee::glob_files("sr?") == Strings{});
  CHECK(perigee::glob_files("no/such*") == Strings{});
}
