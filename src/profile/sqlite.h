// A connection to a SQLite file of profile entries, and the recovery of a damaged one.
#pragma once

#include <sqlite3.h>

#include <chrono>
#include <string>

namespace perigee::profile {

// The version of the table, which the file holds as its user_version.
inline constexpr int kVersion = 1;

// A statement, finalized with its scope.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) {
    status_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void bind(int position, const std::string& text) {
    sqlite3_bind_text(statement_, position, text.data(), static_cast<int>(text.size()),
                      SQLITE_TRANSIENT);
  }
  // Returns SQLITE_ROW, SQLITE_DONE or an error.
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

// Returns whether the status says that the file's content is not that of a database.
bool says_damaged(int status);

// The functions return SQLite's status.
class Connection {
 public:
  // `busy`: how long a call waits for other processes' locks.
  explicit Connection(std::chrono::milliseconds busy) : busy_(busy) {}
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  sqlite3* get() const { return db_; }
  // Opens or creates the file, with the table. SQLITE_READONLY where it can only be read,
  // SQLITE_MISMATCH where it is of another version; it then stays as it is.
  int open(const std::string& path);
  // Opens an empty database in memory.
  int open_memory();
  // Copies the entries of a file that can be read, if any.
  void copy_from(const std::string& path);
  // Empties a damaged file after copying it to `path`.damaged, and opens it. Where another process
  // has done so before, opens it as it is; `emptied` says which.
  int repair(const std::string& path, bool& emptied);
  void close();

 private:
  int open_file(const std::string& path, int flags);
  int execute(const std::string& sql);
  int prepare_table();
  int user_version();
  bool is_sound();

  std::chrono::milliseconds busy_;
  sqlite3* db_ = nullptr;
};

}  // namespace perigee::profile
