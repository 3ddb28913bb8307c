// The one way to LibTorch and Catch2 in a test: ATen defines CHECK, which must
// not replace Catch2's. A guard instead of `#pragma once`: a compiler cache may
// return a precompiled header that was made from an older text of this file, and
// `#undef CHECK` must not run again after it.
#ifndef PERIGEE_TESTS_SUPPORT_TORCH_TEST_H_
#define PERIGEE_TESTS_SUPPORT_TORCH_TEST_H_

#include <torch/torch.h>

#undef CHECK
#include <catch2/catch.hpp>

#endif  // PERIGEE_TESTS_SUPPORT_TORCH_TEST_H_
