// Finds the repeated block, bucket or unit that a name belongs to.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "compile/program.h"

namespace perigee::train {

// Rows of modules whose names differ only in a number: "blocks.0", "blocks.1", ...
class BlockNames {
 public:
  // Rows of at most this many blocks do not count as repeated.
  static constexpr size_t kShortRow = 4;

  // Reads the rows from the scopes of the programs.
  explicit BlockNames(const std::vector<const compile::Program*>& programs);

  // Returns the block that contains a scope or parameter: the outermost in a row of more than
  // kShortRow; "" for none.
  std::string_view of(std::string_view name) const;

  // Return the prefixes of a name that end in a number, the outermost first; "" after the last.
  static std::string_view first(std::string_view name) { return next(name, {}); }
  static std::string_view next(std::string_view name, std::string_view part);

 private:
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> rows_;  // by parent
};

// Buckets and units (plan::Unit) of a program: "3", "blocks.0".
class Flats {
 public:
  explicit Flats(const compile::Program& program);

  // Returns the bucket or unit that a value is, or is a piece of; "" for other values, such as a
  // parameter that is stored in a bucket.
  std::string_view of(const compile::ValueName& value) const;
  // Returns the parameters of a bucket or unit.
  const std::set<std::string>& members(std::string_view flat) const;
  // Returns the bytes of the values of each bucket and unit, ascending.
  const std::map<std::string, std::vector<int64_t>, std::less<>>& sizes() const { return sizes_; }

 private:
  std::map<std::string, std::set<std::string>, std::less<>> members_;
  std::map<std::string, std::vector<int64_t>, std::less<>> sizes_;
};

}  // namespace perigee::train
