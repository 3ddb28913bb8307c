// The one way to LibTorch and Catch2 in a test: ATen defines CHECK, which must not replace
// Catch2's.
#pragma once

#include <torch/torch.h>

#undef CHECK
#include <catch2/catch.hpp>
