// Uses a function of core, fmt through its headers, and LibTorch, from an installed copy only.
// Exits 0 when all three answer.
#include <ATen/ATen.h>
#include <perigee/base/error.h>

#include <string>
#include <vector>

int main() {
  const std::vector<std::string> names{"data", "tensor"};
  try {
    perigee::fail("embedder", "the sum is {}{}", at::ones({2, 2}).sum().item<double>(),
                  perigee::did_you_mean("tensr", names));
  } catch (const perigee::Error& e) {
    return std::string(e.what()) == "[embedder] the sum is 4, did you mean \"tensor\"?" ? 0 : 1;
  }
}
