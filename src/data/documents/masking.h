// Hidden tokens of masked language models (BERT, Devlin et al. 2019).
#pragma once

#include <cstdint>
#include <set>

#include "data/documents/sequences.h"

namespace perigee::data {

struct Masking {
  int64_t mask = 0;           // the token that hides others
  int64_t vocab = 0;          // ids are below it
  std::set<int64_t> special;  // tokens that are never hidden
  uint64_t seed = 0;
  bool held_out = false;  // validation has random numbers of its own
};

// Chooses 15 % of a sample's tokens (`length` of them, without padding), but at least one. Of these, 80 % become the
// mask, 10 % a random token, and 10 % stay. Their labels are the tokens as they were, all others
// kIgnored. A pure function of the seed and the run's sample number.
void hide_tokens(const Masking& masking, int64_t sample, int64_t sequence, int64_t length,
                 const Row& row);

}  // namespace perigee::data
