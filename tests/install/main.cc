// Uses a function of core and one of LibTorch, from an installed copy only. Exits 0 when both
// return the expected values.
#include <ATen/ATen.h>
#include <perigee/perigee.h>

#include <string>
#include <vector>

int main() {
  const std::vector<std::string> names{"data", "tensor"};
  const perigee::Error error(perigee::Status::invalid, "embedder",
                             "no axis tensr" + perigee::did_you_mean("tensr", names));
  const bool sums = at::ones({2, 2}).sum().item<double>() == 4;
  const std::string expected = "[embedder] no axis tensr, did you mean \"tensor\"?";
  return sums && error.what() == expected ? 0 : 1;
}
