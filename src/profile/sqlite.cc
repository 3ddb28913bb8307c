#include "profile/sqlite.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

namespace perigee::profile {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kInsert = "INSERT OR REPLACE INTO entry VALUES(?1, ?2, ?3, ?4)";
constexpr const char* kAll = "SELECT kind, device, content, value FROM entry";
constexpr std::chrono::milliseconds kRetry{5};

int primary(int status) { return status & 0xff; }

// Returns a path as SQLite's URI.
std::string uri_of(const std::string& path) {
  std::string uri = "file:";
  for (const unsigned char c : path) {
    const bool plain = std::isalnum(c) || c == '/' || c == '.' || c == '-' || c == '_';
    uri += plain ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02x}", c);
  }
  return uri;
}

// The lock under which a damaged file is emptied: processes that all saw the damage empty it once.
class RepairLock {
 public:
  RepairLock(const std::string& path, std::chrono::milliseconds limit)
      : fd_(::open((path + ".repair").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666)) {
    const auto end = Clock::now() + limit;
    while (fd_ >= 0 && !(held_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0) && Clock::now() < end) {
      std::this_thread::sleep_for(kRetry);
    }
  }
  ~RepairLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  RepairLock(const RepairLock&) = delete;
  RepairLock& operator=(const RepairLock&) = delete;
  bool is_open() const { return fd_ >= 0; }
  bool is_held() const { return held_; }

 private:
  int fd_;
  bool held_ = false;
};

}  // namespace

bool says_damaged(int status) {
  return primary(status) == SQLITE_CORRUPT || primary(status) == SQLITE_NOTADB;
}

void Connection::close() {
  sqlite3_close_v2(db_);
  db_ = nullptr;
}

int Connection::execute(const std::string& sql) {
  return sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
}

int Connection::open_file(const std::string& path, int flags) {
  close();
  const int status = sqlite3_open_v2(path.c_str(), &db_, flags | SQLITE_OPEN_FULLMUTEX, nullptr);
  if (status == SQLITE_OK) sqlite3_busy_timeout(db_, static_cast<int>(busy_.count()));
  return status;
}

int Connection::user_version() {
  Statement statement(db_, "PRAGMA user_version");
  return statement.step() == SQLITE_ROW ? statement.number(0) : -1;
}

int Connection::prepare_table() {
  return execute(
      fmt::format("BEGIN IMMEDIATE;"
                  "CREATE TABLE IF NOT EXISTS entry(kind TEXT NOT NULL, device TEXT NOT NULL,"
                  " content TEXT NOT NULL, value TEXT NOT NULL,"
                  " PRIMARY KEY(kind, device, content)) WITHOUT ROWID;"
                  "PRAGMA user_version={};"
                  "COMMIT",
                  kVersion));
}

int Connection::open(const std::string& path) {
  int status = open_file(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (status != SQLITE_OK) return status;
  if (sqlite3_db_readonly(db_, "main") == 1) return SQLITE_READONLY;
  // Before anything is written: another version's file stays as it is.
  if (const int found = user_version(); found > 0 && found != kVersion) return SQLITE_MISMATCH;
  // Switching to WAL fails at once if another process is switching: retry.
  const auto limit = Clock::now() + busy_;
  while (primary(status = execute("PRAGMA journal_mode=WAL")) == SQLITE_BUSY &&
         Clock::now() < limit) {
    std::this_thread::sleep_for(kRetry);
  }
  if (status != SQLITE_OK) return status;
  status = execute("PRAGMA synchronous=NORMAL");
  if (status != SQLITE_OK) return status;
  const int found = user_version();
  if (found > 0 && found != kVersion) return SQLITE_MISMATCH;
  if (found == kVersion) {
    Statement probe(db_, "SELECT kind FROM entry LIMIT 1");
    status = probe.step();
    if (status == SQLITE_ROW || status == SQLITE_DONE) return SQLITE_OK;
    if (primary(status) != SQLITE_ERROR) return status;  // SQLITE_ERROR: no such table
  }
  return prepare_table();
}

int Connection::open_memory() {
  const int status = open_file(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  return status == SQLITE_OK ? prepare_table() : status;
}

void Connection::copy_from(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  // Where neither the folder nor its files can be written, SQLite reads a file in WAL mode only if
  // told that no process changes it.
  for (const auto* mode : {"?mode=ro", "?immutable=1"}) {
    Connection file(std::chrono::milliseconds(100));
    if (file.open_file(uri_of(path) + mode, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI) != SQLITE_OK) {
      continue;
    }
    if (const int version = file.user_version(); version != kVersion) continue;
    Statement entries(file.get(), kAll);
    int status = SQLITE_OK;
    while ((status = entries.step()) == SQLITE_ROW) {
      Statement insert(db_, kInsert);
      for (int column = 0; column < 4; ++column) insert.bind(column + 1, entries.text(column));
      insert.step();
    }
    if (status == SQLITE_DONE) return;
  }
}

bool Connection::is_sound() {
  Statement check(db_, "PRAGMA quick_check(1)");
  return check.step() == SQLITE_ROW && check.text(0) == "ok";
}

int Connection::repair(const std::string& path, bool& emptied) {
  emptied = false;
  close();  // an open connection keeps others from changing the journal's mode
  const RepairLock lock(path, busy_);
  if (!lock.is_held()) return lock.is_open() ? SQLITE_BUSY : SQLITE_CANTOPEN;
  int status = open(path);
  if (status == SQLITE_OK && is_sound()) return status;
  if (status != SQLITE_OK && !says_damaged(status)) return status;
  std::error_code ignored, copy_error;
  fs::remove(path + ".damaged", ignored);  // a copy to a link would overwrite the link's target
  fs::copy_file(path, path + ".damaged", fs::copy_options::none, copy_error);
  if (copy_error) return SQLITE_IOERR;
  // Under SQLite's own locks: other processes may have the file open.
  status = open_file(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (status != SQLITE_OK) return status;
  sqlite3_db_config(db_, SQLITE_DBCONFIG_RESET_DATABASE, 1, 0);
  status = execute("VACUUM");
  sqlite3_db_config(db_, SQLITE_DBCONFIG_RESET_DATABASE, 0, 0);
  if (status != SQLITE_OK) return status;
  emptied = true;
  return open(path);
}

}  // namespace perigee::profile
