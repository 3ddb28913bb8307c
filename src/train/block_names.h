// Which of a program's rows of blocks, buckets and units a name speaks of.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "compile/program.h"

namespace perigee::train {

// Modules that differ in a number alone: "blocks.0", "blocks.1", ...
class BlockNames {
 public:
  // A row of so many blocks is looked at one by one.
  static constexpr size_t kMostWhole = 4;

  // Looks at the scopes of the programs.
  explicit BlockNames(const std::vector<const compile::Program*>& programs);

  // Returns the block that holds a scope or the parameter of that name: the outermost in a row of
  // more than kMostWhole; "" for none.
  std::string_view of(std::string_view name) const;

  // Returns the parts of a name that end in a number, from the outermost on; "" behind the last.
  static std::string_view first(std::string_view name) { return next(name, {}); }
  static std::string_view next(std::string_view name, std::string_view part);

 private:
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> rows_;  // by parent
};

// Buckets and units (plan::Unit) of a program: "3", "blocks.0".
class Flats {
 public:
  explicit Flats(const compile::Program& program);

  // Returns the bucket or unit that a value of that name is or is a part of; "" for others, as for
  // a parameter that lies in one.
  std::string_view of(std::string_view value) const;
  // Returns its parameters.
  const std::set<std::string>& members(std::string_view flat) const;
  // Returns of each one the bytes of its values, ascending.
  const std::map<std::string, std::vector<int64_t>, std::less<>>& sizes() const { return sizes_; }

 private:
  std::map<std::string, std::set<std::string>, std::less<>> members_;
  std::map<std::string, std::vector<int64_t>, std::less<>> sizes_;
};

}  // namespace perigee::train
