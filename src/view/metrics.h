// The steps of a run as columns of numbers, read from its metrics.jsonl while the run may write it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::view {

class Metrics {
 public:
  // `path`: of metrics.jsonl, which need not exist yet.
  explicit Metrics(std::string path) : path_(std::move(path)) {}

  // Reads the whole lines that were added since the last call, and returns whether there are any.
  // A file whose last line that was read has changed, since a run went back to an earlier step, is
  // read from its beginning. Lines that are no JSON objects are counted and left out. Throws Error
  // naming a file that exists and cannot be read.
  bool read();

  int64_t rows() const { return rows_; }  // optimizer steps
  int64_t damaged() const { return damaged_; }
  // The object of the last summary; null before the first.
  const nlohmann::json& summary() const { return summary_; }

  // Returns the columns' names in the order in which the file first has them: a key with a number
  // ("loss"; true and false are 1 and 0), or an entry of a list ("peak_bytes[3]").
  const std::vector<std::string>& names() const { return names_; }
  // Returns the column, one number for each row, NaN where the row has none, or nullptr.
  const std::vector<double>* find(std::string_view name) const;

 private:
  bool is_same(int file) const;
  void add(std::string_view line);
  void set(const std::string& name, double value);

  std::string path_;
  int64_t offset_ = 0;  // up to here the file's lines have been read
  std::string last_;    // the last of them, with its end
  int64_t rows_ = 0, damaged_ = 0;
  nlohmann::json summary_;
  std::vector<std::string> names_;
  std::map<std::string, std::vector<double>, std::less<>> columns_;
};

}  // namespace perigee::view
