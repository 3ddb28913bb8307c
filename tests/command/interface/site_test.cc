// The documentation site: scripts/docs builds it, and refuses links that lead nowhere.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Contains;
namespace fs = std::filesystem;

TEST_CASE("the documentation site is built, and a link that leads nowhere is refused") {
  const Folder folder;
  // A copy of what it is built from, so that a page may be broken.
  for (const auto* name : {"scripts/docs", "tests/support/packages.py", "src/README.md",
                           "src/adding.md", "src/compile", "runtime", "tools/docs"}) {
    fs::create_directories(fs::path(folder / name).parent_path());
    fs::copy(name, folder / name, fs::copy_options::recursive);
  }
  // The packages stay in the build.
  const auto packages = fs::absolute(fs::path(std::getenv("PERIGEE_BUILD")) / "docs");
  fs::create_directories(packages);
  fs::create_directories(folder / "build");
  fs::create_directory_symlink(packages, folder / "build/docs");
  const auto build = [&] {
    Process process({"/bin/sh", "-c", "exec scripts/docs -o site 2>&1"},
                    {.folder = folder.path(), .seconds = 300});
    return process.wait();
  };
  const auto built = build();
  INFO(built.out);
  if (built.status == 77) {
    WARN("the packages of the site could not be fetched: it was not built");
    return;
  }
  REQUIRE(built.status == 0);
  const auto start = read(folder / "site/index.html");
  CHECK_THAT(start, Contains("<title>Perigee</title>") && Contains("tutorials/strategy.html"));
  CHECK_THAT(start, !Contains("fonts.googleapis") && !Contains("src=\"http"));
  CHECK(fs::exists(folder / "site/methods/fsdp.html"));

  folder.write("runtime/questions.md", "[x](none.md) [y](runs.md#no-such)\n");
  const auto broken = build();
  CHECK(broken.status == 1);
  CHECK_THAT(broken.out, Contains("none.md") && Contains("no-such"));
}
