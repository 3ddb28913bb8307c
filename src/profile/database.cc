#include "profile/database.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>

#include "base/fail.h"
#include "base/log_once.h"
#include "profile/sqlite.h"

namespace perigee::profile {
namespace {

namespace fs = std::filesystem;

// Returns "profile.v1.sqlite" for "profile.sqlite".
std::string name_of_version(const std::string& path) {
  const fs::path named(path);
  auto beside = named.parent_path() / named.stem();
  beside += fmt::format(".v{}", kVersion);
  beside += named.extension();
  return beside.string();
}

// Returns why the folder of a file is no folder; "" where it is one, made if it was missing.
std::string no_folder(const std::string& path) {
  const auto folder = fs::path(path).parent_path();
  if (folder.empty()) return "";
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return "";
  return fmt::format("the folder {} cannot be made ({})", folder.string(), error.message());
}

bool is_good(int status) {
  return status == SQLITE_OK || status == SQLITE_ROW || status == SQLITE_DONE;
}

}  // namespace

struct Database::Impl {
  std::string path;
  DatabaseOptions options;
  Connection connection;
  std::mutex mutex;
  std::string why_memory;  // "": entries are in the file

  Impl(std::string file, const DatabaseOptions& given)
      : path(std::move(file)), options(given), connection(given.busy) {}

  void open() {
    if (path.empty()) return use_memory("neither XDG_CACHE_HOME nor HOME names a folder for them");
    if (const auto why = no_folder(path); !why.empty()) return use_memory(why);
    int status = connection.open(path);
    if (status == SQLITE_MISMATCH) {
      const auto other = std::exchange(path, name_of_version(path));
      status = connection.open(path);
      if (options.tells) {
        log::once(log::Level::info,
                  fmt::format("profile: {} is of another version and stays as it is; measurements "
                              "of this version are in {}",
                              other, path));
      }
    }
    if (!is_good(status)) recover(status);
  }

  // Makes the connection usable after an error.
  void recover(int status) {
    bool emptied = false;
    if (says_damaged(status)) status = connection.repair(path, emptied);
    if (emptied) {
      log::once(log::Level::warn, fmt::format("profile: {} was damaged: it is kept as {}.damaged, "
                                              "and measurements begin anew",
                                              path, path));
    }
    if (is_good(status)) return;
    const bool locked = (status & 0xff) == SQLITE_BUSY || (status & 0xff) == SQLITE_LOCKED;
    use_memory(locked ? fmt::format("another process has had {} locked for {} s", path,
                                    std::chrono::duration<double>(options.busy).count())
                      : fmt::format("{} cannot be written ({})", path, sqlite3_errstr(status)));
  }

  void use_memory(const std::string& why) {
    why_memory = why;
    const int status = connection.open_memory();
    if (!is_good(status)) {
      fail_run("profile", "entries must fit into memory, but got: {}", sqlite3_errstr(status));
    }
    connection.copy_from(path);
    if (!options.tells) return;
    log::once(log::Level::warn,
              fmt::format("profile: measurements are kept in memory only: {}; XDG_CACHE_HOME moves "
                          "them",
                          why));
  }

  // Calls `use`, which returns SQLite's status, until it succeeds: with the file, the repaired
  // file, or a database in memory.
  void run(const std::function<int()>& use) {
    int status = use();
    for (int attempt = 0; attempt < 3 && !is_good(status); ++attempt) {
      if (!why_memory.empty()) break;
      recover(status);
      status = use();
    }
    if (!is_good(status)) {
      fail_run("profile", "entries must be readable, but got: {}", sqlite3_errstr(status));
    }
  }

  // Runs the statement with the key's parts as its first values.
  int step(Statement& statement, const Key& key) {
    statement.bind(1, key.kind);
    statement.bind(2, key.device);
    statement.bind(3, key.content);
    return statement.step();
  }
};

Database::Database(const std::string& path, const DatabaseOptions& options)
    : impl_(std::make_unique<Impl>(path, options)) {
  impl_->open();
}

Database::~Database() = default;
Database::Database(Database&&) noexcept = default;

const std::string& Database::path() const { return impl_->path; }

void Database::require_file() const {
  if (impl_->why_memory.empty()) return;
  fail("profile", "measurements must be kept in a file, but {}; XDG_CACHE_HOME moves it",
       impl_->why_memory);
}

std::optional<std::string> Database::find(const Key& key) {
  std::lock_guard lock(impl_->mutex);
  std::optional<std::string> found;
  impl_->run([&] {
    Statement statement(impl_->connection.get(),
                        "SELECT value FROM entry WHERE kind=?1 AND device=?2 AND content=?3");
    const int status = impl_->step(statement, key);
    if (status == SQLITE_ROW) found = statement.text(0);
    return status;
  });
  return found;
}

std::vector<std::pair<Database::Key, std::string>> Database::all() {
  std::lock_guard lock(impl_->mutex);
  std::vector<std::pair<Key, std::string>> entries;
  impl_->run([&] {
    entries.clear();
    Statement statement(impl_->connection.get(),
                        "SELECT kind, device, content, value FROM entry ORDER BY 1, 2, 3");
    int status = SQLITE_OK;
    while ((status = statement.step()) == SQLITE_ROW) {
      entries.push_back(
          {{statement.text(0), statement.text(1), statement.text(2)}, statement.text(3)});
    }
    return status;
  });
  return entries;
}

std::vector<std::string> Database::devices(const std::string& kind) {
  std::lock_guard lock(impl_->mutex);
  std::vector<std::string> list;
  impl_->run([&] {
    list.clear();
    Statement statement(impl_->connection.get(),
                        "SELECT DISTINCT device FROM entry WHERE kind=?1 ORDER BY 1");
    statement.bind(1, kind);
    int status = SQLITE_OK;
    while ((status = statement.step()) == SQLITE_ROW) list.push_back(statement.text(0));
    return status;
  });
  return list;
}

void Database::put(const Key& key, const std::string& value) {
  std::lock_guard lock(impl_->mutex);
  impl_->run([&] {
    Statement statement(impl_->connection.get(),
                        "INSERT OR REPLACE INTO entry VALUES(?1, ?2, ?3, ?4)");
    statement.bind(4, value);
    return impl_->step(statement, key);
  });
}

}  // namespace perigee::profile
