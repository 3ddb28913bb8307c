// What a search tells of the things that a plan may have or not: what each gains or loses.
#pragma once

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "search/choice.h"

namespace perigee::search {

class Features {
 public:
  // A choice that was looked at and takes so long by the model, or, `bound`, at least so long.
  void count(const Choice& choice, double seconds, bool bound);

  // Returns a sentence for each feature that some choices have and others have not, by how much the
  // best of the other kind than `best` is slower: "without sharing out experts a plan takes at
  // least 12.0% longer by the model". Features of which nothing is known are left out.
  std::vector<std::string> sentences(const Choice& best, double seconds) const;

 private:
  static constexpr size_t kCount = 7;
  struct Least {
    double seconds = std::numeric_limits<double>::infinity();
    bool bound = false;
  };
  std::array<std::array<Least, 2>, kCount> least_;  // without the feature, with it
};

// Returns how many of all combinations a search looks at where a key is pinned to what `best` has,
// the fewest first: "pipe = 8 leaves 120 of 1500, ...". "" where no pin leaves out any.
std::string narrowing(const std::vector<Choice>& all, const Choice& best);

// Returns "3.2% longer by the model": what one plan takes more than the best one. The best may take
// more by the model: then it is the best by its programs.
std::string more_text(double other, double best);

}  // namespace perigee::search
