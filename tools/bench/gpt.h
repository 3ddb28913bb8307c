// The model of benchmarks of training steps.
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
