#include "profile/database.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/log.h"
#include "tests/support/torch_test.h"

namespace perigee::profile {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  explicit Folder(const std::string& name = "")
      : path(fs::temp_directory_path() / fmt::format("perigee-profile-{}-{}", name, getpid())) {
    fs::remove_all(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string file() const { return (path / "deep" / "profile.sqlite").string(); }
};

struct Lines : log::Sink {
  std::vector<std::string> all;
  void write(log::Level, std::string_view text) override { all.emplace_back(text); }
  Lines() { log::set_sink(this); }
  ~Lines() override { log::set_sink(nullptr); }
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

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

// Damages a file of which a row is long.
void damage(const std::string& path, const std::string& how) {
  if (how == "not a database") {
    std::ofstream(path) << std::string(5000, 'z');
  } else if (how == "torn") {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    file << std::string(60000, 'z');
  } else if (how == "cut short") {
    fs::resize_file(path, 5000);
  } else if (how == "zeros") {
    std::ofstream(path) << std::string(8192, '\0');
  }
}

TEST_CASE("a damaged database is kept under another name and made anew, with one line") {
  const auto how = GENERATE(as<std::string>(), "not a database", "torn", "cut short");
  INFO(how);
  const Folder folder(how);
  { Database(folder.file()).put({"trace", "cpu", "mm"}, std::string(100000, 'x')); }
  damage(folder.file(), how);
  const auto bytes = read(folder.file());
  Lines lines;
  Database database(folder.file());
  database.find({"trace", "cpu", "mm"});
  database.put({"trace", "cpu", "add"}, "new");
  REQUIRE(database.find({"trace", "cpu", "add"}) == "new");
  database.require_file();
  REQUIRE(lines.all == std::vector<std::string>{fmt::format(
                           "profile: {0} was damaged: it is kept as {0}.damaged, and measurements "
                           "begin anew",
                           folder.file())});
  REQUIRE(read(folder.file() + ".damaged") == bytes);
  REQUIRE(Database(folder.file()).find({"trace", "cpu", "add"}) == "new");
}

TEST_CASE("the repair of a database follows no link") {
  const Folder folder;
  Lines lines;
  for (const std::string name : {".damaged", ".repair"}) {
    INFO(name);
    { Database(folder.file()).put({"trace", "cpu", "mm"}, std::string(100000, 'x')); }
    damage(folder.file(), "torn");
    const auto target = (folder.path / ("target" + name)).string();
    if (name == ".damaged") std::ofstream(target) << "kept";  // else the lock would make it
    fs::remove(folder.file() + name);
    fs::create_symlink(target, folder.file() + name);
    Database database(folder.file());
    database.find({"trace", "cpu", "mm"});
    database.put({"trace", "cpu", "add"}, "new");
    REQUIRE(database.find({"trace", "cpu", "add"}) == "new");
    REQUIRE(fs::exists(target) == (name == ".damaged"));
    REQUIRE(read(target) == (name == ".damaged" ? "kept" : ""));
    fs::remove(folder.file() + name);
  }
}

TEST_CASE("an empty file becomes a database") {
  const Folder folder;
  fs::create_directories(fs::path(folder.file()).parent_path());
  std::ofstream(folder.file()).close();
  Lines lines;
  Database(folder.file()).put({"trace", "cpu", "add"}, "new");
  REQUIRE(Database(folder.file()).find({"trace", "cpu", "add"}) == "new");
  REQUIRE(lines.all.empty());
}

TEST_CASE("another version's database stays as it is, and this version's is beside it") {
  const Folder folder("version");
  { Database(folder.file()).put({"trace", "cpu", "mm"}, "theirs"); }
  {
    std::fstream file(folder.file(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(60);  // user_version, big endian
    file << std::string("\0\0\0\7", 4);
  }
  const auto bytes = read(folder.file());
  Lines lines;
  for (const auto* value : {"one", "two"}) {
    Database database(folder.file());
    REQUIRE(database.path() == folder.path / "deep" / "profile.v1.sqlite");
    database.require_file();
    REQUIRE(database.find({"trace", "cpu", "mm"}).value_or("none") ==
            (value == std::string("one") ? "none" : "one"));
    database.put({"trace", "cpu", "mm"}, value);
  }
  REQUIRE(read(folder.file()) == bytes);
  REQUIRE(lines.all == std::vector<std::string>{fmt::format(
                           "profile: {} is of another version and stays as it "
                           "is; measurements of this version are in {}",
                           folder.file(), (folder.path / "deep" / "profile.v1.sqlite").string())});
}

TEST_CASE("where no file can be written, entries are in memory, with one line") {
  const Folder folder("none");
  fs::create_directories(folder.path);
  std::ofstream(folder.path / "file") << "mine";
  const std::pair<std::string, std::string> cases[] = {
      {"", "neither XDG_CACHE_HOME nor HOME names a folder for them"},
      {"/proc/nowhere/profile.sqlite", "the folder /proc/nowhere cannot be made ("},
      {folder.path / "file" / "profile.sqlite", "the folder " + (folder.path / "file").string()},
      {"/", "/ cannot be written (unable to open database file)"}};
  for (const auto& [path, why] : cases) {
    INFO(path);
    Lines lines;
    for (int opening = 0; opening < 2; ++opening) {
      Database database(path);
      REQUIRE_FALSE(database.find({"trace", "cpu", "mm"}));
      database.put({"trace", "cpu", "mm"}, "here");
      REQUIRE(database.find({"trace", "cpu", "mm"}) == "here");
      REQUIRE_THROWS_WITH(database.require_file(), Catch::Contains(why));
    }
    REQUIRE(lines.all.size() == 1);
    REQUIRE_THAT(lines.all[0],
                 Catch::StartsWith("profile: measurements are kept in memory only: " + why));
    Database(path, {.tells = false});
    REQUIRE(lines.all.size() == 1);
  }
}

TEST_CASE("a database that can only be read is read") {
  const Folder folder("read-only");
  { Database(folder.file()).put({"trace", "cpu", "mm"}, "theirs"); }
  const auto place = fs::path(folder.file()).parent_path();
  fs::permissions(folder.file(), fs::perms(0444));
  fs::permissions(place, fs::perms(0555));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // permissions do not bind root
    if (::getuid() == 0 && ::setuid(65534) != 0) _exit(3);
    Database database(folder.file());
    const bool read = database.find({"trace", "cpu", "mm"}) == "theirs";
    database.put({"trace", "cpu", "mm"}, "ours");
    _exit(read && database.find({"trace", "cpu", "mm"}) == "ours" ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  fs::permissions(place, fs::perms::owner_all);
  REQUIRE(status == 0);
  REQUIRE(Database(folder.file()).find({"trace", "cpu", "mm"}) == "theirs");
}

// Four processes open the file, write and read in each of `rounds` rounds. Checks that all succeed.
void use_at_once(const std::string& file, int rounds, const DatabaseOptions& options,
                 const std::function<void(int round)>& before) {
  int go[2], done[2];
  REQUIRE(::pipe(go) == 0);
  REQUIRE(::pipe(done) == 0);
  std::vector<pid_t> children;
  for (int process = 0; process < 4; ++process) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::close(go[1]);
      alarm(240);
      char result = 'y';
      for (int round = 0; round < rounds && result == 'y'; ++round) {
        char byte;
        if (::read(go[0], &byte, 1) != 1) _exit(3);
        try {
          const auto content = fmt::format("{}/{}", process, round);
          Database database(file, options);
          database.find({"trace", "cpu", "mm"});
          database.put({"trace", "cpu", content}, content);
          if (database.find({"trace", "cpu", content}) != content) result = 'n';
        } catch (const std::exception& error) {
          std::fprintf(stderr, "%s\n", error.what());
          result = 'n';
        }
        if (::write(done[1], &result, 1) != 1) _exit(4);
      }
      _exit(result == 'y' ? 0 : 1);
    }
    children.push_back(child);
  }
  ::close(done[1]);
  bool all = true;
  for (int round = 0; round < rounds && all; ++round) {
    before(round);
    all = ::write(go[1], "gogo", 4) == 4;
    for (int process = 0; process < 4 && all; ++process) {
      char result = 'n';
      all = ::read(done[0], &result, 1) == 1 && result == 'y';
    }
    INFO("round " << round);
    CHECK(all);
  }
  ::close(go[1]);
  for (pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  ::close(go[0]);
  ::close(done[0]);
}

void use_damaged_and_locked(int rounds) {
  const Folder folder("rounds");
  std::vector<std::string> ways = {"not a database", "torn", "cut short", "zeros"};
  use_at_once(folder.file(), rounds, {}, [&](int round) {
    for (const char* more : {"", "-wal", "-shm"}) fs::remove(folder.file() + more);
    { Database(folder.file()).put({"trace", "cpu", "mm"}, std::string(100000, 'x')); }
    damage(folder.file(), ways[static_cast<size_t>(round) % ways.size()]);
  });
  Database(folder.file()).require_file();
  // Another program holds the file's lock.
  const Folder locked("locked");
  { Database(locked.file()).put({"trace", "cpu", "mm"}, "old"); }
  sqlite3* holder = nullptr;
  REQUIRE(sqlite3_open(locked.file().c_str(), &holder) == SQLITE_OK);
  REQUIRE(sqlite3_exec(holder, "PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE", nullptr, nullptr,
                       nullptr) == SQLITE_OK);
  use_at_once(locked.file(), rounds, {.busy = std::chrono::milliseconds(10)}, [](int) {});
  sqlite3_close(holder);
  Database database(locked.file());
  REQUIRE(database.find({"trace", "cpu", "mm"}) == "old");
  REQUIRE(database.all().size() == 1);
}

TEST_CASE("four processes on a damaged or locked database all succeed") {
  use_damaged_and_locked(8);
}

TEST_CASE("four processes succeed on a damaged or locked database 200 times", "[.long]") {
  use_damaged_and_locked(200);
}

TEST_CASE("a write lock that another program holds costs one wait, and entries are still read") {
  const Folder folder("write lock");
  { Database(folder.file()).put({"trace", "cpu", "mm"}, "old"); }
  sqlite3* holder = nullptr;
  REQUIRE(sqlite3_open(folder.file().c_str(), &holder) == SQLITE_OK);
  REQUIRE(sqlite3_exec(holder, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) == SQLITE_OK);
  Lines lines;
  Database database(folder.file(), {.busy = std::chrono::milliseconds(10)});
  REQUIRE(database.find({"trace", "cpu", "mm"}) == "old");
  for (const auto* content : {"add", "sub"}) {
    database.put({"trace", "cpu", content}, "new");
    REQUIRE(database.find({"trace", "cpu", content}) == "new");
  }
  REQUIRE(database.find({"trace", "cpu", "mm"}) == "old");
  REQUIRE(lines.all == std::vector<std::string>{fmt::format(
                           "profile: measurements are kept in memory only: another process has had "
                           "{} locked for 0.01 s; XDG_CACHE_HOME moves them",
                           folder.file())});
  sqlite3_close(holder);
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
