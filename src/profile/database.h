// What has been measured on this machine, kept in one SQLite file: entries by kind ("trace",
// "time", "collective"), device and content. Several threads and processes may use one file at a
// time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace perigee::profile {

class Database {
 public:
  // Opens the file, making it and its folder where they are missing. A file that is damaged, or of
  // another version, is made anew, with one warning. Throws Error when the file can be neither
  // opened nor made.
  explicit Database(const std::string& path);
  ~Database();
  Database(Database&&) noexcept;

  struct Key {
    std::string kind;
    std::string device;   // what the entry depends on: device_kind()
    std::string content;  // what was measured
  };

  std::optional<std::string> find(const Key& key);

  // Returns every entry with its value, sorted by kind, device and content.
  std::vector<std::pair<Key, std::string>> all();

  // Returns the devices that entries of a kind are of, ascending.
  std::vector<std::string> devices(const std::string& kind);

  // Adds or replaces an entry. Where the disk is full, warns once and drops it: a profile is only a
  // memory.
  void put(const Key& key, const std::string& value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::profile
