#include "profile/database.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "tests/support/torch_test.h"

namespace perigee::profile {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::temp_directory_path() / fmt::format("perigee-profile-{}", getpid());
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
  std::string file() const { return (path / "deep" / "profile.sqlite").string(); }
};

struct Warnings : log::Sink {
  int count = 0;
  void write(log::Level level, std::string_view) override { count += level == log::Level::warn; }
  Warnings() { log::set_sink(this); }
  ~Warnings() override { log::set_sink(nullptr); }
};

TEST_CASE("entries are stored by kind, device and content, and persist") {
  const Folder folder;
  {
    Database database(folder.file());
    REQUIRE_FALSE(database.find({"trace", "cpu", "mm"}));
    database.put({"trace", "cpu", "mm"}, "one");
    database.put({"trace", "cpu", "mm"}, "two");
    database.put({"trace", "gpu", "mm"}, "three");
  }
  Database database(folder.file());
  REQUIRE(database.find({"trace", "cpu", "mm"}) == "two");
  REQUIRE(database.find({"trace", "gpu", "mm"}) == "three");
  REQUIRE_FALSE(database.find({"time", "cpu", "mm"}));
}

TEST_CASE("a damaged database is recreated with one warning") {
  const Folder folder;
  { Database(folder.file()).put({"trace", "cpu", "mm"}, std::string(100000, 'x')); }
  const std::string damage = GENERATE("not a database", "torn", "empty");
  if (damage == "not a database") {
    std::ofstream(folder.file()) << std::string(5000, 'z');
  } else if (damage == "torn") {
    std::fstream file(folder.file(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    file << std::string(60000, 'z');
  } else {
    std::ofstream file(folder.file(), std::ios::trunc);
  }
  Warnings warnings;
  Database database(folder.file());
  database.find({"trace", "cpu", "mm"});
  database.put({"trace", "cpu", "add"}, "new");
  REQUIRE(database.find({"trace", "cpu", "add"}) == "new");
  REQUIRE(warnings.count == (damage == "empty" ? 0 : 1));
}

TEST_CASE("a path that cannot be created is an error that names it") {
  REQUIRE_THROWS_WITH(Database("/proc/nowhere/profile.sqlite"), Catch::Contains("/proc/nowhere"));
  REQUIRE_THROWS_WITH(Database("/"), Catch::Contains("/ must be a writable file"));
}

TEST_CASE("four processes write and read one new file at once") {
  const Folder folder;
  std::vector<pid_t> children;
  for (int process = 0; process < 4; ++process) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      int status = 1;
      try {
        Database database(folder.file());
        for (int i = 0; i < 50; ++i) {
          database.put({"trace", "cpu", std::to_string(process * 100 + i)}, std::to_string(i));
          database.put({"trace", "cpu", "shared"}, std::to_string(process));
        }
        status = database.find({"trace", "cpu", std::to_string(process * 100 + 49)}) == "49" ? 0
                                                                                             : 2;
      } catch (const std::exception&) {
      }
      _exit(status);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    REQUIRE(status == 0);
  }
  Database database(folder.file());
  for (int process = 0; process < 4; ++process) {
    for (int i = 0; i < 50; ++i)
      REQUIRE(database.find({"trace", "cpu", std::to_string(process * 100 + i)}));
  }
}

}  // namespace
}  // namespace perigee::profile
