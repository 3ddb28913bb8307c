// Alternatives to the best plan that a search finds: the best plan without a feature, and the best
// one of each other tensor size.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "search/space/choice.h"

namespace perigee::search {

// Combinations that are not cut into stages, of which the lower bounds are counted at most.
inline constexpr size_t kMostBounds = 100000;

class Features {
 public:
  // Notes a choice and its seconds by the model; `bound`: a lower bound of them.
  void count(const Choice& choice, double seconds, bool bound);

  // Returns a sentence for each feature that some choices have and others have not, with the excess
  // of the best choice that differs from `best` in it: "without expert parallelism a plan takes at
  // least 12.0% longer by the model". Leaves out features without such a choice.
  // `longer`: leaves out those that take less.
  std::vector<std::string> sentences(const Choice& best, double seconds, bool longer = false) const;

  // The best plan of a tensor size, of homogeneous stages.
  struct TensorSize {
    int64_t tensor = 1;
    std::optional<Choice> choice;  // that was cut into stages; nothing: none, or none fits
    double seconds = std::numeric_limits<double>::infinity();  // of `choice`, by the model
    // Least lower bound of combinations of this size that were not cut; infinite: all were.
    double bound = std::numeric_limits<double>::infinity();
  };
  // Returns the best plan of each size that was counted, the smallest size first.
  std::vector<TensorSize> tensor_sizes() const;

 private:
  static constexpr size_t kCount = 7;
  struct Least {
    double seconds = std::numeric_limits<double>::infinity();
    bool bound = false;
  };
  std::array<std::array<Least, 2>, kCount> least_;  // without the feature, with it
  std::map<int64_t, TensorSize> tensor_sizes_;
};

// Returns the number of combinations that remain where a key is pinned to its value in `best`, the
// fewest first: "pipe = 8 leaves 120 of 1500, ...". "" where no pin leaves out any.
std::string narrowing(const std::vector<Choice>& all, const Choice& best);

// Returns "3.2% longer by the model": the excess of one plan over the best one. Where the
// best one takes longer by the model, its programs decided: "3.2% less by the model, but not
// by its programs".
std::string more_text(double other, double best);

}  // namespace perigee::search
