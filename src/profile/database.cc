#include "profile/database.h"

#include <sqlite3.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/fail.h"
#include "base/log_format.h"

namespace perigee::profile {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1;
constexpr int kBusyMilliseconds = 20000;

// A statement, finalized with its scope.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) {
    status_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;

  void bind(int position, const std::string& text) {
    sqlite3_bind_text(statement_, position, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
  }
  int step() { return status_ == SQLITE_OK ? sqlite3_step(statement_) : status_; }
  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return {bytes ? bytes : "", static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }
  int number(int column) const { return sqlite3_column_int(statement_, column); }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int status_;
};

// The disk is full, or the file's size limit is reached.
bool full(int status) { return status == SQLITE_FULL || (status & 0xff) == SQLITE_IOERR; }

bool damaged(int status) {
  const int primary = status & 0xff;
  return primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB;
}

}  // namespace

struct Database::Impl {
  std::string path;
  sqlite3* db = nullptr;
  std::mutex mutex;
  bool told_full = false;
  bool in_memory = false;  // the disk has no room to open the file

  ~Impl() { sqlite3_close_v2(db); }

  int execute(const std::string& sql) {
    return sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr);
  }

  int version() {
    Statement statement(db, "PRAGMA user_version");
    return statement.step() == SQLITE_ROW ? statement.number(0) : -1;
  }

  // Returns SQLite's status.
  int open() {
    sqlite3_close_v2(db);
    db = nullptr;
    int status = sqlite3_open_v2(in_memory ? ":memory:" : path.c_str(), &db,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX,
                                 nullptr);
    if (status != SQLITE_OK) return status;
    sqlite3_busy_timeout(db, kBusyMilliseconds);
    // Switching to WAL fails at once if another process is switching: retry.
    const auto limit = std::chrono::steady_clock::now() +
                       std::chrono::milliseconds(kBusyMilliseconds);
    while ((status = execute("PRAGMA journal_mode=WAL")) == SQLITE_BUSY &&
           std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (status != SQLITE_OK) return status;
    if (const int found = version(); found != kVersion && found > 0) return SQLITE_NOTADB;
    return execute(
        "PRAGMA synchronous=NORMAL;"
        "BEGIN IMMEDIATE;"
        "CREATE TABLE IF NOT EXISTS entry(kind TEXT NOT NULL, device TEXT NOT NULL, content TEXT "
        "NOT NULL,"
        " value TEXT NOT NULL, PRIMARY KEY(kind, device, content)) WITHOUT ROWID;"
        "PRAGMA user_version=1;"
        "COMMIT");
  }

  void rebuild() {
    log::warn("profile: {} is damaged or of another version and is replaced", path);
    sqlite3_close_v2(db);
    db = nullptr;
    for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
      std::error_code ignored;
      fs::remove(path + suffix, ignored);
    }
    check(open());
  }

  void warn_full(int status) {
    if (std::exchange(told_full, true)) return;
    log::warn("profile: {} cannot grow ({}); new measurements are not kept", path,
              sqlite3_errstr(status));
  }

  void check(int status) {
    if (status == SQLITE_OK || status == SQLITE_DONE || status == SQLITE_ROW) return;
    fail("profile", "{} must be a writable file, but got: {}", path,
         db ? sqlite3_errmsg(db) : sqlite3_errstr(status));
  }
};

Database::Database(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  if (const auto folder = fs::path(path).parent_path(); !folder.empty()) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
      fail("profile",
           "the folder {} must exist or be created, but got: {}; XDG_CACHE_HOME moves it",
           folder.string(), error.message());
  }
  int status = impl_->open();
  if (full(status)) {
    impl_->warn_full(status);
    impl_->in_memory = true;
    status = impl_->open();
  }
  if (damaged(status)) {
    impl_->rebuild();
  } else {
    impl_->check(status);
  }
}

Database::~Database() = default;
Database::Database(Database&&) noexcept = default;

std::optional<std::string> Database::find(const Key& key) {
  std::lock_guard lock(impl_->mutex);
  int status;
  {
    Statement statement(impl_->db,
                        "SELECT value FROM entry WHERE kind=?1 AND device=?2 AND content=?3");
    statement.bind(1, key.kind);
    statement.bind(2, key.device);
    statement.bind(3, key.content);
    status = statement.step();
    if (status == SQLITE_ROW) return statement.text(0);
    if (full(status)) return std::nullopt;
  }
  if (damaged(status)) {
    impl_->rebuild();
  } else {
    impl_->check(status);
  }
  return std::nullopt;
}

std::vector<std::pair<Database::Key, std::string>> Database::all() {
  std::lock_guard lock(impl_->mutex);
  std::vector<std::pair<Key, std::string>> entries;
  Statement statement(impl_->db, "SELECT kind, device, content, value FROM entry ORDER BY 1, 2, 3");
  int status = statement.step();
  for (; status == SQLITE_ROW; status = statement.step()) {
    entries.push_back(
        {{statement.text(0), statement.text(1), statement.text(2)}, statement.text(3)});
  }
  impl_->check(status);
  return entries;
}

std::vector<std::string> Database::devices(const std::string& kind) {
  std::lock_guard lock(impl_->mutex);
  std::vector<std::string> list;
  Statement statement(impl_->db, "SELECT DISTINCT device FROM entry WHERE kind=?1 ORDER BY 1");
  statement.bind(1, kind);
  int status = statement.step();
  for (; status == SQLITE_ROW; status = statement.step()) list.push_back(statement.text(0));
  impl_->check(status);
  return list;
}

void Database::put(const Key& key, const std::string& value) {
  std::lock_guard lock(impl_->mutex);
  for (int attempt = 0; attempt < 2; ++attempt) {
    int status;
    {
      Statement statement(impl_->db, "INSERT OR REPLACE INTO entry VALUES(?1, ?2, ?3, ?4)");
      statement.bind(1, key.kind);
      statement.bind(2, key.device);
      statement.bind(3, key.content);
      statement.bind(4, value);
      status = statement.step();
    }
    if (full(status)) return impl_->warn_full(status);
    if (!damaged(status)) return impl_->check(status);
    impl_->rebuild();
  }
}

}  // namespace perigee::profile
