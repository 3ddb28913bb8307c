// The model that benchmarks of steps train.
#pragma once

inline constexpr const char* kJob = R"(
[model]
kind = "gpt"
layers = 4
width = 256
heads = 4
vocab = 256
[data]
synthetic = true
sequence = 256
)";
