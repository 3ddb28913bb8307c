// Models of transformers, torchvision and timm, and written by hand, that PyTorch exported: losses
// and gradients are PyTorch's.
#include <torch/version.h>

#include "exec/op_threads.h"
#include "tests/capture/exported/support.h"
#include "tests/capture/support.h"

namespace perigee::test {
namespace {

// Returns the first difference from PyTorch's numbers, or "".
std::string difference_from_pytorch(const Fixture& given) {
  const auto model = load_exported(given.file);
  const auto whole = given.batch();
  const auto run = [&](const Batch& batch) {
    const auto captured = capture(*model.module, batch, model.forward);
    return evaluate(*model.module, captured, batch);
  };
  // The same ops on the same operands: also of bfloat16, where rounding is the same on as many
  // threads in the version of LibTorch that the numbers come from.
  const exec::OpThreads threads(given.computes_in() == "bfloat16" ? 2 : 1);
  const double rounding = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11 ? 1e-4 : 1e-2;
  const double tolerance = given.computes_in() == "bfloat16" ? rounding : given.tolerance();
  auto different = compare(run(whole), given.expected, tolerance);
  if (!different.empty() || !given.expected.contains("half")) return different;
  // Where samples depend on each other (batch norm), half of them have numbers of their own.
  const auto half = whole.begin()->second.size(0) / 2;
  different = compare(run(given.batch(half)), given.expected.at("half"), given.tolerance());
  return different.empty() ? "" : "half of the samples: " + different;
}

}  // namespace

TEST_CASE("exported models have PyTorch's losses and gradients") {
  for (const auto& given : fixtures()) {
    try {
      const auto different = difference_from_pytorch(given);
      INFO(given.name << ": " << different);
      CHECK(different.empty());
    } catch (const std::exception& error) {
      FAIL_CHECK(given.name << ": " << error.what());
    }
  }
}

TEST_CASE("a gradient that differs from PyTorch's is found") {
  const auto& given = fixture("bert");
  const auto model = load_exported(given.file);
  const auto batch = given.batch();
  const auto captured = capture(*model.module, batch, model.forward);
  auto got = evaluate(*model.module, captured, batch);
  REQUIRE(compare(got, given.expected, given.tolerance()).empty());
  const auto first = got.lower_bound("gradient:");
  REQUIRE(first->first.starts_with("gradient:"));
  first->second = first->second * (1 + 1e-3);
  CHECK(!compare(got, given.expected, given.tolerance()).empty());
}

}  // namespace perigee::test
