// The one way to LibTorch and Catch2 in a test: ATen defines CHECK, which must not replace
// Catch2's. Precompiled for all tests, without torch/nn.h and torch/optim.h, which few of them use:
// each test would instantiate their templates. A guard instead of `#pragma once`: a compiler cache
// may return a precompiled header that was made from an older text of this file, and `#undef CHECK`
// must not run again.
#ifndef PERIGEE_TESTS_SUPPORT_TORCH_TEST_H_
#define PERIGEE_TESTS_SUPPORT_TORCH_TEST_H_

#include <torch/autograd.h>
#include <torch/enum.h>
#include <torch/types.h>
#include <torch/utils.h>

#undef CHECK
#include <catch2/catch.hpp>

#endif  // PERIGEE_TESTS_SUPPORT_TORCH_TEST_H_
