// The built-in models, captured.
#pragma once

#include <string>

#include "tests/parity/support/models.h"

namespace perigee::parity {

// Returns a model of the job's [model] keys in `dtype`, on sequences of that length, with a batch
// of `rows` samples, a fifth of whose labels is ignored. The graph is that of one microbatch.
Given built_in(const std::string& keys, int64_t rows, int64_t microbatches = 1,
               const std::string& dtype = "float64", int64_t sequence = 6);

inline const char* const kGpt =
    "kind = 'gpt'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\ndropout = 0.1\n";
inline const char* const kLlama =
    "kind = 'llama'\nlayers = 2\nwidth = 24\nheads = 6\nkv_heads = 6\nhidden = 40\nvocab = 11\n";
inline const char* const kMoe =
    "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\nexperts = 5\n";
inline const char* const kMlp = "kind = 'mlp'\ninputs = 9\nwidth = 10\nlayers = 3\noutputs = 5\n";
inline const char* const kResnet =
    "kind = 'resnet'\nwidth = 4\nchannels = 3\nimage = 8\nclasses = 5\n";

}  // namespace perigee::parity
