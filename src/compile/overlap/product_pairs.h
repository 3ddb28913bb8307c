// Matrix products that can overlap with a collective of all of their rows.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "compile/draft/draft.h"

namespace perigee::compile {

using Instructions = std::vector<DraftInstruction>;

// A product, or several whose results are added, and the collective that sums all of the
// result over ranks, or gathers all rows of the one product. Instructions are named by their
// place in the section.
struct ProductPair {
  std::vector<size_t> products;   // in the order in which they are added
  std::vector<size_t> additions;  // of several: the ops that add their results
  size_t collective = 0;
  std::vector<size_t> copies;  // that pack the collective's operand, or unpack its result
  size_t place = 0;            // the products can run before this instruction
  ValueId matrix;              // root: the products' result, or the gathered operand
  ValueId result;              // of the collective
};

// Returns true for a product of two matrices, its first two operands, that adds nothing.
bool is_plain_product(std::string_view op);

// Returns which argument of a product has its rows; nothing where it is not a product of matrices.
std::optional<size_t> rows_of(const Instruction& product);

// Finds pairs in a draft, to which only values may be added meanwhile.
class ProductPairs {
 public:
  explicit ProductPairs(const Draft& draft);

  // Returns the product whose whole result, and nothing else, an all-reduce or reduce-scatter sums,
  // or the products whose sum it sums (input gradients of parallel layers with one input).
  std::optional<ProductPair> summed(const Instructions& list, size_t collective) const;

  // Returns the first product whose rows are the result of an all-gather. An earlier reader of that
  // result on which the product does not depend, such as a weight gradient, can run after it.
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
