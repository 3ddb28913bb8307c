// A set of mesh axes by name, as collectives, units and batches are described over several axes.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::mesh {

struct Mesh;

// Names in the order in which they were added, each once. Sets with the same names are equal,
// whatever their order. The text form, "data,context", is for files and output only.
class AxisSet {
 public:
  AxisSet() = default;
  // Parses a literal; throws Error like parse().
  AxisSet(const char* text) : AxisSet(parse(text)) {}  // NOLINT(google-explicit-constructor)
  // Throws Error for a name that occurs twice.
  explicit AxisSet(std::vector<std::string> names);

  // Parses "data,context", "" as the empty set. Throws Error for an empty name among others and for
  // a name that occurs twice.
  static AxisSet parse(std::string_view text);
  // Returns "data,context", in this set's order.
  std::string text() const;

  bool empty() const { return names_.empty(); }
  size_t size() const { return names_.size(); }
  const std::vector<std::string>& names() const { return names_; }
  auto begin() const { return names_.begin(); }
  auto end() const { return names_.end(); }
  bool contains(std::string_view axis) const;

  // Appends a name, unless the set has it.
  void insert(std::string_view axis);
  // Removes a name, if the set has it.
  void erase(std::string_view axis);
  // Return the axes of this set that `other` lacks, or those that both have, in this set's order.
  AxisSet without(const AxisSet& other) const;
  AxisSet intersection(const AxisSet& other) const;
  // Returns the axes of both sets that the mesh has, in the mesh's order.
  AxisSet joined(const AxisSet& other, const Mesh& mesh) const;

  bool operator==(const AxisSet& other) const;
  // An order that agrees with ==: that of the sorted names.
  std::strong_ordering operator<=>(const AxisSet& other) const;

 private:
  std::vector<std::string> names_;
};

// Orders maps by the sets' texts, for sets in one mesh's order.
struct TextOrder {
  bool operator()(const AxisSet& a, const AxisSet& b) const { return a.text() < b.text(); }
};

}  // namespace perigee::mesh
