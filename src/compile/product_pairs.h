// Matrix products beside a collective of all of their rows.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "compile/draft.h"

namespace perigee::compile {

using Instructions = std::vector<DraftInstruction>;

// A product, or several whose results are added, and the collective that sums all of the result
// over ranks, or gathers all rows of the one product. Instructions are named by their place in the
// section.
struct ProductPair {
  std::vector<size_t> products;   // in the order in which they are added
  std::vector<size_t> additions;  // of several: what adds their results
  size_t collective = 0;
  std::vector<size_t> copies;  // that pack what the collective reads, or unpack what it writes
  size_t place = 0;            // before which the products can stand
  ValueId matrix;              // root: what the products give, or, gathered, what the one reads
  ValueId result;              // of the collective
};

// Returns true for a product of two matrices, its first two operands, that adds nothing.
bool is_plain_product(std::string_view op);

// Returns which argument of a product has its rows; nothing where it is no product of matrices.
std::optional<size_t> rows_of(const Instruction& product);

// Finds pairs in a draft that does not change meanwhile, but for values that are added.
class ProductPairs {
 public:
  explicit ProductPairs(const Draft& draft);

  // Returns the product whose whole result, and nothing else, an all-reduce or reduce-scatter sums,
  // or the products whose sum that is (what layers beside each other give back to their input).
  std::optional<ProductPair> summed(const Instructions& list, size_t collective) const;

  // Returns the first product whose rows are all that an all-gather gives. What reads the same
  // before it and what it does not depend on, a weight's gradient, can run behind it.
  std::optional<ProductPair> gathered(const Instructions& list, size_t collective) const;

  // Returns how many operands of all instructions are this root or a view of it.
  int reads(ValueId root) const { return reads_[root.index]; }

 private:
  bool touches(const Instruction& instruction, ValueId root) const;
  bool is_whole(ValueId v) const;
  bool is_matrix(ValueId v) const;
  bool find_terms(const Instructions& list, size_t end, ValueId root, ProductPair& pair) const;
  bool can_wait(const Instructions& list, const ProductPair& pair) const;
  bool adds_a_row(const Instruction& product) const;

  const Draft& draft_;
  std::vector<int> reads_;  // by root
};

}  // namespace perigee::compile
