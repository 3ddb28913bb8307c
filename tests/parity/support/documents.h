// Language models on samples of several documents.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/parity/support/built_in.h"

namespace perigee::parity {

// A model of the job's [model] keys in float64 on samples of packed documents, and its parts.
struct Packed {
  Given given;  // the graph is that of one of the microbatches
  std::string keys;
  std::vector<int64_t> lengths;  // of the documents of each sample
};

// Returns a model with a batch of `rows` samples, each of documents of these lengths, from another
// one on in each sample; the last document of a sample is padding, a fifth of the labels is ignored.
Packed packed(const std::string& keys, int64_t rows, std::vector<int64_t> lengths,
              int64_t microbatches = 1);

// Returns "loss" and "gradient:NAME" of the same model on each document alone, weighted by the
// labels that count.
exec::Tensors apart(const Packed& model);

// Returns the first difference between `wanted` and the results of the packed graph of one
// microbatch on these inputs, or "".
std::string compare_packed(const Packed& model, const exec::Tensors& inputs,
                           const exec::Tensors& wanted, double tolerance = 1e-10);

}  // namespace perigee::parity
